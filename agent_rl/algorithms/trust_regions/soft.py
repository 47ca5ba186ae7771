"""SAPO's soft gate (arXiv 2511.20347): a sigmoid of the ratio, slope 1 at ratio 1, flat far away."""

from __future__ import annotations

import torch

from agent_rl.algorithms import choices
from agent_rl.algorithms.ratios import LogRatio
from agent_rl.algorithms.tokens import ModelTokens
from agent_rl.algorithms.trust_regions.window import Surrogate, unbounded


def surrogate(tokens: ModelTokens, ratio: LogRatio, clip: choices.Soft) -> Surrogate:
    """-A (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A."""
    cold = torch.full_like(tokens.advantage, clip.tau_neg)
    tau = cold.masked_fill(tokens.advantage > 0, clip.tau_pos)
    gate = (4.0 / tau) * torch.sigmoid(tau * (ratio.value.exp() - 1))
    return unbounded(-tokens.advantage * gate)
