"""TRM's gate (arXiv 2512.23075): a trajectory outside the trust region is dropped as a whole.

The verdict depends on pi, so it is not known when an optimiser step's counts are made: dropped trajectories
stay in the denominators, as clipped tokens do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agent_rl.algorithms import choices
from agent_rl.algorithms.divergences import TopK, divergence
from agent_rl.algorithms.tokens import ModelTokens


def gate(tokens: ModelTokens, settings: choices.SequenceMask, topk: TopK | None) -> tuple[Tensor, Tensor]:
    """[M] factor (one value per trajectory) and [M] divergence; detached."""
    with torch.no_grad():
        found = divergence(tokens, settings.divergence, settings.anchor, topk)
        statistic = tokens.maximum(found) if settings.statistic == "max" else tokens.mean(found)
        return (statistic <= settings.delta).to(found.dtype)[tokens.segment], found
