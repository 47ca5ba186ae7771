"""From per-token losses to one number, with the counts of the whole optimiser step handed in.

Micro-batches and ranks add up: the sum of `aggregate` over them is the full batch's loss, however it was cut
(a trajectory stays whole). Gradient averaging over data-parallel ranks must be undone by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Counts:
    """Of one optimiser step: all micro-batches, all ranks. Filtered trajectories and dead groups are not in them."""

    tokens: float
    """Model tokens (mask 1), clipped and gated ones included."""
    sequences: float
    """Trajectories with at least one model token."""
    horizon: float = 0.0
    """The constant of `seq_mean_token_sum_norm`, in tokens (for example the response budget)."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.tokens + other.tokens, self.sequences + other.sequences, max(self.horizon, other.horizon))


def count(mask: Tensor, segments: Tensor, horizon: float = 0.0) -> Counts:
    """Counts of one micro-batch ([tokens] mask and trajectory index)."""
    present = segments[mask.bool()]
    return Counts(float(present.numel()), float(torch.unique_consecutive(present).numel()), horizon)


def aggregate(per_token_loss: Tensor, mask: Tensor, segments: Tensor, mode: str, counts: Counts) -> Tensor:
    """This micro-batch's share of the step's loss, a scalar in the dtype of `per_token_loss` ([tokens]).

    Modes: `token_mean` (DAPO), `seq_mean_token_mean` (GRPO), `seq_mean_token_sum_norm` (Dr. GRPO, divides each
    trajectory's sum by `counts.horizon`). Denominators are at least 1, so an empty batch gives 0.
    Raises ValueError for an unknown mode or a horizon that is not positive.
    """
    # Model tokens are taken out first, so that neither values nor the order of summation depend on the others.
    positions = mask.bool().nonzero().squeeze(1)
    loss = per_token_loss.index_select(0, positions)
    if mode == "token_mean":
        return loss.sum() / max(counts.tokens, 1.0)
    if mode == "seq_mean_token_sum_norm":
        if not counts.horizon > 0:
            raise ValueError(
                f"counts.horizon={counts.horizon} with mode {mode}; set aggregation.horizon to the response budget"
            )
        return loss.sum() / counts.horizon / max(counts.sequences, 1.0)
    if mode != "seq_mean_token_mean":
        raise ValueError(f"mode={mode!r}; expected seq_mean_token_mean, token_mean or seq_mean_token_sum_norm")
    owner = segments.index_select(0, positions).long()
    length = torch.bincount(owner).clamp(min=1).to(loss.dtype)
    return (loss / length[owner]).sum() / max(counts.sequences, 1.0)
