"""The figures of a measurement, from its attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from agent_rl.evaluation.estimates import Estimate, majority_at_k, pass_at_k, ratio_estimate
from agent_rl.evaluation.outcomes import Outcome, outcome_of
from agent_rl.types import Trajectory

Count = Callable[[list[Outcome]], float]
"""Adds something up over one problem's attempts."""


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """One problem's attempts, without those that failed for reasons of ours."""

    problem: str
    source: str
    level: str
    gold: str
    attempts: int
    correct: int
    failed: int
    majority_answer: str | None
    """The most frequent answer as first spelled; None if no attempt gave one."""
    mean_turns: float
    mean_tokens: float

    @property
    def rate(self) -> float | None:
        """Share of correct attempts; None without attempts."""
        return self.correct / self.attempts if self.attempts else None


@dataclass(frozen=True, slots=True)
class Summary:
    """All figures of one problem set.

    `estimates` maps a name (`avg@8`, `pass@4`, `maj@8`, `tool_failure_rate`) to its value and interval; a rate
    without a denominator is left out.
    """

    name: str
    problems: int
    samples: int
    attempts: int
    failed: int
    """Attempts that failed for reasons of ours and enter no figure."""
    estimates: dict[str, Estimate]
    rows: list[ProblemRow]

    @property
    def complete(self) -> bool:
        """Whether every problem has all its attempts."""
        return all(r.attempts == self.samples for r in self.rows)


def summarise_trajectories(name: str, trajectories: Iterable[Trajectory], samples: int, **options: object) -> Summary:
    """:func:`summarise` of trajectories."""
    return summarise(name, [outcome_of(t) for t in trajectories], samples, **options)  # type: ignore[arg-type]


def summarise(
    name: str,
    outcomes: Sequence[Outcome],
    samples: int,
    *,
    pass_ks: Sequence[int] = (1,),
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Summary:
    """The figures of a problem set.

    avg@k is the mean over problems of the share of correct attempts; pass@k and maj@k rest on the problems that
    have k attempts. Rates are shares of attempts; the tool-failure rate is a share of calls.

    Args:
        outcomes: all attempts, at most `samples` a problem.
        samples: attempts that each problem should have: the k of avg@k and maj@k.
        pass_ks: the k of pass@k.
    """
    groups: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda o: o.sample):
        groups.setdefault(outcome.problem, []).append(outcome)
    counted = [kept for g in groups.values() if (kept := [o for o in g if not o.failed])]

    def estimate(top: Count, bottom: Count, least: int = 1) -> Estimate | None:
        chosen = [g for g in counted if len(g) >= least]
        return ratio_estimate(
            [top(g) for g in chosen],
            [bottom(g) for g in chosen],
            confidence=confidence,
            resamples=resamples,
            seed=seed,
        )

    def share(flag: Callable[[Outcome], float]) -> Estimate | None:
        return estimate(lambda g: sum(flag(o) for o in g), len)

    found = {f"avg@{samples}": estimate(lambda g: sum(o.score for o in g) / len(g), lambda g: 1)}
    for k in pass_ks:
        found[f"pass@{k}"] = estimate(lambda g, k=k: pass_at_k(len(g), _correct(g), k), lambda g: 1, k)
    found[f"maj@{samples}"] = estimate(lambda g: _majority(g, samples, seed), lambda g: 1, samples)
    found |= {
        "mean_turns": share(lambda o: o.turns),
        "mean_sampled_tokens": share(lambda o: o.sampled_tokens),
        "tool_call_rate": share(lambda o: o.tool_calls > 0),
        "mean_tool_calls": share(lambda o: o.tool_calls),
        "tool_failure_rate": estimate(
            lambda g: sum(o.tool_failures for o in g), lambda g: sum(o.tool_calls for o in g)
        ),
        "no_answer_rate": share(lambda o: o.answer is None),
        "truncation_rate": share(lambda o: o.truncated),
        "void_rate": share(lambda o: o.void),
        "undecided_rate": share(lambda o: o.undecided),
    }
    return Summary(
        name=name,
        problems=len(groups),
        samples=samples,
        attempts=sum(len(g) for g in counted),
        failed=sum(o.failed for o in outcomes),
        estimates={n: e for n, e in found.items() if e is not None},
        rows=[_row(g) for g in groups.values()],
    )


def _correct(group: Sequence[Outcome]) -> int:
    return sum(o.score == 1.0 for o in group)


def _majority(group: Sequence[Outcome], k: int, seed: int) -> float:
    return majority_at_k([vote_of(o.answer) for o in group], [o.score == 1.0 for o in group], k, seed)


def _row(group: Sequence[Outcome]) -> ProblemRow:
    first = group[0]
    kept = [o for o in group if not o.failed]
    votes = Counter("" if o.score == 1.0 else vote_of(o.answer) for o in kept if o.answer is not None)
    winner = max(votes, key=votes.__getitem__, default=None)
    spelled = next(
        (o.answer for o in kept if o.answer is not None and ("" if o.score == 1.0 else vote_of(o.answer)) == winner),
        None,
    )
    return ProblemRow(
        problem=first.problem,
        source=first.source,
        level=first.level,
        gold=first.gold,
        attempts=len(kept),
        correct=_correct(kept),
        failed=len(group) - len(kept),
        majority_answer=spelled,
        mean_turns=sum(o.turns for o in kept) / len(kept) if kept else 0.0,
        mean_tokens=sum(o.sampled_tokens for o in kept) / len(kept) if kept else 0.0,
    )


def vote_of(answer: str | None) -> Hashable | None:
    """What a wrong answer votes for: its exact number if it is one (`0.5`, `1/2`), else its text without spaces."""
    if answer is None:
        return None
    text = "".join(answer.split()).strip("$")
    if len(text) <= 40:
        try:
            numerator, slash, denominator = text.partition("/")
            value = Fraction(_decimal(numerator))
            return value / Fraction(_decimal(denominator)) if slash else value
        except (ValueError, ZeroDivisionError):
            pass
    return text


def _decimal(text: str) -> Decimal:
    """A finite decimal without an exponent (`1e999999999` would be a number of a billion digits)."""
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise ValueError(text) from error
    if not value.is_finite() or "e" in text.lower():
        raise ValueError(text)
    return value
