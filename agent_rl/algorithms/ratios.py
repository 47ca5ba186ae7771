"""Likelihood ratios over model tokens: token, prefix, sequence and their variants.

Prefix ratios carry the whole prefix in their value and only the last factor in their gradient:
log rho_t = sg[L_t] + log pi(y_t) - sg[log pi(y_t)]. Letting autograd through the sum would weight a token by
the number of tokens after it, which is another (and wrong) estimator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_rl.algorithms import choices
from agent_rl.algorithms.tokens import ModelTokens


@dataclass(frozen=True)
class LogRatio:
    """Logarithm of the ratio in front of the advantage, after the clamps."""

    value: Tensor
    """[M] differentiable."""
    token: Tensor
    """[M] l_t = log pi - log b, clamped, detached."""
    prefix: Tensor
    """[M] L_t = sum of l over the trajectory's model tokens up to t, detached (for every kind of ratio)."""
    token_clamped: Tensor
    """[M] bool, |l_t| was above the clamp."""
    cumulative_clamped: Tensor
    """[M] bool, the cumulative exponent was above its clamp."""


def log_ratio(tokens: ModelTokens, ratio: choices.Ratio, clamp: float, cumulative_clamp: float) -> LogRatio:
    """The ratio named by `ratio` against its anchor. Raises ValueError when the anchor was not handed in."""
    raw = tokens.logp - anchor(tokens, ratio.anchor)
    difference = raw.clamp(-clamp, clamp)
    token = difference.detach()
    prefix = tokens.prefix_sum(token)
    value = KINDS[ratio.kind](tokens, difference, prefix, clamp)
    token_clamped = raw.detach().abs() > clamp
    if ratio.kind in ("token", "sequence"):
        return LogRatio(value, token, prefix, token_clamped, torch.zeros_like(token_clamped))
    over = value.detach() > cumulative_clamp
    return LogRatio(value.clamp(max=cumulative_clamp), token, prefix, token_clamped, over)


def anchor(tokens: ModelTokens, name: choices.Anchor) -> Tensor:
    """[M] log-probs of the anchor policy, detached. ValueError when they were not handed in."""
    found = tokens.logp_old if name == "old" else tokens.logp_mu
    if found is None:
        raise ValueError(f"this method is anchored on logp_{name}, which is None; hand in logp_{name}")
    return found


def last_factor(value: Tensor, logp: Tensor) -> Tensor:
    """`value` (detached) with the gradient of log pi(y_t) alone."""
    return value.detach() + (logp - logp.detach())


def _token(tokens: ModelTokens, difference: Tensor, prefix: Tensor, clamp: float) -> Tensor:
    return difference


def _prefix(tokens: ModelTokens, difference: Tensor, prefix: Tensor, clamp: float) -> Tensor:
    return last_factor(prefix, tokens.logp)


def _prefix_geomean(tokens: ModelTokens, difference: Tensor, prefix: Tensor, clamp: float) -> Tensor:
    return last_factor(prefix / tokens.index, tokens.logp)


def _sequence(tokens: ModelTokens, difference: Tensor, prefix: Tensor, clamp: float) -> Tensor:
    return tokens.mean(difference)[tokens.segment]


def _sequence_token(tokens: ModelTokens, difference: Tensor, prefix: Tensor, clamp: float) -> Tensor:
    return last_factor(tokens.mean(difference.detach())[tokens.segment], tokens.logp)


def _prefix_min(tokens: ModelTokens, difference: Tensor, prefix: Tensor, clamp: float) -> Tensor:
    now = difference.detach()
    return last_factor(tokens.minimum_before(now, clamp) + now, tokens.logp)


KINDS: dict[str, Callable[[ModelTokens, Tensor, Tensor, float], Tensor]] = {
    "token": _token,
    "prefix": _prefix,
    "prefix_geomean": _prefix_geomean,
    "sequence": _sequence,
    "sequence_token": _sequence_token,
    "prefix_min": _prefix_min,
}
