"""Token divergences between an anchor policy b (usually the sampler mu) and pi. None carries a gradient.

Binary forms see two categories, the sampled token and the rest, and need only its log-probs. Top-K forms see
the anchor's top K tokens, the sampled token and one bucket for everything else (arXiv 2602.04879, 2606.10968).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agent_rl.algorithms.ratios import anchor
from agent_rl.algorithms.tokens import ModelTokens

_SMALLEST_REST = 1e-12


@dataclass(frozen=True)
class TopK:
    """Log-probs at the sampler's K most likely tokens, for the top-K divergences."""

    logp: Tensor
    """[tokens, K] log pi at those ids."""
    logp_mu: Tensor
    """[tokens, K] log mu at those ids."""
    holds_sampled: Tensor
    """[tokens] bool: the sampled token is among the K."""


def divergence(tokens: ModelTokens, kind: str, against: str, topk: TopK | None) -> Tensor:
    """[M] D(b || pi) per model token, non-negative, in the working dtype."""
    with torch.no_grad():
        logp, reference = tokens.logp.detach(), anchor(tokens, against)
        if kind == "binary_tv":
            return (logp.exp() - reference.exp()).abs()
        if kind == "binary_kl":
            return _binary_kl(reference, logp)
        if kind == "k2":
            return 0.5 * _gap(logp, reference).square()
        if kind == "k3":
            gap = _gap(logp, reference)
            return torch.expm1(gap) - gap
        return _reduced(tokens, kind, topk, logp, reference)


def _gap(logp: Tensor, reference: Tensor) -> Tensor:
    return (logp - reference).clamp(-20.0, 20.0)


def _binary_kl(reference: Tensor, logp: Tensor) -> Tensor:
    b, p = reference.exp().clamp(max=1.0), logp.exp().clamp(max=1.0)
    rest_b, rest_p = (1 - b).clamp(min=_SMALLEST_REST), (1 - p).clamp(min=_SMALLEST_REST)
    sampled = b * _gap(reference, logp)
    return (sampled + rest_b * (rest_b.log() - rest_p.log())).clamp(min=0.0)


def _reduced(tokens: ModelTokens, kind: str, topk: TopK | None, logp: Tensor, reference: Tensor) -> Tensor:
    if topk is None:
        raise ValueError(
            f"divergence={kind} needs topk=TopK(logp, logp_mu, holds_sampled); or choose a binary divergence"
        )
    p = tokens.take(topk.logp.detach()).exp()
    b = tokens.take(topk.logp_mu.detach()).exp()
    outside = 1 - tokens.take(topk.holds_sampled)
    p = torch.cat([p, (logp.exp() * outside).unsqueeze(1)], dim=1)
    b = torch.cat([b, (reference.exp() * outside).unsqueeze(1)], dim=1)
    rest_p, rest_b = (1 - p.sum(1)).clamp(min=_SMALLEST_REST), (1 - b.sum(1)).clamp(min=_SMALLEST_REST)
    if kind == "topk_tv":
        return 0.5 * ((p - b).abs().sum(1) + (rest_p - rest_b).abs())
    small = torch.finfo(p.dtype).tiny
    known = (b * (b.clamp(min=small).log() - p.clamp(min=small).log())).sum(1)
    return (known + rest_b * (rest_b.log() - rest_p.log())).clamp(min=0.0)
