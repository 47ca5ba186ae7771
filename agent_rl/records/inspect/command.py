"""What `agent-rl inspect` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agent_rl.records.inspect.page import LIMIT, Comparison, write_page
from agent_rl.records.reader import folders, summaries, trajectories, updates
from agent_rl.records.schema import Summary
from agent_rl.records.shards import RecordError
from agent_rl.records.token_updates import read_extremes

SORTS = ("recorded", "ratio", "gated", "reward", "advantage", "length", "calls")


@dataclass(frozen=True)
class Asked:
    """What to show."""

    split: str | None = None
    step: int | None = None
    key: str | None = None
    search: str | None = None
    flags: tuple[str, ...] = ()
    """Of `wrong`, `void`, `truncated`, `timed_out`, `failed`, `not_in_loss`; all must hold."""
    sort: str = "recorded"
    limit: int | None = None
    html: Path | None = None
    """Where to write the page; None = `inspect.html` in the run's folder."""
    terminal_only: bool = False


def inspect(run: Path, asked: Asked, console: Console | None = None) -> int:
    """Show the run in the terminal and write its page; the exit status."""
    from agent_rl.records.inspect import terminal

    console = console or Console()
    try:
        everything = summaries(run)
        extremes = {k: v for folder in folders(run) for k, v in read_extremes(folder).items()}
        rows = chosen(everything, asked, extremes)
    except RecordError as error:
        Console(stderr=True).print(f"error: {error}")
        return 2
    if not rows:
        console.print(f"none of {len(everything)} trajectories passes these filters")
        return 1
    if asked.key is not None:
        _show_one(console, run, rows[: asked.limit or 4])
    else:
        terminal.show_overview(console, rows, read_metrics(run))
        listed = asked != Asked(html=asked.html, terminal_only=asked.terminal_only, limit=asked.limit)
        if listed:
            terminal.show_list(console, rows[: asked.limit or 30], len(rows), extremes)
    if not asked.terminal_only:
        page = asked.html or run / "inspect.html"
        count = run_page(page, run, rows, limit=asked.limit or LIMIT)
        console.print(f"{count} trajectories, token by token: {page} ({page.stat().st_size / 1e6:.1f} MB)")
    return 0


def run_page(
    page: Path,
    run: Path,
    rows: Sequence[Summary],
    *,
    limit: int = LIMIT,
    comparison: Comparison | None = None,
    subtitle: str = "",
) -> int:
    """The page of a run's folder."""
    config = run / "config.yaml"
    return write_page(
        page,
        run,
        rows,
        name=run.resolve().name,
        subtitle=subtitle,
        metrics=read_metrics(run),
        config=config.read_text(encoding="utf-8") if config.exists() else "",
        comparison=comparison,
        limit=limit,
    )


def chosen(rows: Sequence[Summary], asked: Asked, extremes: dict[Any, dict[str, float]]) -> list[Summary]:
    """The rows that pass all filters, sorted."""
    words = (asked.search or "").lower().split()
    tests = {
        "wrong": lambda r: not r.correct and not r.failed,
        "void": lambda r: r.void,
        "truncated": lambda r: r.truncated,
        "timed_out": lambda r: r.timed_out,
        "failed": lambda r: r.failed,
        "not_in_loss": lambda r: r.split == "train" and bool(r.filters),
    }
    found = [
        r
        for r in rows
        if asked.split in (None, r.split)
        and asked.step in (None, r.step)
        and asked.key in (None, r.key, r.problem)
        and all(tests[flag](r) for flag in asked.flags)
        and all(word in f"{r.key} {r.answer} {r.gold} {r.stop} {r.source}".lower() for word in words)
    ]

    def extreme(r: Summary, *names: str) -> float:
        more = extremes.get((r.step or 0, r.key), {}) if r.split == "train" else {}
        return sum(more.get(name, 0.0) for name in names)

    keys = {
        "ratio": lambda r: extreme(r, "max_abs_log_ratio"),
        "gated": lambda r: extreme(r, "gated", "clipped"),
        "reward": lambda r: -1e9 if r.reward is None else r.reward,
        "advantage": lambda r: -1e9 if r.advantage is None else r.advantage,
        "length": lambda r: r.length,
        "calls": lambda r: r.tool_calls,
    }
    return found if asked.sort == "recorded" else sorted(found, key=keys[asked.sort], reverse=True)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Rows of the run's `metrics.jsonl`; none if there is no such file."""
    import json

    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def _show_one(console: Console, run: Path, rows: Sequence[Summary]) -> None:
    from agent_rl.records.inspect.terminal import show_trajectory
    from agent_rl.records.pieces import read_pieces

    pieces = {i: text for folder in folders(run) for i, text in read_pieces(folder).items()}
    for row, record in zip(rows, trajectories(run, only=rows), strict=True):
        trained = row.split == "train" and row.step is not None
        show_trajectory(console, record, pieces, updates(run, row.step) if trained and row.step else [])
