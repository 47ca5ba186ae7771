"""No clip: the importance-weighted policy gradient, with an optional cap on the ratio."""

from __future__ import annotations

from agent_rl.algorithms import choices
from agent_rl.algorithms.ratios import LogRatio
from agent_rl.algorithms.tokens import ModelTokens
from agent_rl.algorithms.trust_regions.window import Surrogate, unbounded


def surrogate(tokens: ModelTokens, ratio: LogRatio, clip: choices.NoClip) -> Surrogate:
    """-A min(r, cap), or -A sg[min(r, cap)] log pi."""
    value = ratio.value.exp()
    high = None
    if clip.ratio_cap is not None:
        high = value.detach() > clip.ratio_cap
        value = value.clamp(max=clip.ratio_cap)
    if clip.gradient == "ratio":
        return unbounded(-tokens.advantage * value, high)
    return unbounded(-tokens.advantage * value.detach() * tokens.logp, high)
