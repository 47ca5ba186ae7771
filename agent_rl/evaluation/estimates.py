"""Estimates over problems: pass@k without bias, majority votes, ratios with bootstrap intervals. Pure functions."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

MAX_SUBSETS = 200
"""Subsets over which maj@k is averaged, when k is below the number of samples."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its bootstrap interval; `low` and `high` are None for fewer than two problems."""

    value: float
    low: float | None
    high: float | None
    problems: int
    """How many problems it rests on."""


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that at least one of `k` attempts drawn without replacement from `samples` is correct.

    The unbiased estimator 1 - C(n - c, k) / C(n, k) of Chen et al. 2021 (arXiv 2107.03374, eq. 1), in exact integers.
    """
    if not 1 <= k <= samples or not 0 <= correct <= samples:
        raise ValueError(f"pass@{k} of {correct} correct among {samples} attempts does not exist")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def majority(votes: Sequence[Hashable | None], correct: Sequence[bool]) -> float:
    """Whether the most frequent vote is correct: 1.0 or 0.0, or the share of correct ones among tied winners.

    None does not vote. All correct votes count as one answer, whatever their spelling.
    """
    counts: Counter[Hashable] = Counter()
    for vote, right in zip(votes, correct, strict=True):
        if right:
            counts[_RIGHT] += 1
        elif vote is not None:
            counts[vote] += 1
    if not counts:
        return 0.0
    most = max(counts.values())
    winners = [vote for vote, n in counts.items() if n == most]
    return (_RIGHT in winners) / len(winners)


_RIGHT = ("the right answer",)


def majority_at_k(votes: Sequence[Hashable | None], correct: Sequence[bool], k: int, seed: int = 0) -> float:
    """Mean of `majority` over the subsets of `k` attempts: all of them, or `MAX_SUBSETS` drawn by `seed`."""
    n = len(votes)
    if not 1 <= k <= n:
        raise ValueError(f"maj@{k} needs {k} attempts, there are {n}")
    if math.comb(n, k) <= MAX_SUBSETS:
        subsets: Sequence[Sequence[int]] = list(itertools.combinations(range(n), k))
    else:
        rng = random.Random(seed)
        subsets = [rng.sample(range(n), k) for _ in range(MAX_SUBSETS)]
    return sum(majority([votes[i] for i in s], [correct[i] for i in s]) for s in subsets) / len(subsets)


def ratio_estimate(
    numerators: Sequence[float],
    denominators: Sequence[float],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate | None:
    """sum(numerators) / sum(denominators) with a percentile bootstrap interval over problems.

    Args:
        numerators, denominators: one entry a problem. With all denominators 1 it is a mean over problems.

    Returns:
        None if the denominators sum to 0, as the failure rate of tool calls does when there were no calls.
    """
    top, bottom = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    total = bottom.sum()
    if total == 0:
        return None
    value = float(top.sum() / total)
    count = len(top)
    if count < 2:
        return Estimate(value, None, None, count)
    rng = np.random.default_rng(seed)
    ratios: list[np.ndarray] = []
    block = max(1, 1_000_000 // count)
    for start in range(0, resamples, block):
        drawn = rng.integers(count, size=(min(block, resamples - start), count))
        sums = bottom[drawn].sum(axis=1)
        # A resample without any denominator (no tool call in it) has no ratio.
        ratios.append(top[drawn].sum(axis=1)[sums > 0] / sums[sums > 0])
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(np.concatenate(ratios), [tail, 1.0 - tail])
    return Estimate(value, float(low), float(high), count)
