"""Demonstrations from a JSONL file: chat messages, or questions with steps."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_rl.sft.dialogue import Dialogue, DialogueTurn
from agent_rl.sft.settings import JsonlDemonstrations
from agent_rl.tir.fence import FenceScanner
from agent_rl.tir.settings import TirSettings


class RowError(ValueError):
    """A row that is no demonstration; the message names file, line, and what is wrong."""


def jsonl_dialogues(settings: JsonlDemonstrations, tir: TirSettings) -> tuple[list[Dialogue], dict[str, int]]:
    """Read demonstrations.

    Text that follows a program within its turn is left out, since generation stops there; how often is
    counted under `cut_after_program`.

    Raises:
        RowError: a row of another form, or a conversation that no episode could have recorded.
        OSError: the file cannot be read.
    """
    dialogues: list[Dialogue] = []
    cuts = 0
    for where, row in _rows(Path(settings.path)):
        if settings.limit is not None and len(dialogues) == settings.limit:
            break
        dialogue, cut = _dialogue(row, where, tir)
        dialogues.append(dialogue)
        cuts += cut
    if not dialogues:
        raise RowError(f"{settings.path}: no demonstrations in it")
    return dialogues, {"rows": len(dialogues), "cut_after_program": cuts}


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                yield where, json.loads(line)
            except json.JSONDecodeError as error:
                raise RowError(f"{where}: not valid JSON: {error}") from None


def _dialogue(row: Any, where: str, tir: TirSettings) -> tuple[Dialogue, int]:
    if not isinstance(row, dict):
        raise RowError(f"{where}: a row must be a JSON object, not {type(row).__name__}")
    if "messages" in row:
        question, raw = _from_messages(row["messages"], where, tir)
    elif "question" in row and "steps" in row:
        question, raw = row["question"], [(s.get("text"), s.get("observation")) for s in row["steps"]]
    else:
        raise RowError(f"{where}: needs `messages`, or `question` and `steps`; it has {', '.join(row) or 'nothing'}")
    if not isinstance(question, str) or not raw:
        raise RowError(f"{where}: needs a question and at least one turn of the model")
    turns, cuts = [], 0
    for position, (text, observation) in enumerate(raw):
        turn, cut = _turn(text, observation, f"{where}, turn {position + 1}", last=position == len(raw) - 1)
        turns.append(turn)
        cuts += cut
    return Dialogue(question, tuple(turns)), cuts


def _turn(text: Any, observation: Any, where: str, *, last: bool) -> tuple[DialogueTurn, bool]:
    if not isinstance(text, str) or not isinstance(observation, str | None):
        raise RowError(f"{where}: text and observation must be strings")
    if observation is None:
        if not last:
            raise RowError(f"{where}: only the last turn may go without an observation")
        return DialogueTurn(text), False
    closed = _up_to_closing_fence(text)
    if closed is None:
        raise RowError(f"{where}: an observation follows, but the text holds no complete ```python block")
    return DialogueTurn(closed, observation), bool(text[len(closed) :].strip())


def _up_to_closing_fence(text: str) -> str | None:
    """The text up to the three backticks that close its first executable block; None without one."""
    scanner = FenceScanner()
    for end, character in enumerate(text, 1):
        if scanner.feed(character):
            return text[:end]
    return None


def _from_messages(messages: Any, where: str, tir: TirSettings) -> tuple[str, list[tuple[Any, Any]]]:
    """The question, and pairs of a model text and the observation that follows it."""
    roles = [m.get("role") if isinstance(m, dict) else None for m in messages] if isinstance(messages, list) else []
    start = 1 if roles[:1] == ["system"] else 0
    if start and (tir.instruction_role != "system" or messages[0].get("content") != tir.instruction):
        raise RowError(
            f"{where}: its system message is not what an episode would show (tir.instruction as "
            f"{tir.instruction_role}); set tir.instruction and tir.instruction_role = system, or take it out"
        )
    body = roles[start + 1 :]
    expected = ["assistant" if i % 2 == 0 else "tool" for i in range(len(body))]
    if roles[start : start + 1] != ["user"] or not body or body != expected:
        raise RowError(
            f"{where}: roles must be (system,) user, assistant, tool, assistant, ...; "
            f"they are {', '.join(map(str, roles))}"
        )
    contents = [m.get("content") for m in messages[start:]]
    observations = [*contents[2::2], None] if len(contents) % 2 == 0 else contents[2::2]
    return contents[0], list(zip(contents[1::2], observations, strict=True))
