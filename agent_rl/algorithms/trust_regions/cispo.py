"""CISPO (arXiv 2506.13585): the clipped ratio is a weight, so a clipped token still learns."""

from __future__ import annotations

from agent_rl.algorithms import choices
from agent_rl.algorithms.ratios import LogRatio
from agent_rl.algorithms.tokens import ModelTokens
from agent_rl.algorithms.trust_regions.window import Surrogate, unbounded


def surrogate(tokens: ModelTokens, ratio: LogRatio, clip: choices.Cispo) -> Surrogate:
    """-sg[clip(r, ratio_min, ratio_max)] A log pi."""
    weight = ratio.value.detach().exp()
    high, low = weight > clip.ratio_max, weight < clip.ratio_min
    weight = weight.clamp(clip.ratio_min, clip.ratio_max)
    return unbounded(-weight * tokens.advantage * tokens.logp, high, low)
