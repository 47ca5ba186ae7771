"""Additive terms: KL(pi || reference) estimates (Schulman, "Approximating KL divergence") and the entropy bonus."""

from __future__ import annotations

from torch import Tensor

from agent_rl.algorithms import choices

_EXPONENT = 20.0


def reference_kl(logp: Tensor, logp_ref: Tensor, settings: choices.ReferenceKl) -> Tensor:
    """[M] beta * estimate, differentiable in `logp`. The difference is clamped to +-20 before the exponential.

    k1 is unbiased as a value, but the gradient of its mean is zero in expectation: use k2 or k3 in a loss.
    """
    difference = (logp - logp_ref.detach()).clamp(-_EXPONENT, _EXPONENT)
    if settings.estimator == "k1":
        return settings.beta * difference
    if settings.estimator == "k2":
        return settings.beta * 0.5 * difference.square()
    return settings.beta * ((-difference).expm1() + difference)
