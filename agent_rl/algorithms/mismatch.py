"""Corrections for the gap between sampler mu and trainer snapshot pi_old. Weights are detached.

A ratio anchored on mu contains the gap already, so `Recipe` refuses to combine it with a weight.
Products over long answers reject systematically; use the geometric mask to reject and products to weigh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_rl.algorithms import choices
from agent_rl.algorithms.ratios import anchor
from agent_rl.algorithms.tokens import ModelTokens

_EXPONENT = 20.0


@dataclass(frozen=True)
class MismatchWeight:
    """Factor on the loss and what it came from; all detached."""

    weight: Tensor
    """[M] factor."""
    truncated: Tensor
    """[M] bool: the cap was in effect, or the token was dropped."""
    clamped: Tensor
    """[M] bool: an exponent was beyond +-20."""


def mismatch_weight(tokens: ModelTokens, settings: choices.Mismatch) -> MismatchWeight | None:
    """The factor named by `settings` (None for kind none). ValueError when logp_old or logp_mu is missing."""
    if settings.kind == "none":
        return None
    with torch.no_grad():
        raw = anchor(tokens, "old") - anchor(tokens, "mu")
        log = raw.clamp(-_EXPONENT, _EXPONENT)
        total = _TOTALS[settings.kind](tokens, log)
        ratio = total.clamp(-_EXPONENT, _EXPONENT).exp()
        clamped = (raw.abs() > _EXPONENT) | (total.abs() > _EXPONENT)
        if settings.kind.endswith("_tis"):
            return MismatchWeight(ratio.clamp(max=settings.cap), ratio > settings.cap, clamped)
        dropped = torch.zeros_like(clamped)
        if settings.lo is not None:
            dropped = dropped | (ratio < settings.lo)
        if settings.hi is not None:
            dropped = dropped | (ratio > settings.hi)
        kept = (~dropped).to(ratio.dtype)
        return MismatchWeight(kept * ratio if settings.kind == "icepop" else kept, dropped, clamped)


def _token(tokens: ModelTokens, log: Tensor) -> Tensor:
    return log


def _prefix(tokens: ModelTokens, log: Tensor) -> Tensor:
    return tokens.prefix_sum(log)


def _sequence(tokens: ModelTokens, log: Tensor) -> Tensor:
    return tokens.last(tokens.prefix_sum(log))[tokens.segment]


def _geometric(tokens: ModelTokens, log: Tensor) -> Tensor:
    return _sequence(tokens, log) / tokens.length.clamp(min=1.0)


_TOTALS: dict[str, Callable[[ModelTokens, Tensor], Tensor]] = {
    "token_tis": _token,
    "prefix_tis": _prefix,
    "sequence_tis": _sequence,
    "icepop": _token,
    "sequence_mask": _sequence,
    "geometric_mask": _geometric,
}


def rejected(tokens: ModelTokens, settings: choices.Mismatch) -> Tensor:
    """[S] bool: trajectories that a sequence or geometric mask drops.

    Known before the update, so a trainer can take them out of the batch and of its counts.
    """
    if settings.kind not in ("sequence_mask", "geometric_mask"):
        return torch.zeros_like(tokens.counts, dtype=torch.bool)
    found = mismatch_weight(tokens, settings)
    dropped = torch.zeros(tokens.counts.numel(), dtype=torch.int64, device=tokens.counts.device)
    return dropped.index_add(0, tokens.segment, found.truncated.long()) > 0
