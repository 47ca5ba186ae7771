"""PPO's clip (Schulman et al. 2017) with clip-higher (arXiv 2503.14476) and dual clip (Ye et al. 2020)."""

from __future__ import annotations

import math

import torch

from agent_rl.algorithms import choices
from agent_rl.algorithms.ratios import LogRatio
from agent_rl.algorithms.tokens import ModelTokens
from agent_rl.algorithms.trust_regions.window import Surrogate, windowed


def surrogate(tokens: ModelTokens, ratio: LogRatio, clip: choices.PpoClip) -> Surrogate:
    """max(-A r, -A clip(r, 1 - eps_lo, 1 + eps_hi)); for A < 0 at most -A * dual."""
    lower = math.log1p(-clip.eps_lo) if clip.eps_lo < 1 else -math.inf
    full = torch.ones_like(tokens.advantage)
    dual = None if clip.dual is None else full * math.log(clip.dual)
    return windowed(ratio.value, tokens.advantage, full * lower, full * math.log1p(clip.eps_hi), dual)
