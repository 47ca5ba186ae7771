"""DPPO's gate (arXiv 2602.04879): drop outward updates of tokens that have diverged by more than delta."""

from __future__ import annotations

import torch
from torch import Tensor

from agent_rl.algorithms import choices
from agent_rl.algorithms.divergences import TopK, divergence
from agent_rl.algorithms.ratios import anchor
from agent_rl.algorithms.tokens import ModelTokens


def gate(tokens: ModelTokens, settings: choices.DivergenceMask, topk: TopK | None) -> tuple[Tensor, Tensor]:
    """[M] factor (0 iff A (r - 1) > 0 and D > delta) and [M] divergence; detached."""
    with torch.no_grad():
        found = divergence(tokens, settings.divergence, settings.anchor, topk)
        outward = tokens.advantage.sign() * (tokens.logp.detach() - anchor(tokens, settings.anchor)) > 0
        return (~(outward & (found > settings.delta))).to(found.dtype), found
