"""From trajectories to rows, mini-batches and micro-batches. Orders are functions of (rows, seed) alone."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from agent_rl.types import Trajectory


@dataclass(frozen=True, slots=True, eq=False)
class TrainRow:
    """One trajectory, ready for the loss. Tensors have shape [length] and live on the CPU."""

    key: str
    """Name of the trajectory within its rollout batch."""
    group: str
    """Name of the problem it is an attempt at."""
    ids: Tensor
    """int64 token ids."""
    loss_mask: Tensor
    """bool, true where the policy sampled the token."""
    logp_mu: Tensor
    """float32, the sampler's log-probability at model tokens, 0 elsewhere."""
    weight_versions: Tensor
    """int64, the sampler's weight version at model tokens, -1 elsewhere."""
    advantage: float

    @property
    def length(self) -> int:
        return self.ids.numel()

    @property
    def model_tokens(self) -> int:
        return int(self.loss_mask.sum())


def row_from(trajectory: Trajectory, advantage: float) -> TrainRow:
    """The row of `trajectory`.

    Raises ValueError, naming the trajectory, if it is empty, if its first token was sampled (nothing predicts
    it), or if its advantage or a sampler's log-prob is not finite.
    """
    mask = torch.tensor(trajectory.loss_mask, dtype=torch.bool)
    logp_mu = torch.tensor(trajectory.logprobs, dtype=torch.float32)
    if mask.numel() == 0:
        raise ValueError(f"trajectory {trajectory.key!r} has no tokens; leave it out of the batch")
    if mask[0]:
        raise ValueError(f"trajectory {trajectory.key!r} starts with a sampled token; it needs a prompt before it")
    if not torch.isfinite(logp_mu).all():
        at = int((~torch.isfinite(logp_mu)).nonzero()[0])
        raise ValueError(f"trajectory {trajectory.key!r}: the sampler's log-prob of token {at} is {logp_mu[at]}")
    if not torch.isfinite(torch.tensor(advantage)):
        raise ValueError(f"trajectory {trajectory.key!r}: advantage={advantage} is not finite")
    return TrainRow(
        key=trajectory.key,
        group=trajectory.problem.id,
        ids=torch.tensor(trajectory.ids, dtype=torch.int64),
        loss_mask=mask,
        logp_mu=logp_mu,
        weight_versions=torch.tensor(trajectory.weight_versions, dtype=torch.int64),
        advantage=float(advantage),
    )


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Rows that are trained on together: a rollout batch or one of its mini-batches."""

    rows: tuple[TrainRow, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for row in self.rows:
            if row.key in seen:
                raise ValueError(f"two rows are named {row.key!r}; names are unique within a batch")
            seen.add(row.key)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> int:
        """All tokens."""
        return sum(row.length for row in self.rows)

    @property
    def model_tokens(self) -> int:
        """Tokens that are trained on."""
        return sum(row.model_tokens for row in self.rows)

    @property
    def sequences(self) -> int:
        """Rows with at least one model token."""
        return sum(row.model_tokens > 0 for row in self.rows)


def batch_from(pairs: Iterable[tuple[Trajectory, float]]) -> TrainBatch:
    """The batch of (trajectory, advantage) pairs, in their order."""
    return TrainBatch(tuple(row_from(trajectory, advantage) for trajectory, advantage in pairs))


def minibatches(batch: TrainBatch, updates: int, seed: int) -> list[TrainBatch]:
    """Cut `batch` into at most `updates` parts of equal row counts (+-1).

    Groups are shuffled by `seed` and laid side by side; the cut is by trajectory, so a group may span two
    parts. Fewer parts come back when there are fewer rows.
    """
    groups: dict[str, list[TrainRow]] = {}
    for row in batch.rows:
        groups.setdefault(row.group, []).append(row)
    names = list(groups)
    random.Random(seed).shuffle(names)
    rows = [row for name in names for row in groups[name]]
    parts = min(updates, len(rows))
    edges = [len(rows) * i // parts for i in range(parts + 1)] if parts else [0]
    return [TrainBatch(tuple(rows[a:b])) for a, b in pairwise(edges)]


def microbatches(rows: Sequence[TrainRow], budget: int, *, padded: bool) -> list[tuple[TrainRow, ...]]:
    """Group rows into passes of at most `budget` tokens, longest first; a trajectory is never split.

    With `padded` a pass costs its longest row times its number of rows, otherwise the sum of its lengths. A
    row longer than the budget is a pass of its own. Passes are then evened out: the smallest bound that gives
    no more of them is used.
    """
    ordered = sorted(rows, key=lambda row: -row.length)
    best = _fill(ordered, budget, padded)
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        found = _fill(ordered, middle, padded)
        if len(found) <= len(best):
            best, high = found, middle
        else:
            low = middle + 1
    return best


def _fill(ordered: Sequence[TrainRow], bound: int, padded: bool) -> list[tuple[TrainRow, ...]]:
    passes: list[tuple[TrainRow, ...]] = []
    current: list[TrainRow] = []
    used = 0
    for row in ordered:
        cost = current[0].length if padded and current else row.length
        if current and used + cost > bound:
            passes.append(tuple(current))
            current, used, cost = [], 0, row.length
        current.append(row)
        used += cost
    if current:
        passes.append(tuple(current))
    return passes


def assign(passes: Sequence[tuple[TrainRow, ...]], ranks: int) -> list[list[tuple[TrainRow, ...]]]:
    """Deal passes to ranks, largest first to the least loaded; each rank's list keeps the given order."""
    load = [0] * ranks
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    size = [sum(row.length for row in rows) for rows in passes]
    for index in sorted(range(len(passes)), key=lambda i: (-size[i], i)):
        rank = min(range(ranks), key=lambda r: (load[r], len(dealt[r]), r))
        dealt[rank].append(index)
        load[rank] += size[index]
    return [[passes[i] for i in sorted(indices)] for indices in dealt]
