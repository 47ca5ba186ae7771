"""The forms in which maths problems circulate, recognised by their columns, and a row of each as a `Problem`.

A form is recognised once a file, on its first readable row; rows of the file that do not fit it are bad rows.
Column names are compared without regard to case.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from agent_rl.tasks.gold import boxed_gold, gold_text, gsm8k_gold
from agent_rl.tasks.settings import ColumnSettings
from agent_rl.types import Problem

QUESTION = ("question", "problem", "prompt", "input", "query", "instruction")
GOLD = ("answer", "gold", "final_answer", "gt_answer", "ground_truth", "expected_answer", "label", "target", "solution")
ID = ("id", "unique_id", "uid", "problem_idx")
LEVEL = ("level", "difficulty")
SUBJECT = ("subject", "type", "subfield", "problem_type", "category", "data_topic")
KEPT = ("url", "unit", "answer_type", "year", "license", "lang")

Raw = Mapping[str, Any]
"""A row with lower-case column names."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A form: its name, whether a row has it, and where question and gold answer stand."""

    name: str
    fits: Callable[[Raw], bool]
    question: Callable[[Raw], Any]
    gold: Callable[[Raw], str]


def _first(row: Raw, names: tuple[str, ...]) -> Any:
    return next((row[n] for n in names if row.get(n) not in (None, "")), None)


def _has(row: Raw, *names: str) -> bool:
    return all(row.get(n) is not None for n in names)


def _text(row: Raw, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise ValueError(f"column {name!r} is a {type(value).__name__}, not text")
    return value


def _verl_gold(row: Raw) -> str:
    model = row.get("reward_model")
    if not isinstance(model, Mapping) or "ground_truth" not in model:
        raise ValueError("column 'reward_model' has no 'ground_truth'")
    return gold_text(model["ground_truth"])


def _pair_gold(row: Raw) -> str:
    """The first answer column with a value; a worked solution only where there is no answer column at all."""
    if any(name in row for name in GOLD[:-1]):
        return gold_text(_first(row, GOLD[:-1]))
    solution = row.get("solution")
    return boxed_gold(solution) if isinstance(solution, str) and "\\boxed" in solution else gold_text(solution)


def _math_question(row: Raw) -> Any:
    return _first(row, ("problem", "question", "prompt"))


def _body_question(row: Raw) -> str:
    return f"{_text(row, 'body').strip()} {_text(row, 'question').strip()}"


SCHEMAS: tuple[Schema, ...] = (
    Schema(
        "own",
        lambda r: _has(r, "question", "gold"),
        lambda r: r.get("question"),
        lambda r: gold_text(r.get("gold")),
    ),
    Schema("verl", lambda r: _has(r, "prompt", "reward_model"), lambda r: r.get("prompt"), _verl_gold),
    Schema(
        "gsm8k",
        lambda r: _has(r, "question", "answer") and "####" in str(r["answer"]),
        lambda r: r.get("question"),
        lambda r: gsm8k_gold(_text(r, "answer")),
    ),
    Schema(
        "olympiadbench",
        lambda r: _has(r, "question", "final_answer"),
        lambda r: r.get("question"),
        lambda r: gold_text(r.get("final_answer")),
    ),
    Schema(
        "svamp",
        lambda r: _has(r, "body", "question", "answer"),
        _body_question,
        lambda r: gold_text(r.get("answer")),
    ),
    Schema(
        "math",
        lambda r: _has(r, "solution") and _first(r, GOLD[:-1]) is None and "\\boxed" in str(r["solution"]),
        _math_question,
        lambda r: boxed_gold(_text(r, "solution")),
    ),
    Schema(
        "question-answer",
        lambda r: _first(r, QUESTION) is not None and _first(r, GOLD) is not None,
        lambda r: _first(r, QUESTION),
        _pair_gold,
    ),
)


def detect(columns: Mapping[str, Any]) -> Schema:
    """The form of a row; ValueError lists its columns and the remedy when none fits."""
    row = _lower(columns)
    for schema in SCHEMAS:
        if schema.fits(row):
            return schema
    names = ", ".join(sorted(columns)) or "none"
    raise ValueError(
        f"no known form fits the columns ({names}); name them with `columns: {{question: ..., gold: ...}}`"
    )


def explicit(columns: ColumnSettings) -> Schema:
    """A form made of explicit column names."""
    formats = {"plain": gold_text, "boxed": boxed_gold, "gsm8k": gsm8k_gold}

    def gold(row: Raw) -> str:
        value = reach(row, columns.gold)
        if columns.gold_format != "plain" and not isinstance(value, str):
            raise ValueError(f"column {columns.gold!r} is not text, so it has no {columns.gold_format} answer")
        return formats[columns.gold_format](value)

    return Schema("explicit columns", lambda _: True, lambda r: reach(r, columns.question), gold)


def reach(row: Raw, path: str) -> Any:
    """Value of a dotted column path; None where it leads nowhere."""
    value: Any = row
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = next((v for k, v in value.items() if k.lower() == part.lower()), None)
    return value


def to_problem(data: Mapping[str, Any], schema: Schema, source: str, columns: ColumnSettings | None = None) -> Problem:
    """A row as a problem. `source` names the data set when the row does not. ValueError says what is wrong."""
    row = _lower(data)
    question, system = question_text(schema.question(row))
    extra = row.get("extra_info") if isinstance(row.get("extra_info"), Mapping) else {}
    both = {**_lower(extra), **row}

    def pick(explicit_path: str | None, names: tuple[str, ...]) -> Any:
        return reach(row, explicit_path) if explicit_path else _first(both, names)

    source = str(pick(columns and columns.source, ("data_source", "source")) or source)
    metadata = _plain(row["metadata"]) if schema.name == "own" and isinstance(row.get("metadata"), Mapping) else {}
    if (level := level_of(pick(columns and columns.level, LEVEL))) is not None:
        metadata["level"] = level
    if (subject := pick(columns and columns.subject, SUBJECT)) is not None:
        metadata["subject"] = str(subject)
    if system:
        metadata["system"] = system
    if isinstance(row.get("error"), str | Decimal):  # OlympiadBench's name for the tolerance of a numeric answer
        metadata["tolerance"] = str(row["error"])
    metadata |= {k: both[k] for k in KEPT if isinstance(both.get(k), str | int) and both[k] != ""}
    return Problem(
        id=problem_id(pick(columns and columns.id, ID), source, question),
        question=question,
        gold=schema.gold(row),
        source=source,
        kind=str(row["kind"]) if schema.name == "own" and row.get("kind") else "math",
        metadata=metadata,
    )


def question_text(value: Any) -> tuple[str, str]:
    """Question and system message of a question cell: text, or chat messages with exactly one from the user."""
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("the question is empty")
        return value.strip(), ""
    if value is None:
        raise ValueError("the question is missing")
    if not isinstance(value, list) or not all(isinstance(m, Mapping) and "content" in m for m in value):
        raise ValueError(f"the question is a {type(value).__name__}, neither text nor a list of chat messages")
    by_role: dict[str, list[str]] = {}
    for message in value:
        by_role.setdefault(str(message.get("role")), []).append(_content(message["content"]))
    if other := set(by_role) - {"system", "user"}:
        raise ValueError(f"the prompt has messages of role {', '.join(sorted(other))}: only one user turn can be asked")
    if len(by_role.get("user", [])) != 1:
        raise ValueError(f"the prompt has {len(by_role.get('user', []))} user messages, expected 1")
    question = by_role["user"][0].strip()
    if not question:
        raise ValueError("the question is empty")
    return question, "\n".join(by_role.get("system", []))


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content):
        return "".join(p["text"] for p in content)
    raise ValueError("a chat message has content that is not text (images cannot be used)")


def level_of(value: Any) -> int | float | None:
    """A level as a number: 5, 5.5, `5`, `Level 5`; None where there is none (MATH writes `Level ?`)."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"(?:level\s*)?(-?\d+(?:\.\d+)?)", str(value).strip(), re.IGNORECASE)
    if match is None:
        return None
    number = float(match[1])
    return int(number) if number.is_integer() else number


def problem_id(given: Any, source: str, question: str) -> str:
    """`source/id`, with the row's own id or else a hash of the question, so that it survives reordering."""
    if given is None:
        given = hashlib.sha256(question.encode()).hexdigest()[:12]
    text = str(given)
    prefix = f"{source}/" if source and not text.lower().startswith(source.lower()) else ""
    return prefix + text


def _lower(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k.lower(): v for k, v in row.items() if isinstance(k, str)}


def _plain(value: Any) -> Any:
    """The same value with floats for decimals, so that records can be written as JSON."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return float(value) if isinstance(value, Decimal) else value
