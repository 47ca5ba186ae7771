"""One pass over the model tokens: ratio, clip, gates and mismatch weight, composed as a recipe says.

loss_t = weight_t * gate_t * clip(A, ratio)_t + beta KL_t - alpha H_t. Weight and gates carry no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from agent_rl.algorithms.choices import Recipe
from agent_rl.algorithms.divergences import TopK
from agent_rl.algorithms.mismatch import MismatchWeight, mismatch_weight
from agent_rl.algorithms.ratios import LogRatio, log_ratio
from agent_rl.algorithms.regularisers import reference_kl
from agent_rl.algorithms.tokens import ModelTokens
from agent_rl.algorithms.trust_regions import (
    cispo,
    divergence_mask,
    gmpo,
    no_clip,
    ppo_clip,
    prefix_budget,
    sequence_mask,
    soft,
    sqrt_clip,
)
from agent_rl.algorithms.trust_regions.prefix_budget import PrefixGate
from agent_rl.algorithms.trust_regions.window import Surrogate

CLIPS: dict[str, Callable[..., Surrogate]] = {
    "ppo_clip": ppo_clip.surrogate,
    "sqrt_clip": sqrt_clip.surrogate,
    "soft": soft.surrogate,
    "cispo": cispo.surrogate,
    "gmpo": gmpo.surrogate,
    "none": no_clip.surrogate,
}


class Reason(IntEnum):
    """Why a token does, or does not, push the policy; the first that applies, from the bottom up."""

    NOT_TRAINED = 0
    """A prompt, tool or separator token."""
    KEPT = 1
    """The gradient of the plain surrogate passes."""
    CLIPPED_HIGH = 2
    """The ratio is above the window (capped, for methods that keep a gradient there)."""
    CLIPPED_LOW = 3
    """The ratio is below the window."""
    DUAL_CLIPPED = 4
    """A < 0 and the ratio is above the dual clip."""
    OVER_BUDGET = 5
    """CPPO: the prefix's divergence budget is spent."""
    TOKEN_TEST = 6
    """CPPO: the token's own weighted divergence is above delta."""
    DIVERGED = 7
    """DPPO: the token's divergence is above delta."""
    SEQUENCE_DROPPED = 8
    """TRM: the trajectory is outside the trust region."""
    MISMATCH_DROPPED = 9
    """The sampler-trainer correction gave weight 0."""


@dataclass(frozen=True)
class Evaluation:
    """Everything the loss was made from; tensors over M model tokens."""

    tokens: ModelTokens
    ratio: LogRatio
    clip: Surrogate
    loss: Tensor
    """[M] differentiable, regularisers included."""
    budget: PrefixGate | None
    diverged: tuple[Tensor, Tensor] | None
    dropped: tuple[Tensor, Tensor] | None
    weight: MismatchWeight | None
    kl: Tensor | None
    entropy: Tensor | None

    def gate(self) -> Tensor:
        """[M] product of the gates (1 without one)."""
        factor = torch.ones_like(self.tokens.advantage)
        if self.budget is not None:
            factor = factor * self.budget.gate
        for other in (self.diverged, self.dropped):
            factor = factor if other is None else factor * other[0]
        return factor

    def reason(self) -> Tensor:
        """[M] int64 `Reason`."""
        found = torch.full_like(self.tokens.segment, Reason.KEPT)

        def put(where: Tensor, reason: Reason) -> None:
            found.masked_fill_(where, int(reason))

        put(self.clip.high, Reason.CLIPPED_HIGH)
        put(self.clip.low, Reason.CLIPPED_LOW)
        put(self.clip.dual, Reason.DUAL_CLIPPED)
        if self.budget is not None:
            put(self.budget.by_budget, Reason.OVER_BUDGET)
            put(self.budget.by_token, Reason.TOKEN_TEST)
        if self.diverged is not None:
            put(self.diverged[0] == 0, Reason.DIVERGED)
        if self.dropped is not None:
            put(self.dropped[0] == 0, Reason.SEQUENCE_DROPPED)
        if self.weight is not None:
            put(self.weight.weight == 0, Reason.MISMATCH_DROPPED)
        return found


def evaluate(
    tokens: ModelTokens, recipe: Recipe, topk: TopK | None, logp_ref: Tensor | None, entropy: Tensor | None
) -> Evaluation:
    """Compose the recipe over `tokens`. `logp_ref` and `entropy` are [M]; entropy may carry a gradient."""
    ratio = log_ratio(tokens, recipe.ratio, recipe.log_ratio_clamp, recipe.cumulative_clamp)
    clip = CLIPS[recipe.clip.kind](tokens, ratio, recipe.clip)
    loss = clip.loss
    budget = diverged = dropped = kl = None
    if recipe.prefix_budget is not None:
        budget = prefix_budget.gate(tokens, recipe.prefix_budget, topk)
        loss = loss * budget.gate
    if recipe.divergence_mask is not None:
        diverged = divergence_mask.gate(tokens, recipe.divergence_mask, topk)
        loss = loss * diverged[0]
    if recipe.sequence_mask is not None:
        dropped = sequence_mask.gate(tokens, recipe.sequence_mask, topk)
        loss = loss * dropped[0]
    weight = mismatch_weight(tokens, recipe.mismatch)
    if weight is not None:
        loss = loss * weight.weight
    if recipe.reference_kl.beta > 0:
        if logp_ref is None:
            raise ValueError("reference_kl.beta > 0 needs logp_ref; hand it in or set reference_kl.beta to 0")
        kl = reference_kl(tokens.logp, logp_ref, recipe.reference_kl)
        loss = loss + kl
    if recipe.entropy.coefficient > 0:
        if entropy is None:
            raise ValueError("entropy.coefficient > 0 needs entropy; hand it in or set entropy.coefficient to 0")
        loss = loss - recipe.entropy.coefficient * entropy
    return Evaluation(tokens, ratio, clip, loss, budget, diverged, dropped, weight, kl, entropy)
