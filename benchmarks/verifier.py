"""False accepts and false rejects of the verifier beside math-verify's own, its speed, and its worst case.

    python -m benchmarks.verifier [--pairs FILE] [--skip-math-verify]

math-verify judges the same labelled pairs inside the same killable workers (it can hang by itself), the way its
documentation asks: both sides parsed as boxed LaTeX, gold first; 2 s of
processor time a pair for either. Speeds are ratios within this run.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from agent_rl.rewards.extraction import extract_answer
from agent_rl.rewards.settings import VerifierSettings
from agent_rl.rewards.verifier import Verifier
from agent_rl.types import VerdictKind

PAIRS = Path(__file__).parent.parent / "tests" / "data" / "verifier_pairs.jsonl"
MATH_VERIFY = "benchmarks.verifier:math_verify_rule"
SIMPLE = [("42", "42"), ("1,234", "1234"), ("\\frac{1}{2}", "0.5"), ("17", "18"), ("50\\%", "0.5"), ("(1,2)", "(2,1)")]
ALGEBRA = [
    ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("2\\pi", "\\pi \\cdot 2"),
    ("\\sqrt{8}", "2\\sqrt{3}"),
]


@dataclass(frozen=True, slots=True)
class Pair:
    """One labelled pair; `text` is a whole response from which the answer has to be taken."""

    group: str
    gold: str
    label: str
    answer: str | None
    text: str | None
    kind: str


def load_pairs(path: Path) -> list[Pair]:
    """Pairs of a JSONL file with `group`, `gold`, `label`, `answer` or `text`, and optionally `kind`."""
    pairs = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        pairs.append(
            Pair(row["group"], row["gold"], row["label"], row.get("answer"), row.get("text"), row.get("kind", "math"))
        )
    return pairs


def math_verify_rule(answer: str, gold: str) -> bool:
    """math-verify's judgement; `answer` is a whole response. Run by a worker under this name.

    Its own time-outs are off: they count wall time, which on a busy machine would be held against it.
    """
    from math_verify import parse, verify

    parsed = [parse(text, parsing_timeout=None) for text in (f"\\boxed{{{gold}}}", answer)]
    return bool(verify(*parsed, timeout_seconds=None))


def ours(verifier: Verifier, pair: Pair) -> str:
    """Our verdict on one pair."""
    answer = pair.answer
    if pair.text is not None:
        found = extract_answer(pair.text)
        answer = None if found is None else found.answer
    return verifier.verify_sync(answer, pair.gold, kind=pair.kind).kind


def theirs(verifier: Verifier, pair: Pair) -> str:
    """math-verify's verdict on the same pair, `undecided` if it had to be killed."""
    text = pair.text if pair.text is not None else f"\\boxed{{{pair.answer}}}"
    return verifier.verify_sync(text, pair.gold, kind=MATH_VERIFY).kind


@dataclass(slots=True)
class Tally:
    """Counts of one judge on one group."""

    wrong_pairs: int = 0
    right_pairs: int = 0
    false_accepts: int = 0
    false_rejects: int = 0
    undecided: int = 0

    def add(self, label: str, verdict: str) -> None:
        """Count one verdict. A verdict of `undecided` earns what `wrong` earns."""
        accepted = verdict == VerdictKind.CORRECT
        self.undecided += verdict == VerdictKind.UNDECIDED
        if label == VerdictKind.CORRECT:
            self.right_pairs += 1
            self.false_rejects += not accepted
        else:
            self.wrong_pairs += 1
            self.false_accepts += accepted

    def __str__(self) -> str:
        return (
            f"{self.false_accepts:3d}/{self.wrong_pairs:<3d} {self.false_rejects:3d}/{self.right_pairs:<3d}"
            f" {self.undecided:3d}"
        )


def accuracy(pairs: Sequence[Pair], settings: VerifierSettings, with_math_verify: bool) -> None:
    """Print false accepts and rejects by group."""
    judges = {"ours": ours, "math-verify": theirs} if with_math_verify else {"ours": ours}
    tallies: dict[str, dict[str, Tally]] = {}
    for name, judge in judges.items():
        by_group: dict[str, Tally] = defaultdict(Tally)
        with Verifier(settings) as verifier, ThreadPoolExecutor(settings.workers) as threads:
            verdicts = threads.map(lambda pair, judge=judge, verifier=verifier: judge(verifier, pair), pairs)
            for pair, verdict in zip(pairs, verdicts, strict=True):
                for group in (pair.group, "TOTAL"):
                    by_group[group].add(pair.label, verdict)
        tallies[name] = by_group
    print(f"{len(pairs)} labelled pairs; false accepts / wrong pairs, false rejects / right pairs, undecided")
    print(f"{'group':<26}" + "".join(f"{name:>20}" for name in judges))
    groups = [*dict.fromkeys(pair.group for pair in pairs), "TOTAL"]
    for group in groups:
        print(f"{group:<26}" + "".join(f"{tallies[name][group]!s:>20}" for name in judges))
    for name in judges:
        total = tallies[name]["TOTAL"]
        print(
            f"{name}: false-accept rate {total.false_accepts / max(total.wrong_pairs, 1):.2%}, "
            f"false-reject rate {total.false_rejects / max(total.right_pairs, 1):.2%}"
        )


def speed(settings: VerifierSettings) -> None:
    """Print verdicts per second on simple answers and on answers that need algebra."""
    import math_verify

    with Verifier(settings) as verifier:
        rates = {}
        for name, cases in (("simple answers", SIMPLE), ("answers that need algebra", ALGEBRA)):
            verifier.verify_sync(*ALGEBRA[0])
            rounds = 1000 if cases is SIMPLE else 25
            began = time.perf_counter()
            for _ in range(rounds):
                for answer, gold in cases:
                    verifier.verify_sync(answer, gold)
            rates[name] = rounds * len(cases) / (time.perf_counter() - began)
        for name, cases in (("simple answers", SIMPLE), ("answers that need algebra", ALGEBRA)):
            began, rounds = time.perf_counter(), 20
            for _ in range(rounds):
                for answer, gold in cases:
                    left, right = (math_verify.parse(f"\\boxed{{{side}}}") for side in (gold, answer))
                    math_verify.verify(left, right)
            other = rounds * len(cases) / (time.perf_counter() - began)
            print(
                f"{name}: {rates[name]:,.0f} verdicts/s by one caller; "
                f"math-verify in this process {other:,.0f}/s; ratio {rates[name] / other:.1f}"
            )


def worst_case(pairs: Sequence[Pair], settings: VerifierSettings, callers: int = 32) -> None:
    """Print how long adversarial answers take when many callers send them at once."""
    bombs = [pair for pair in pairs if pair.group == "adversarial"]

    def one(index: int) -> tuple[float, str]:
        pair = bombs[index % len(bombs)]
        began = time.perf_counter()
        verdict = ours(verifier, pair)
        return time.perf_counter() - began, "as labelled" if verdict == pair.label else verdict

    with Verifier(settings) as verifier, ThreadPoolExecutor(callers) as threads:
        results = list(threads.map(one, range(callers * 4)))
        after = verifier.verify_sync("\\sqrt{8}", "2\\sqrt{2}").kind
        killed = verifier.pool.killed
    outcomes = defaultdict(int)
    for _, outcome in results:
        outcomes[outcome] += 1
    print(
        f"{len(results)} adversarial answers from {callers} callers at once: slowest "
        f"{max(seconds for seconds, _ in results):.2f} s, {dict(outcomes)}, {killed} workers killed, "
        f"next verdict {after}"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verifier", description=__doc__)
    parser.add_argument("--pairs", type=Path, default=PAIRS)
    parser.add_argument("--skip-math-verify", action="store_true")
    options = parser.parse_args()
    pairs = load_pairs(options.pairs)
    settings = VerifierSettings(workers=os.cpu_count() or 2)
    unhurried = settings.model_copy(update={"wall_seconds": 60.0})  # processor time bounds both sides alike
    others = [pair for pair in pairs if pair.kind != "math"]
    accuracy([pair for pair in pairs if pair.kind == "math"], unhurried, not options.skip_math_verify)
    print("\nThe other verifiers, by their own pairs:")
    accuracy(others, unhurried, with_math_verify=False)
    print()
    speed(settings)
    worst_case(pairs, settings)


if __name__ == "__main__":
    main()
