"""Batches of sequences, their parts of like length, and their tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_rl.sft.sequences import TrainingSequence


def batch_order(count: int, batch_size: int, steps: int, seed: int) -> Iterator[list[int]]:
    """Indices of `steps` batches of sequences 0 .. count - 1: epoch after epoch, each in a new random order."""
    rng = random.Random(f"batches/{seed}")
    stream = _endless(count, rng)
    for _ in range(steps):
        yield [next(stream) for _ in range(batch_size)]


def _endless(count: int, rng: random.Random) -> Iterator[int]:
    while True:
        order = list(range(count))
        rng.shuffle(order)
        yield from order


def split_by_length(indices: Sequence[int], lengths: Sequence[int], size: int) -> list[list[int]]:
    """The batch in parts of `size` of like length, so that little is padded.

    Lengths are put together within a batch only. Batches of like length would each hold one kind of
    demonstration (short: guesses; long: two programs), and, each being averaged over its own tokens, would
    give the kinds other weights than their shares.
    """
    ordered = sorted(indices, key=lengths.__getitem__)
    return [ordered[at : at + size] for at in range(0, len(ordered), size)]


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
