"""Checks gold answers against their own verifier: `python -m agent_rl.rewards.audit FILE...`.

A gold answer that the verifier cannot read, or does not accept as an answer to itself, gives every attempt
reward 0; it is listed with the reason. An answer is tried in the spelling of the gold and, since an equal spelling
proves little, the gold is also read by the rules that other spellings would meet.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from agent_rl.rewards.extraction import extract_answer
from agent_rl.rewards.settings import VerifierSettings
from agent_rl.rewards.verifier import Verifier
from agent_rl.types import Verdict, VerdictKind

GOLD_FIELDS = ("gold", "answer", "final_answer", "ground_truth", "target", "solution")
"""Fields of a row that may hold the gold answer, in this order."""


@dataclass(frozen=True, slots=True)
class GoldFailure:
    """A gold answer that its own verifier does not accept."""

    index: int
    """Position in the input, from 0."""
    gold: str
    reason: str


def audit_golds(
    golds: Iterable[str], *, kind: str = "math", settings: VerifierSettings | None = None
) -> list[GoldFailure]:
    """Gold answers that do not pass their own verifier, with reasons.

    Args:
        golds: gold answers as the problems carry them.
        kind: the verifier that the problems name.
        settings: limits of the verifier.

    Raises:
        InfrastructureError: the verifier itself failed.
    """
    settings = settings or VerifierSettings()
    listed = list(golds)
    with Verifier(settings) as verifier, ThreadPoolExecutor(settings.workers * 2) as threads:
        verdicts = threads.map(lambda gold: check_gold(verifier, gold, kind), listed)
        return [
            GoldFailure(index, gold, verdict.reason)
            for index, (gold, verdict) in enumerate(zip(listed, verdicts, strict=True))
            if verdict.kind is not VerdictKind.CORRECT
        ]


def check_gold(verifier: Verifier, gold: str, kind: str) -> Verdict:
    """The verdict on a gold answer as an answer to itself.

    For `math` the answer is spelled otherwise than the gold (an equation `a_0 = gold` where that is possible is
    too much; parentheses are enough), so that the equality of spellings cannot hide a gold that nobody can read.
    """
    same = verifier.verify_sync(gold, gold, kind=kind)
    if kind != "math" or same.kind is not VerdictKind.CORRECT:
        return same
    probe = verifier.verify_sync("0", gold, kind=kind)
    return probe if probe.reason.startswith("gold unreadable") else same


def read_golds(path: Path) -> Iterator[str]:
    """Gold answers of a JSONL file: a string, number or list a row, or the first of `GOLD_FIELDS`.

    Raises:
        ValueError: a row without any of them; it names the line.
    """
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row = json.loads(line)
            value = row
            if isinstance(row, dict):
                field = next((name for name in GOLD_FIELDS if row.get(name) is not None), None)
                if field is None:
                    raise ValueError(f"{path}:{number}: none of the fields {', '.join(GOLD_FIELDS)} is there")
                value = row[field]
            value = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            found = extract_answer(value, modes=("hashes", "boxed"))
            yield found.answer if found is not None else value


def main(arguments: list[str] | None = None) -> int:
    """Command line. Exit status 1 if any gold answer fails."""
    parser = argparse.ArgumentParser(prog="python -m agent_rl.rewards.audit", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="JSONL files")
    parser.add_argument("--kind", default="math", help="verifier (default math)")
    options = parser.parse_args(arguments)
    failed = 0
    for path in options.files:
        golds = list(read_golds(path))
        failures = audit_golds(golds, kind=options.kind)
        failed += len(failures)
        print(f"{path}: {len(golds)} gold answers, {len(failures)} fail their own verifier")
        for failure in failures:
            print(f"  row {failure.index + 1}: {failure.gold[:100]!r}: {failure.reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
