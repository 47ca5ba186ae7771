"""The last words of a run: what it learnt, what it took, where to look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any


def closing_lines(rows: Iterable[Mapping[str, Any]], *, seconds: float, report: str, run: str) -> list[str]:
    """Three lines for the terminal, from the rows of `metrics.jsonl`."""
    rows = list(rows)
    measured = [row for row in rows if any("/accuracy_" in key for key in row)]
    steps = [row for row in rows if "time/step" in row]
    return [_learnt(measured), _took(steps, seconds), f"look at {report}; go on with: agent-rl train --resume {run}"]


def _learnt(measured: list[Mapping[str, Any]]) -> str:
    if len(measured) < 2:
        return "no held-out accuracy was measured before and after"
    first, last = measured[0], measured[-1]
    changes = [
        f"{key} {first[key]:.1%} -> {last[key]:.1%} ({100 * (last[key] - first[key]):+.1f} points)"
        for key in first
        if "/accuracy_" in key and key in last
    ]
    return "held out: " + "; ".join(changes)


def _took(steps: list[Mapping[str, Any]], seconds: float) -> str:
    if not steps:
        return "no step was finished"
    tokens = sum(row["rollout/sampled_tokens"] * row.get("learner/trajectories", 0) for row in steps)
    parts = {name: median(row[f"time/{name}"] for row in steps) for name in ("step", "generation", "tools", "update")}
    rate = {
        label: sum(row.get(key, 0.0) for row in steps) / len(steps)
        for label, key in (("clipped", "policy/clip_rate"), ("gated", "policy/mask_rate"))
    }
    return (
        f"{len(steps)} steps in {seconds / 60:.1f} min, a step {parts['step']:.1f} s (median; generation "
        f"{parts['generation']:.1f}, tools {parts['tools']:.1f}, update {parts['update']:.1f}), "
        f"{tokens / 1e6:.2f} M tokens trained on, {rate['clipped']:.1%} clipped, {rate['gated']:.1%} gated"
    )
