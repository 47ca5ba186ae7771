"""Demonstrations from GSM8K's own calculator marks: no model wrote them, and each program was run.

A GSM8K solution carries its arithmetic as marks, `<<48/2=24>>`. Each mark becomes a line `v1 = 48/2`, in which
results of earlier marks are replaced by their variables, and the last line prints the last variable. Programs
that do not print the gold answer are left out (Cobbe et al. 2021, arXiv 2110.14168, describe the marks).
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from agent_rl.sft.dialogue import Dialogue, DialogueTurn
from agent_rl.sft.execution import run_own_programs
from agent_rl.sft.settings import Gsm8kDemonstrations
from agent_rl.tasks.families.traces import boxed, code_turn
from agent_rl.tir.observation import observation_text

_MARK = re.compile(r"<<([^<>=]+)=([^<>]+)>>")
_NUMBER = re.compile(r"(?<![\w.])(?:\d+\.?\d*|\.\d+)(?![\w.])")
_ARITHMETIC = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd,
)  # fmt: skip
_EXECUTION_DEADLINE_S = 600.0


def gsm8k_dialogues(settings: Gsm8kDemonstrations) -> tuple[list[Dialogue], dict[str, int]]:
    """Demonstrations on GSM8K rows: one program, its observation, the gold answer in a box.

    Returns:
        The demonstrations, and how many rows were kept or left out for which reason: `no_marks`,
        `not_arithmetic`, `other_answer`.

    Raises:
        ValueError: a row is not GSM8K's, or no row gives a demonstration.
        OSError: the file cannot be read.
    """
    rows = _rows(Path(settings.path).expanduser())
    counts: Counter[str] = Counter(rows=len(rows))
    drafts: list[tuple[str, str, str]] = []
    for question, solution, gold in rows:
        if not _MARK.search(solution):
            counts["no_marks"] += 1
        elif (program := program_of(solution)) is None:
            counts["not_arithmetic"] += 1
        else:
            drafts.append((question, program, gold))
    outcomes = run_own_programs(list({program for _, program, _ in drafts}), deadline_s=_EXECUTION_DEADLINE_S)
    dialogues: list[Dialogue] = []
    for question, program, gold in drafts:
        outcome = outcomes[program]
        if not outcome.ok or not _equal(outcome.stdout, gold):
            counts["other_answer"] += 1
        elif settings.limit is None or len(dialogues) < settings.limit:
            shown = DialogueTurn(code_turn(program), observation_text(outcome))
            dialogues.append(Dialogue(question, (shown, DialogueTurn(boxed(gold)))))
    if not dialogues:
        raise ValueError(f"gsm8k.path = {settings.path!r}: no row has calculator marks that lead to its answer")
    counts["kept"] = len(dialogues)
    return dialogues, dict(counts)


def program_of(solution: str) -> str | None:
    """The program behind a solution's calculator marks; None if one of them is more than arithmetic."""
    lines: list[str] = []
    results: dict[float, str] = {}
    for expression, result in _MARK.findall(solution):
        source = _with_variables(expression.replace(",", "").replace("$", "").strip(), results)
        if source is None:
            return None
        name = f"v{len(lines) + 1}"
        lines.append(f"{name} = {source}")
        if (value := _number(result)) is not None:
            results[value] = name
    return "\n".join([*lines, f"print(v{len(lines)})"]) if lines else None


def _with_variables(expression: str, results: dict[float, str]) -> str | None:
    """The expression with numbers that earlier marks gave replaced by their names; None if it is no arithmetic."""
    try:
        tree = ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError):
        return None
    if not all(isinstance(node, _ARITHMETIC) for node in ast.walk(tree)):
        return None

    def name(match: re.Match[str]) -> str:
        return results.get(float(match.group()), match.group())

    return _NUMBER.sub(name, expression)


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").replace("$", "").strip())
    except ValueError:
        return None


def _equal(printed: str, gold: str) -> bool:
    """Whether the printed number is the gold answer, up to the rounding of floating-point arithmetic."""
    one, other = _number(printed), _number(gold)
    return one is not None and other is not None and abs(one - other) <= 1e-6 * max(1.0, abs(other))


def _rows(path: Path) -> Sequence[tuple[str, str, str]]:
    """(question, solution, gold answer) of each line."""
    rows = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                solution, mark, gold = row["answer"].rpartition("####")
                question = row["question"]
            except (ValueError, KeyError, TypeError, AttributeError):
                raise ValueError(f"{path}, line {number}: no GSM8K row (`question`, `answer` with ####)") from None
            if not mark:
                raise ValueError(f"{path}, line {number}: its answer has no `####` before the result")
            rows.append((question, solution, gold.strip().replace(",", "")))
    return rows
