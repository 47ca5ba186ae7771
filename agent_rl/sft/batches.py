"""Batches of sequences of like length, and their tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_rl.sft.sequences import TrainingSequence

_POOL = 32
"""Batches whose sequences are sorted by length together: little padding, much of the shuffling kept."""


def batch_order(lengths: Sequence[int], batch_size: int, steps: int, seed: int) -> Iterator[list[int]]:
    """Indices of `steps` batches: epoch after epoch in new order, lengths alike within a batch."""
    rng = random.Random(f"batches/{seed}")
    pending: list[list[int]] = []
    stream = _endless(len(lengths), rng)
    for _ in range(steps):
        if not pending:
            pool = sorted((next(stream) for _ in range(_POOL * batch_size)), key=lengths.__getitem__)
            pending = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
            rng.shuffle(pending)
        yield pending.pop()


def _endless(count: int, rng: random.Random) -> Iterator[int]:
    while True:
        order = list(range(count))
        rng.shuffle(order)
        yield from order


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Right-padded ids `[rows, columns]`, and the positions whose next token is learnt.

    `columns_kept` are the columns where any row has a target; `targets` is `[rows, len(columns_kept)]`, with
    `IGNORED` where a row has none there.
    """

    ids: Tensor
    lengths: Tensor
    columns_kept: Tensor
    targets: Tensor
    learnt: int


IGNORED = -100


def token_batch(sequences: Sequence[TrainingSequence], pad: int) -> TokenBatch:
    """Pad sequences on the right and shift targets by one."""
    width = max(len(s.ids) for s in sequences)
    ids = torch.full((len(sequences), width), pad, dtype=torch.long)
    targets = torch.full((len(sequences), width), IGNORED, dtype=torch.long)
    for row, s in enumerate(sequences):
        tokens = torch.tensor(s.ids)
        ids[row, : len(s.ids)] = tokens
        learnt = torch.tensor(s.mask[1:], dtype=torch.bool)
        targets[row, : len(s.ids) - 1][learnt] = tokens[1:][learnt]
    kept = (targets != IGNORED).any(0).nonzero().squeeze(1)
    return TokenBatch(
        ids=ids,
        lengths=torch.tensor([len(s.ids) for s in sequences]),
        columns_kept=kept,
        targets=targets[:, kept],
        learnt=int((targets != IGNORED).sum()),
    )
