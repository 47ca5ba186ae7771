"""The run's numbers over its steps, as charts and as a table of before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from agent_rl.records.chart import line_chart

Row = Mapping[str, Any]

CHARTS: tuple[tuple[str, tuple[tuple[str, str], ...], tuple[float | None, float | None]], ...] = (
    ("Reward of the rollout batch", (("reward", "rollout/reward"),), (0, None)),
    ("Tool use", (("call rate", "rollout/tool_call_rate"), ("calls that run", "rollout/tool_ok_rate")), (0, 1)),
    (
        "Turns that lead nowhere",
        (("void", "rollout/void"), ("truncated", "rollout/truncated"), ("dead groups", "rollout/dead_groups")),
        (0, 1),
    ),
    (
        "Trust region",
        (("clipped", "policy/clip_rate"), ("gated", "policy/mask_rate"), ("dual clip", "policy/dual_clip_rate")),
        (0, None),
    ),
    (
        "Sampler against trainer, nats a token",
        (("mean", "policy/mismatch_mean"), ("std", "policy/mismatch_std")),
        (None, None),
    ),
    ("Entropy, nats a token", (("entropy", "policy/entropy"),), (0, None)),
    ("Gradient norm", (("norm", "learner/grad_norm"),), (0, None)),
    (
        "Seconds a step",
        (
            ("step", "time/step"),
            ("rollout", "time/rollout"),
            ("generation", "time/generation"),
            ("tools", "time/tools"),
            ("update", "time/update"),
        ),
        (0, None),
    ),
    ("Sampled tokens a second", (("tokens/s", "time/tokens_per_second"),), (0, None)),
)
"""Title, (label, metric) lines, ends of the vertical axis."""


def charts(metrics: Sequence[Row]) -> list[tuple[str, str]]:
    """(title, SVG) of the run's curves."""
    names = sorted({key.rsplit("/", 1)[0] for row in metrics for key in row if "/accuracy_" in key})
    held_out = [
        (
            f"Held-out accuracy: {name}",
            (("sampled", f"{name}/accuracy_sampled"), ("greedy", f"{name}/accuracy_greedy")),
            (0.0, 1.0),
        )
        for name in names
    ]
    found = []
    for title, lines, (lower, upper) in [*held_out, *CHARTS]:
        series = {label: [(r["step"], r[key]) for r in metrics if _is_number(r.get(key))] for label, key in lines}
        if any(series.values()):
            found.append((title, line_chart(series, lower=lower, upper=upper)))
    return found


def before_and_after(rows: Sequence[Row]) -> dict[str, Any] | None:
    measured = [row for row in rows if any("/accuracy_" in key for key in row)]
    if not measured:
        return None
    first, last = measured[0], measured[-1]
    keys = [key for key in first if "/accuracy_" in key or key.endswith("/tool_call_rate")]
    return {
        "columns": [f"step {first['step']}", f"step {last['step']}", "change"],
        "rows": [
            (
                key,
                [
                    f"{first[key]:.1%}",
                    f"{last.get(key, math.nan):.1%}",
                    f"{100 * (last[key] - first[key]):+.1f} points",
                ],
            )
            for key in keys
            if key in last
        ],
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
