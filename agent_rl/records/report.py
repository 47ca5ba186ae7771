"""One static page about a run: its numbers before and after, its curves, and trajectories token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_rl.records.chart import line_chart
from agent_rl.records.recorder import SUFFIX, read_records, shards

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


def write_report(
    path: Path,
    *,
    name: str,
    subtitle: str,
    metrics: Iterable[Row],
    trajectories: Path,
    piece: Callable[[int], str],
    config: str,
) -> None:
    """Write the page.

    Args:
        metrics: rows of `metrics.jsonl`.
        trajectories: folder of recorded shards; the first and last of each evaluation are shown.
        piece: text of one token id.
        config: the resolved configuration as text.
    """
    import jinja2

    rows = list(metrics)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
    )
    page = environment.get_template("report.html.jinja").render(
        name=name,
        subtitle=subtitle,
        table=before_and_after(rows),
        charts=_charts(rows, environment),
        sections=_sections(trajectories, piece),
        config=config,
    )
    path.write_text(page, encoding="utf-8")


def _charts(rows: Sequence[Row], environment: Any) -> list[tuple[str, Any]]:
    from markupsafe import Markup

    specs = [*_evaluation_charts(rows), *CHARTS]
    found = []
    for title, lines, (lower, upper) in specs:
        series = {label: [(r["step"], r[key]) for r in rows if _is_number(r.get(key))] for label, key in lines}
        if any(series.values()):
            found.append((title, Markup(line_chart(series, lower=lower, upper=upper))))
    return found


def _evaluation_charts(rows: Sequence[Row]) -> list[tuple[str, Any, tuple[float, float]]]:
    names = sorted({key.rsplit("/", 1)[0] for row in rows for key in row if "/accuracy_" in key})
    return [
        (
            f"Held-out accuracy: {name}",
            (("sampled", f"{name}/accuracy_sampled"), ("greedy", f"{name}/accuracy_greedy")),
            (0, 1),
        )
        for name in names
    ]


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


def _sections(folder: Path, piece: Callable[[int], str], per_section: int = 6) -> list[dict[str, Any]]:
    by_name: dict[str, list[Path]] = {}
    for path in shards(folder):
        by_name.setdefault(path.name.removesuffix(SUFFIX).rsplit("-", 1)[0], []).append(path)
    sections = []
    for name, paths in sorted(by_name.items()):
        for path in dict.fromkeys((paths[0], paths[-1])):
            step = int(path.name.removesuffix(SUFFIX).rsplit("-", 1)[-1])
            records = [r for _, r in zip(range(per_section), read_records(path), strict=False)]
            shown = [_shown(record, piece) for record in records]
            sections.append({"title": f"{name}, step {step}", "trajectories": shown})
    return sections


def _shown(record: Row, piece: Callable[[int], str]) -> dict[str, Any]:
    tokens = []
    for segment in record["segments"]:
        for index, token in enumerate(segment["ids"]):
            hover = f"log p = {segment['logprobs'][index]:.3f}" if segment["logprobs"] else ""
            tokens.append({"origin": segment["origin"], "text": piece(token), "hover": hover})
    verdict = record["verdict"] or {}
    return {
        "question": record["problem"]["question"],
        "source": record["problem"]["source"],
        "gold": record["problem"]["gold"],
        "answer": record["answer"],
        "stop": record["stop"],
        "correct": verdict.get("kind") == "correct",
        "tokens": tokens,
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
