"""The min-style clip shared by PPO's and CTPO's windows, in log space.

max(-A rho, -A clip(rho, lo, hi)) equals -A clamp(rho, -inf, hi) for A > 0 and -A clamp(rho, lo, inf) for A < 0;
a dual clip bounds the latter from above. So one clamp of the log-ratio with sign-dependent bounds gives value
and gradient (zero outside) with one exponential.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Surrogate:
    """A clip's result for the model tokens."""

    loss: Tensor
    """[M] differentiable."""
    high: Tensor
    """[M] bool: stopped (or, for soft forms, capped) at the upper bound."""
    low: Tensor
    """[M] bool: stopped at the lower bound."""
    dual: Tensor
    """[M] bool: stopped at the dual clip (A < 0, ratio too large)."""
    lower: Tensor
    """[M] log of the window's lower end (-inf where there is none)."""
    upper: Tensor
    """[M] log of the window's upper end (inf where there is none)."""


def windowed(log_ratio: Tensor, advantage: Tensor, lower: Tensor, upper: Tensor, dual: Tensor | None) -> Surrogate:
    """-A exp(log_ratio), clipped to the window on the side that the sign of A makes greedy. All [M]."""
    infinity = torch.full_like(advantage, float("inf"))
    gain, pain = advantage > 0, advantage < 0
    ceiling = torch.where(gain, upper, infinity if dual is None else dual)
    floor = torch.where(gain, -infinity, lower)
    loss = -advantage * torch.clamp(log_ratio, floor, ceiling).exp()
    detached = log_ratio.detach()
    over, under = detached > ceiling, detached < floor
    return Surrogate(loss, over & gain, under & pain, over & pain, lower, upper)


def unbounded(loss: Tensor, high: Tensor | None = None, low: Tensor | None = None) -> Surrogate:
    """A surrogate without a window; `high` / `low` mark capped tokens."""
    none = torch.zeros_like(loss, dtype=torch.bool)
    infinity = torch.full_like(loss.detach(), float("inf"))
    return Surrogate(loss, none if high is None else high, none if low is None else low, none, -infinity, infinity)
