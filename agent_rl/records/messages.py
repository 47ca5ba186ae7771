"""Recordings as chat messages and back: one JSON object a line, with `messages`, for supervised training.

{"messages": [{"role": "user", ...}, {"role": "assistant", ...}, {"role": "tool", ...}, ...], "question": ..., ...}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agent_rl.records.recorder import TrajectoryRecorder
from agent_rl.records.schema import Record
from agent_rl.records.shards import RecordError
from agent_rl.types import FinishReason, Problem, StopReason, ToolOutcome, ToolStatus, Trajectory, Turn

_ABOUT = ("split", "step", "answer", "reward", "advantage", "stop")


def messages(record: Record, instruction: str | None = None) -> dict[str, Any]:
    """One row: the question, each turn as it was sampled, each observation as the model saw it.

    Args:
        instruction: put first as a system message.
    """
    found = [{"role": "system", "content": instruction}] if instruction else []
    found.append({"role": "user", "content": record.problem.question})
    for turn in record.turns:
        found.append({"role": "assistant", "content": turn.text})
        if turn.observation is not None:
            found.append({"role": "tool", "content": turn.observation})
    about = {name: getattr(record, name) for name in _ABOUT}
    verdict = None if record.verdict is None else record.verdict.kind.value
    problem = {"id": record.problem.id, "gold": record.problem.gold, "source": record.problem.source}
    return {"messages": found, "key": record.key, **problem, **about, "verdict": verdict}


def export(records: Iterable[Record], path: Path, *, correct_only: bool = False, instruction: str | None = None) -> int:
    """Write rows; the number written. Trajectories that failed for reasons of ours, or without a turn, are left out."""
    count = 0
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        for record in records:
            correct = record.verdict is not None and record.verdict.score == 1.0
            if not record.turns or record.trajectory().failed or (correct_only and not correct):
                continue
            file.write(json.dumps(messages(record, instruction), ensure_ascii=False) + "\n")
            count += 1
    return count


def import_messages(path: Path, folder: Path, *, split: str = "imported") -> int:
    """Make a recording of level `text` out of rows; the number read.

    Raises:
        RecordError: a row that is no conversation of question, model turns and observations; names the line.
    """
    recorder = TrajectoryRecorder(folder, level="text")
    trajectories = list(_trajectories(path))
    recorder.append(f"{split}-000000", trajectories, step=0)
    return len(trajectories)


def _trajectories(path: Path) -> Iterator[Trajectory]:
    samples: dict[str, int] = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise RecordError(f"{where}: not valid JSON: {error}") from None
            yield _trajectory(row, where, samples)


def _trajectory(row: Any, where: str, samples: dict[str, int]) -> Trajectory:
    said = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(said, list) or not all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in said):
        raise RecordError(f"{where}: needs `messages`, a list of objects with role and content")
    said = said[1:] if said and said[0].get("role") == "system" else said
    roles = [m.get("role") for m in said]
    if len(said) < 2 or roles != ["user", *("assistant" if n % 2 == 0 else "tool" for n in range(len(said) - 1))]:
        raise RecordError(f"{where}: roles must be (system,) user, assistant, tool, assistant, ...; they are {roles}")
    question = said[0]["content"]
    name = str(row.get("id") or question)
    samples[name] = samples.get(name, -1) + 1
    problem = Problem(name, question, str(row.get("gold") or ""), source=str(row.get("source") or ""))
    answer = row.get("answer")
    stop = StopReason(row["stop"]) if row.get("stop") in set(StopReason) else None
    turns = [_turn(said, n) for n in range(1, len(said), 2)]
    return Trajectory(problem, samples[name], [], turns, stop=stop, answer=answer, reward=row.get("reward"))


def _turn(said: list[dict[str, str]], n: int) -> Turn:
    from agent_rl.tir.fence import parse_turn

    text = said[n]["content"]
    code = parse_turn(text).code
    observation = said[n + 1]["content"] if n + 1 < len(said) else None
    finish = FinishReason.EOS if code is None else FinishReason.FENCE
    outcome = None if observation is None else ToolOutcome(ToolStatus.OK, stdout=observation)
    return Turn(text, finish, code=code, outcome=outcome, observation=observation)
