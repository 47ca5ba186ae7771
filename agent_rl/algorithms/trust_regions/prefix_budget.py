"""CPPO's gate (arXiv 2606.10968, Eq. 8-11, 22; App. C): a token test and a running budget on divergence.

Only outward updates, A (r - 1) > 0, are gated. T is the trajectory's own number of model tokens and sums run
over all of them, kept or not, so neither padding nor tool text changes the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agent_rl.algorithms import choices
from agent_rl.algorithms.divergences import TopK, divergence
from agent_rl.algorithms.ratios import anchor
from agent_rl.algorithms.tokens import ModelTokens


@dataclass(frozen=True)
class PrefixGate:
    """The gate and everything it was decided from; all detached."""

    gate: Tensor
    """[M] factor on the loss, 0 or 1 (in between when soft)."""
    divergence: Tensor
    """[M] D_t."""
    weight: Tensor
    """[M] w_t, from 1 down to w_min."""
    threshold: Tensor
    """[M] c_t = min(delta, delta + delta_b W_{t-1} - S_{t-1})."""
    by_token: Tensor
    """[M] bool: gated, and w_t D_t is above delta."""
    by_budget: Tensor
    """[M] bool: gated by the running budget alone."""
    used: Tensor
    """[S] Z / W: weighted mean divergence of each whole trajectory."""
    budget: Tensor
    """[S] delta_b of each trajectory."""


def gate(tokens: ModelTokens, settings: choices.PrefixBudget, topk: TopK | None) -> PrefixGate:
    """Decide every model token. Linear in tokens (a sort per call when adaptive)."""
    with torch.no_grad():
        found = divergence(tokens, settings.divergence, settings.anchor, topk)
        weight, weight_before = position_weights(tokens, settings.w_min)
        spent = weight * found
        spent_before = tokens.prefix_sum_before(spent)
        spent_through = spent_before + spent
        budget = _budget(tokens, found, settings)
        allowance = settings.delta + budget[tokens.segment] * weight_before
        threshold = (allowance - spent_before).clamp(max=settings.delta)
        outward = tokens.advantage.sign() * (tokens.logp.detach() - anchor(tokens, settings.anchor)) > 0
        closed = outward & (spent > threshold)
        if settings.soft:
            excess = torch.maximum(spent / settings.delta, spent_through / allowance)
            factor = torch.where(outward, 1 / excess.clamp(min=1.0), torch.ones_like(excess))
        else:
            factor = (~closed).to(found.dtype)
        by_token = closed & (spent > settings.delta)
        total_weight = tokens.last(weight_before + weight).clamp(min=torch.finfo(found.dtype).tiny)
        used = torch.where(tokens.counts > 0, tokens.last(spent_through) / total_weight, 0.0)
        return PrefixGate(factor, found, weight, threshold, by_token, closed & ~by_token, used, budget)


def position_weights(tokens: ModelTokens, w_min: float) -> tuple[Tensor, Tensor]:
    """[M] w_t = 1 - (1 - w_min)(t - 1)/(T - 1), and W_{t-1}, the sum of the earlier ones (closed form)."""
    before = tokens.index - 1
    slope = (1 - w_min) / (tokens.length - 1).clamp(min=1.0)
    return 1 - slope * before, before - slope * before * (before - 1) / 2


def _budget(tokens: ModelTokens, found: Tensor, settings: choices.PrefixBudget) -> Tensor:
    if not settings.adaptive:
        return found.new_full((tokens.counts.numel(),), settings.delta_b)
    high = tokens.quantile(found, settings.quantile)
    return high.clamp(min=settings.delta_b).clamp(max=settings.ceiling * settings.delta_b)
