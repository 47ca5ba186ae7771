"""Every method again, as a float64 Python loop over tokens: slow, plain, and written from the formulas.

`reference` returns loss values and the exact derivative of sum_t upstream_t * loss_t by each log pi(y_t), where
ratios and weights that the method detaches are treated as constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from agent_rl.algorithms.choices import Recipe


@dataclass
class Token:
    """One model token of one trajectory; distributions are needed by the top-K divergences only."""

    place: int
    logp: float
    old: float
    mu: float
    advantage: float
    pi_top: list[float] | None = None
    mu_top: list[float] | None = None
    sampled_in_top: bool = False


def reference(recipe: Recipe, trajectories: list[list[Token]], size: int, upstream: list[float]):
    """Loss [size] and gradient [size] of the flat batch."""
    loss, gradient = [0.0] * size, [0.0] * size
    for tokens in filter(None, trajectories):
        for t, (value, slopes) in enumerate(_trajectory(recipe, tokens)):
            loss[tokens[t].place] = value
            for k, slope in slopes.items():
                gradient[tokens[k].place] += upstream[tokens[t].place] * slope
    return loss, gradient


def _trajectory(recipe: Recipe, tokens: list[Token]):
    ratios = _ratios(recipe, tokens)
    surrogates = _surrogates(recipe, tokens, ratios)
    scale = [1.0] * len(tokens)
    for gates in (
        _budget(recipe, tokens),
        _diverged(recipe, tokens),
        _dropped(recipe, tokens),
        _weights(recipe, tokens),
    ):
        scale = [a * b for a, b in zip(scale, gates, strict=True)]
    return [
        (factor * value, {k: factor * slope for k, slope in slopes.items()})
        for factor, (value, slopes) in zip(scale, surrogates, strict=True)
    ]


def _against(token: Token, anchor: str) -> float:
    return token.old if anchor == "old" else token.mu


def _ratios(recipe: Recipe, tokens: list[Token]):
    """(log-ratio, {token: slope}) per token."""
    clamp, cumulative = recipe.log_ratio_clamp, recipe.cumulative_clamp
    logs, inside = [], []
    for token in tokens:
        raw = token.logp - _against(token, recipe.ratio.anchor)
        logs.append(max(-clamp, min(clamp, raw)))
        inside.append(1.0 if -clamp <= raw <= clamp else 0.0)
    found = []
    for t in range(len(tokens)):
        kind = recipe.ratio.kind
        if kind == "token":
            found.append((logs[t], {t: inside[t]}))
            continue
        if kind == "sequence":
            n = len(tokens)
            found.append((sum(logs) / n, {k: inside[k] / n for k in range(n)}))
            continue
        total = 0.0
        for k in range(t + 1):
            total += logs[k]
        if kind == "prefix":
            value = total
        elif kind == "prefix_geomean":
            value = total / (t + 1)
        elif kind == "sequence_token":
            value = sum(logs) / len(tokens)
        else:
            value = logs[t] + (min(logs[:t]) if t else 0.0)
        found.append((min(value, cumulative), {t: 1.0 if value <= cumulative else 0.0}))
    return found


def _surrogates(recipe: Recipe, tokens: list[Token], ratios):
    clip = recipe.clip
    if clip.kind == "gmpo":
        return _gmpo(clip, tokens, ratios)
    found = []
    for t, (token, (log, slopes)) in enumerate(zip(tokens, ratios, strict=True)):
        a, rho = token.advantage, math.exp(log)
        through = {k: -a * rho * slope for k, slope in slopes.items()}
        if clip.kind in ("ppo_clip", "sqrt_clip"):
            found.append(_min_clip(clip, t + 1, a, rho, through))
        elif clip.kind == "soft":
            tau = clip.tau_pos if a > 0 else clip.tau_neg
            s = 1 / (1 + math.exp(-tau * (rho - 1))) if tau * (rho - 1) > -700 else 0.0
            slope = 4 * s * (1 - s) * rho
            found.append((-a * 4 / tau * s, {k: -a * slope * d for k, d in slopes.items()}))
        elif clip.kind == "cispo":
            weight = max(clip.ratio_min, min(clip.ratio_max, rho))
            found.append((-weight * a * token.logp, {t: -weight * a}))
        else:
            capped = rho if clip.ratio_cap is None else min(rho, clip.ratio_cap)
            if clip.gradient == "log_prob":
                found.append((-a * capped * token.logp, {t: -a * capped}))
            else:
                found.append((-a * capped, through if capped == rho else {}))
    return found


def _min_clip(clip, t: int, a: float, rho: float, through):
    if clip.kind == "ppo_clip":
        low, high, dual = 1 - clip.eps_lo, 1 + clip.eps_hi, clip.dual
    else:
        scale = t**clip.power
        low, high = math.exp(-clip.eps_lo * scale), math.exp(clip.eps_hi * scale)
        dual = None if clip.dual is None else math.exp(clip.dual * scale)
    plain, clipped = -a * rho, -a * min(max(rho, low), high)
    loss, slopes = (plain, through) if plain >= clipped else (clipped, {})
    if a < 0 and dual is not None and loss > -a * dual:
        loss, slopes = -a * dual, {}
    return loss, slopes


def _gmpo(clip, tokens: list[Token], ratios):
    n, logs, active = len(tokens), [], []
    for token, (log, slopes) in zip(tokens, ratios, strict=True):
        limit = min(log, clip.eps_hi) if token.advantage > 0 else max(log, -clip.eps_lo)
        logs.append(limit)
        active.append(next(iter(slopes.values())) if limit == log else 0.0)
    value = math.exp(sum(logs) / n)
    return [
        (-token.advantage * value, {k: -token.advantage * value * active[k] / n for k in range(n)}) for token in tokens
    ]


def divergence(kind: str, token: Token, anchor: str) -> float:
    b_log = _against(token, anchor)
    p, b = math.exp(token.logp), math.exp(b_log)
    gap = token.logp - b_log
    if kind == "binary_tv":
        return abs(p - b)
    if kind == "binary_kl":
        return max(b * (b_log - token.logp) + (1 - b) * math.log((1 - b) / (1 - p)), 0.0)
    if kind == "k2":
        return gap * gap / 2
    if kind == "k3":
        return math.exp(gap) - 1 - gap
    ps, bs = list(token.pi_top), list(token.mu_top)
    if not token.sampled_in_top:
        ps.append(p)
        bs.append(b)
    ps.append(1 - sum(ps))
    bs.append(1 - sum(bs))
    if kind == "topk_tv":
        return sum(abs(x - y) for x, y in zip(ps, bs, strict=True)) / 2
    return sum(y * math.log(y / x) for x, y in zip(ps, bs, strict=True))


def _outward(token: Token, anchor: str) -> bool:
    ratio = math.exp(token.logp - _against(token, anchor))
    return token.advantage * (ratio - 1) > 0


def _budget(recipe: Recipe, tokens: list[Token]) -> list[float]:
    settings = recipe.prefix_budget
    if settings is None:
        return [1.0] * len(tokens)
    n = len(tokens)
    d = [divergence(settings.divergence, token, settings.anchor) for token in tokens]
    delta_b = settings.delta_b
    if settings.adaptive:
        rank = settings.quantile * (n - 1)
        ordered = sorted(d)
        low = int(rank)
        high = min(low + 1, n - 1)
        q = ordered[low] + (ordered[high] - ordered[low]) * (rank - low)
        delta_b = min(settings.ceiling * delta_b, max(delta_b, q))
    spent = weight_sum = 0.0
    gates = []
    for t, token in enumerate(tokens):
        w = 1.0 if n == 1 else 1 - (1 - settings.w_min) * t / (n - 1)
        z = w * d[t]
        allowance = settings.delta + delta_b * weight_sum
        inside = z <= min(settings.delta, allowance - spent)
        if not _outward(token, settings.anchor):
            gates.append(1.0)
        elif settings.soft:
            x = max(z / settings.delta, (spent + z) / allowance)
            gates.append(min(1.0, 1 / x) if x > 0 else 1.0)
        else:
            gates.append(1.0 if inside else 0.0)
        spent += z
        weight_sum += w
    return gates


def _diverged(recipe: Recipe, tokens: list[Token]) -> list[float]:
    settings = recipe.divergence_mask
    if settings is None:
        return [1.0] * len(tokens)
    return [
        0.0
        if _outward(token, settings.anchor) and divergence(settings.divergence, token, settings.anchor) > settings.delta
        else 1.0
        for token in tokens
    ]


def _dropped(recipe: Recipe, tokens: list[Token]) -> list[float]:
    settings = recipe.sequence_mask
    if settings is None:
        return [1.0] * len(tokens)
    d = [divergence(settings.divergence, token, settings.anchor) for token in tokens]
    statistic = max(d) if settings.statistic == "max" else sum(d) / len(d)
    return [1.0 if statistic <= settings.delta else 0.0] * len(tokens)


def _weights(recipe: Recipe, tokens: list[Token]) -> list[float]:
    settings = recipe.mismatch
    logs = [max(-20.0, min(20.0, token.old - token.mu)) for token in tokens]
    found, running = [], 0.0
    for log in logs:
        running += log
        if settings.kind == "none":
            found.append(1.0)
            continue
        if settings.kind in ("token_tis", "icepop"):
            exponent = log
        elif settings.kind == "prefix_tis":
            exponent = running
        elif settings.kind == "geometric_mask":
            exponent = sum(logs) / len(logs)
        else:
            exponent = sum(logs)
        ratio = math.exp(max(-20.0, min(20.0, exponent)))
        if settings.kind.endswith("_tis"):
            found.append(min(ratio, settings.cap))
            continue
        low = -math.inf if settings.lo is None else settings.lo
        high = math.inf if settings.hi is None else settings.hi
        kept = 1.0 if low <= ratio <= high else 0.0
        found.append(kept * ratio if settings.kind == "icepop" else kept)
    return found
