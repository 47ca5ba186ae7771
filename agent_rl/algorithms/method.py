"""The front door: one signature for every method, from flat tensors to a per-token loss and diagnostics.

recipe = resolve(MethodSettings(preset="ctpo_cppo"))
loss, diagnostics = policy_loss(logp, logp_old, logp_mu, advantage, mask, segments, recipe)
total = aggregate(loss, mask, segments, recipe.aggregation.mode, counts)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from agent_rl.algorithms.choices import Recipe
from agent_rl.algorithms.diagnostics import Diagnostics, collect
from agent_rl.algorithms.divergences import TopK
from agent_rl.algorithms.evaluation import Evaluation, evaluate
from agent_rl.algorithms.tokens import model_tokens

Method = Callable[..., tuple[Tensor, Any]]
"""(logp, logp_old, logp_mu, advantage, mask, segments, settings, *, ...) -> per-token loss, diagnostics."""


def policy_loss(
    logp: Tensor,
    logp_old: Tensor | None,
    logp_mu: Tensor | None,
    advantage: Tensor,
    mask: Tensor,
    segments: Tensor,
    settings: Recipe,
    *,
    topk: TopK | None = None,
    logp_ref: Tensor | None = None,
    entropy: Tensor | None = None,
    trajectory_ids: Tensor | None = None,
) -> tuple[Tensor, Diagnostics]:
    """Per-token loss ([tokens], float32, zero at masked positions) and diagnostics of one micro-batch.

    Flat tensors of [tokens]: several whole trajectories one after the other, tool tokens included or not.

    logp: log pi of the sampled tokens, with gradient. logp_old: the trainer's snapshot. logp_mu: the sampler's
    (either may be None when no part of the method reads it). advantage: broadcast to tokens. mask: 1 at model
    tokens. segments: int64 trajectory index, contiguous and non-decreasing. Whatever stands at a masked
    position, NaN and inf included, changes nothing. Works in float64 if `logp` is float64.

    logp_ref, entropy: [tokens], for the optional regularisers. trajectory_ids: [S] names for the extremes.
    Raises ValueError naming the tensor when one is missing, misshapen or not finite at a model token.
    """
    found = _evaluate(logp, logp_old, logp_mu, advantage, mask, segments, settings, topk, logp_ref, entropy)
    return found.tokens.put(found.loss), collect(found, trajectory_ids)


def explain(
    logp: Tensor,
    logp_old: Tensor | None,
    logp_mu: Tensor | None,
    advantage: Tensor,
    mask: Tensor,
    segments: Tensor,
    settings: Recipe,
    *,
    topk: TopK | None = None,
    logp_ref: Tensor | None = None,
    entropy: Tensor | None = None,
) -> dict[str, Tensor]:
    """What happened to each token, for recordings: a dict of detached [tokens] tensors, 0 at masked positions.

    Always: ratio, log_ratio, prefix_log_ratio (L_t), index (t), window_lower, window_upper (log space, infinite
    without a window), gate, weight (mismatch), loss, reason (int64, see `Reason`). With a divergence gate:
    divergence. With the prefix budget also position_weight (w_t) and budget (c_t).
    """
    with torch.no_grad():
        found = _evaluate(logp, logp_old, logp_mu, advantage, mask, segments, settings, topk, logp_ref, entropy)
        details = {
            "ratio": found.ratio.value.exp(),
            "log_ratio": found.ratio.value,
            "prefix_log_ratio": found.ratio.prefix,
            "index": found.tokens.index,
            "window_lower": found.clip.lower,
            "window_upper": found.clip.upper,
            "gate": found.gate(),
            "weight": torch.ones_like(found.loss) if found.weight is None else found.weight.weight,
            "loss": found.loss,
            "reason": found.reason(),
        }
        for other in (found.diverged, found.dropped):
            if other is not None:
                details["divergence"] = other[1]
        if found.budget is not None:
            details["divergence"] = found.budget.divergence
            details["position_weight"] = found.budget.weight
            details["budget"] = found.budget.threshold
        return {name: found.tokens.put(value.detach()) for name, value in details.items()}


def load_method(settings: Recipe) -> Method:
    """The loss function of a recipe: `policy_loss`, or the function that the recipe names by import path."""
    if settings.function is None:
        return policy_loss
    module, _, name = settings.function.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"method function {settings.function!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ValueError(f"method function {settings.function!r} is a {type(found).__name__}, not a function")
    return found


def _evaluate(
    logp: Tensor,
    logp_old: Tensor | None,
    logp_mu: Tensor | None,
    advantage: Tensor,
    mask: Tensor,
    segments: Tensor,
    settings: Recipe,
    topk: TopK | None,
    logp_ref: Tensor | None,
    entropy: Tensor | None,
) -> Evaluation:
    tokens = model_tokens(logp, logp_old, logp_mu, advantage, mask, segments)
    reference = None if logp_ref is None else tokens.take(logp_ref)
    return evaluate(tokens, settings, topk, reference, None if entropy is None else tokens.take(entropy))
