"""What the first screen shows: how trajectories ended, and how values are spread."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_rl.records.chart import bar_chart
from agent_rl.records.schema import Summary
from agent_rl.records.token_updates import Update


def taxonomy(rows: Sequence[Summary]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Counts by outcome, by how trajectories ended, and by why some of training are not in the loss."""
    failures = [
        ("correct", sum(r.correct for r in rows)),
        ("wrong answer", sum(r.verdict == "wrong" and r.answer is not None for r in rows)),
        ("no answer", sum(r.verdict == "wrong" and r.answer is None for r in rows)),
        ("undecided", sum(r.verdict == "undecided" for r in rows)),
        ("void turn", sum(r.void for r in rows)),
        ("turn truncated", sum(r.truncated for r in rows)),
        ("tool timed out", sum(r.timed_out for r in rows)),
        ("a tool call failed", sum(r.tool_failures > 0 for r in rows)),
        ("no tool call", sum(r.tool_calls == 0 for r in rows)),
        ("failed for reasons of ours", sum(r.failed for r in rows)),
    ]
    stops = Counter(r.stop or "unfinished" for r in rows).most_common()
    kept = Counter(f for r in rows if r.split == "train" for f in (r.filters or ["in the loss"])).most_common()
    found = [("Outcomes", failures), ("Why trajectories ended", stops)]
    return found + ([("Training: in the loss, or why not", kept)] if kept else [])


def histograms(rows: Sequence[Summary], updates: Iterable[Update]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Spread of lengths, calls and rewards, and of the token quantities of updates."""
    found = [
        ("Tokens", _histogram([r.length for r in rows])),
        ("Tool calls", _counts([r.tool_calls for r in rows])),
        ("Reward", _histogram([r.reward for r in rows if r.reward is not None])),
    ]
    names = {"log_ratio": "Log-ratio, all model tokens", "budget": "Budget used by a token, share of what was left"}
    values: dict[str, list[float]] = {name: [] for name in names}
    for update in updates:
        for tokens in update.tokens.values():
            values["log_ratio"] += tokens["log_ratio"].tolist() if "log_ratio" in tokens else []
            values["budget"] += budget_used(tokens).tolist() if "budget" in tokens else []
    return found + [(title, _histogram(values[name])) for name, title in names.items() if values[name]]


def budget_used(tokens: Mapping[str, Any]) -> Any:
    """Weighted divergence of each token over what its prefix's budget had left; 2 for twice as much and more."""
    return (tokens["position_weight"] * tokens["divergence"] / tokens["budget"].clip(min=1e-12)).clip(max=2.0)


def bars(groups: Iterable[tuple[str, list[tuple[str, int]]]]) -> list[tuple[str, str]]:
    """(title, SVG) of each group of counts."""
    return [(title, bar_chart(counts)) for title, counts in groups if counts]


def _counts(values: Sequence[int]) -> list[tuple[str, int]]:
    return [(str(value), count) for value, count in sorted(Counter(values).items())]


def _histogram(values: Sequence[float], bins: int = 16) -> list[tuple[str, int]]:
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return []
    if len(distinct := Counter(finite)) <= bins:
        return [(f"{value:.4g}", count) for value, count in sorted(distinct.items())]
    low, high = min(finite), max(finite)
    width = (high - low) / bins
    counts = Counter(min(int((v - low) / width), bins - 1) for v in finite)
    return [(f"{low + b * width:.3g}", counts[b]) for b in range(bins)]
