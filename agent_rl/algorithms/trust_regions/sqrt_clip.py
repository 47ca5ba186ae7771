"""CTPO's window (arXiv 2605.07331): the log-ratio may wander as a random walk does, like t**power."""

from __future__ import annotations

from agent_rl.algorithms import choices
from agent_rl.algorithms.ratios import LogRatio
from agent_rl.algorithms.tokens import ModelTokens
from agent_rl.algorithms.trust_regions.window import Surrogate, windowed


def surrogate(tokens: ModelTokens, ratio: LogRatio, clip: choices.SqrtClip) -> Surrogate:
    """max(-A rho, -A clip(rho, e^{-eps_lo s}, e^{eps_hi s})), s = t**power; for A < 0 at most -A e^{dual s}."""
    scale = tokens.index.sqrt() if clip.power == 0.5 else tokens.index.pow(clip.power)
    dual = None if clip.dual is None else clip.dual * scale
    return windowed(ratio.value, tokens.advantage, -clip.eps_lo * scale, clip.eps_hi * scale, dual)
