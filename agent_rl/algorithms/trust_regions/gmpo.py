"""GMPO (arXiv 2507.20673): geometric mean of token ratios, each clipped in log space on its greedy side."""

from __future__ import annotations

import torch

from agent_rl.algorithms import choices
from agent_rl.algorithms.ratios import LogRatio
from agent_rl.algorithms.tokens import ModelTokens
from agent_rl.algorithms.trust_regions.window import Surrogate, unbounded


def surrogate(tokens: ModelTokens, ratio: LogRatio, clip: choices.Gmpo) -> Surrogate:
    """-A exp(mean over the trajectory of the clipped log-ratios), the same value on each of its tokens."""
    gain = tokens.advantage > 0
    clipped = torch.where(gain, ratio.value.clamp(max=clip.eps_hi), ratio.value.clamp(min=-clip.eps_lo))
    loss = -tokens.advantage * tokens.mean(clipped)[tokens.segment].exp()
    detached = ratio.value.detach()
    return unbounded(loss, gain & (detached > clip.eps_hi), (tokens.advantage < 0) & (detached < -clip.eps_lo))
