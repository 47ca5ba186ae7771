"""Looking at a run in the terminal: overview, list, one trajectory with coloured tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agent_rl.records.inspect import overview
from agent_rl.records.inspect.page import REASONS
from agent_rl.records.schema import Record, Summary
from agent_rl.records.token_updates import Update
from agent_rl.types import Origin

STYLES = {
    Origin.PROMPT: "white on grey23",
    Origin.MODEL: "black on pale_green1",
    Origin.TOOL: "black on light_goldenrod2",
    Origin.SEPARATOR: "white on medium_purple4",
}
STOPPED = "black on light_coral"


def show_overview(console: Console, rows: Sequence[Summary], metrics: Sequence[Mapping[str, Any]]) -> None:
    """Counts of how trajectories went, and first and last values of the run's numbers."""
    steps = sorted({r.step for r in rows if r.split == "train" and r.step is not None})
    span = f", training steps {steps[0]} to {steps[-1]}" if steps else ""
    console.print(f"[bold]{len(rows)} trajectories[/bold] of {', '.join(sorted({r.split for r in rows}))}{span}")
    for title, counts in overview.taxonomy(rows):
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        most = max((count for _, count in counts), default=1) or 1
        for label, count in counts:
            bar = "█" * round(24 * count / most)
            table.add_row(label, str(count), f"{count / max(len(rows), 1):.1%}", Text(bar, "cyan"))
        console.print(table)
    trained = [m for m in metrics if "rollout/reward" in m]
    if trained:
        table = Table("number", f"step {trained[0]['step']}", f"step {trained[-1]['step']}", box=None)
        for name in ("rollout/reward", "rollout/tool_call_rate", "rollout/void", "rollout/dead_groups",
                     "policy/clip_rate", "policy/mask_rate", "learner/grad_norm", "time/step"):  # fmt: skip
            table.add_row(name, *(f"{m.get(name, float('nan')):.4g}" for m in (trained[0], trained[-1])))
        console.print(table)


def show_list(
    console: Console, rows: Sequence[Summary], total: int, extremes: Mapping[Any, Mapping[str, float]]
) -> None:
    """One line a trajectory."""
    columns = (
        "trajectory",
        "set",
        "step",
        "answer / gold",
        "end",
        "reward",
        "adv.",
        "calls",
        "tokens",
        "|log r|",
        "gated",
    )
    table = Table(box=None)
    for name in columns:
        table.add_column(name, no_wrap=True, min_width=24 if name == "trajectory" else None)
    for r in rows:
        more = extremes.get((r.step, r.key), {}) if r.split == "train" else {}
        stopped = int(more.get("gated", 0) + more.get("clipped", 0))
        table.add_row(
            r.key, r.split, "" if r.step is None else str(r.step),
            Text(f"{r.answer} / {r.gold}"[:32], "green" if r.correct else "red"),
            str(r.stop), _number(r.reward), _number(r.advantage), str(r.tool_calls), str(r.length),
            f"{more['max_abs_log_ratio']:.4f}" if more.get("max_abs_log_ratio") else "", str(stopped or ""),
        )  # fmt: skip
    console.print(table)
    if len(rows) < total:
        console.print(f"... {total - len(rows)} more; narrow the filters or raise --limit", style="dim")


def show_trajectory(console: Console, record: Record, pieces: Mapping[int, str], updates: Sequence[Update]) -> None:
    """The tokens by who wrote them, those that an update stopped in red, and the tool's outcomes."""
    verdict = "no verdict" if record.verdict is None else f"{record.verdict.kind}: {record.verdict.reason}"
    head = f"answer {record.answer}, gold {record.problem.gold} ({verdict}); end: {record.stop}; reward {record.reward}"
    if record.advantage is not None:
        head += f"; advantage {record.advantage:.4f}"
    if record.filters:
        head += f"; not in the loss: {', '.join(record.filters)}"
    update = next((u for u in updates if record.key in u.tokens), None)
    body = _tokens(record, pieces, None if update is None else update.tokens[record.key].get("reason"))
    console.print(Panel(Group(head, "", body), title=f"{record.key}, {record.split}, step {record.step}"))
    for number, turn in enumerate(record.turns, 1):
        if (o := turn.outcome) is not None:
            console.print(f"turn {number}: {o.status}, exit {o.exit_code}, wall {o.wall_ms:.0f} ms, {o.tier}")
    if update is not None:
        console.print(_update_table(update.tokens[record.key], update.number))


def _tokens(record: Record, pieces: Mapping[int, str], reason: Any) -> Text:
    body, at = Text(), 0
    if not record.segments:
        for turn in record.turns:
            body.append(turn.text + "\n", STYLES[Origin.MODEL])
            body.append((turn.observation or "") + "\n", STYLES[Origin.TOOL])
    for segment in record.segments:
        for token in segment.ids:
            style = STYLES[segment.origin]
            if segment.origin is Origin.MODEL:
                style = STOPPED if reason is not None and reason[at] > 1 else style
                at += 1
            body.append(pieces.get(token, f"<{token}>"), style)
    return body


def _update_table(tokens: Mapping[str, Any], number: int) -> Table:
    table = Table(
        "quantity", "min", "mean", "max", title=f"update {number + 1} of the step", title_justify="left", box=None
    )
    for name in ("ratio", "prefix_log_ratio", "divergence", "weight", "logp", "loss"):
        if name in tokens and len(tokens[name]):
            values = tokens[name]
            table.add_row(name, *(f"{v:.5g}" for v in (values.min(), values.mean(), values.max())))
    for code, (name, _) in enumerate(REASONS):
        if "reason" in tokens and code and (count := int((tokens["reason"] == code).sum())):
            table.add_row(name, "", f"{count} tokens", "")
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
