"""The same losses for trainers that hold padded [batch, time] tensors (TRL, verl). Imports neither.

docs/algorithms.md shows a TRL trainer and a verl registration in ten lines each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from agent_rl.algorithms.aggregation import Counts, aggregate, count
from agent_rl.algorithms.choices import Mismatch, Recipe
from agent_rl.algorithms.diagnostics import Diagnostics, summarise
from agent_rl.algorithms.method import policy_loss


def padded_policy_loss(
    logp: Tensor,
    logp_old: Tensor | None,
    logp_mu: Tensor | None,
    advantage: Tensor,
    mask: Tensor,
    recipe: Recipe,
    counts: Counts | None = None,
) -> tuple[Tensor, Tensor, Diagnostics]:
    """Loss (scalar), per-token loss ([batch, time]) and diagnostics of one padded micro-batch.

    All tensors [batch, time], one trajectory a row; advantage may be [batch]. `mask` is 1 at model tokens and 0
    at padding and tool tokens. `counts` are those of the whole optimiser step; by default this batch's own. Their
    horizon, when 0, is the recipe's, or the width.
    """
    rows, width = logp.shape
    segments = torch.arange(rows, device=logp.device).repeat_interleave(width)
    per_token = advantage.unsqueeze(1).expand(rows, width) if advantage.dim() == 1 else advantage

    def flat(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.reshape(-1)

    flat_mask = mask.reshape(-1)
    loss, diagnostics = policy_loss(
        logp.reshape(-1), flat(logp_old), flat(logp_mu), per_token.reshape(-1), flat_mask, segments, recipe
    )
    horizon = float(recipe.aggregation.horizon or width)
    if counts is None:
        counts = count(flat_mask, segments, horizon)
    elif not counts.horizon:
        counts = replace(counts, horizon=horizon)
    total = aggregate(loss, flat_mask, segments, recipe.aggregation.mode, counts)
    return total, loss.reshape(rows, width), diagnostics


VerlPolicyLoss = Callable[..., tuple[Tensor, dict[str, Any]]]


def verl_policy_loss(recipe: Recipe, old_log_prob_is: Literal["trainer", "sampler"] = "trainer") -> VerlPolicyLoss:
    """A function for verl's `register_policy_loss`.

    verl hands over one anchor, `old_log_prob`. `trainer`: it was recomputed by the trainer; corrections for the
    sampler then come from verl as `rollout_is_weights` and the recipe's own mismatch choice is not used.
    `sampler`: verl runs in bypass mode, so it holds the sampler's log-probs and serves as both anchors.
    verl's `global_batch_info` gives the counts of the step and is multiplied back by its data-parallel size.

    Raises ValueError for a recipe with a part anchored on mu when only the trainer's anchor is there.
    """
    part_on_mu = recipe.model_copy(update={"mismatch": Mismatch()}).needs_mu()
    if old_log_prob_is == "trainer":
        if part_on_mu:
            raise ValueError(
                f"{recipe.name} has a part anchored on the sampler; switch verl to bypass mode and pass "
                "old_log_prob_is='sampler'"
            )
        recipe = recipe.model_copy(update={"mismatch": Mismatch()})

    def loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        sampler = old_log_prob if old_log_prob_is == "sampler" else None
        _, per_token, diagnostics = padded_policy_loss(
            log_prob, old_log_prob, sampler, advantages, response_mask, recipe
        )
        if rollout_is_weights is not None:
            per_token = torch.where(response_mask.bool(), per_token * rollout_is_weights, per_token)
        total = _verl_aggregate(per_token, response_mask, loss_agg_mode, getattr(config, "global_batch_info", {}))
        return total, {f"actor/{name}": number for name, number in summarise(diagnostics).items()}

    return loss


def _verl_aggregate(per_token: Tensor, mask: Tensor, mode: str, step: dict[str, Any]) -> Tensor:
    rows, width = per_token.shape
    segments = torch.arange(rows, device=per_token.device).repeat_interleave(width)
    flat_mask = mask.reshape(-1)
    own = count(flat_mask, segments)
    counts = Counts(
        tokens=float(_or(step.get("batch_num_tokens"), own.tokens)),
        sequences=float(_or(step.get("global_batch_size"), own.sequences)),
        horizon=float(_or(step.get("loss_scale_factor"), width)),
    )
    total = aggregate(per_token.reshape(-1), flat_mask, segments, mode.replace("-", "_"), counts)
    return total * float(_or(step.get("dp_size"), 1))


def _or(value: Any, default: float) -> Any:
    return default if value is None else value
