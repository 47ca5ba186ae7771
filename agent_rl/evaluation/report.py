"""A measurement as files: `report.json` (everything), `report.md` (to read), `report.svg` (the plot)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent_rl.evaluation.chart import chart
from agent_rl.evaluation.estimates import Estimate
from agent_rl.evaluation.metrics import ProblemRow, Summary

SCHEMA = 1
"""Version of the form of `report.json`."""


def write_report(
    folder: Path, summaries: Sequence[Summary], identity: Mapping[str, Any], *, command: str | None = None
) -> dict[str, Path]:
    """Write the three files and return their paths by suffix.

    Args:
        identity: what was measured and how (model, settings, data), shown in full.
        command: the command line that made the measurement, shown beside the figures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "json": json.dumps(report_dict(summaries, identity, command), indent=2, ensure_ascii=False) + "\n",
        "md": markdown(summaries, identity, command),
        "svg": chart(summaries),
    }
    paths = {suffix: folder / f"report.{suffix}" for suffix in contents}
    for suffix, text in contents.items():
        paths[suffix].write_text(text, encoding="utf-8")
    return paths


def report_dict(summaries: Sequence[Summary], identity: Mapping[str, Any], command: str | None) -> dict[str, Any]:
    """The report as plain JSON."""
    return {
        "schema": SCHEMA,
        "command": command,
        "identity": dict(identity),
        "sets": [{**asdict(s), "complete": s.complete} for s in summaries],
    }


def markdown(summaries: Sequence[Summary], identity: Mapping[str, Any], command: str | None) -> str:
    """The report to read: figures with intervals, then one table of problems a set."""
    parts = ["# Evaluation", ""]
    if command:
        parts += ["```", command, "```", ""]
    for key, value in identity.items():
        shown = value if isinstance(value, str | int | float) else json.dumps(value, ensure_ascii=False)
        parts.append(f"- {key}: `{shown}`")
    parts += ["", *_figures(summaries)]
    for summary in summaries:
        parts += _problem_table(summary)
    return "\n".join(parts) + "\n"


def _figures(summaries: Sequence[Summary]) -> list[str]:
    lines = []
    for s in summaries:
        lines += [f"## {s.name}", ""]
        lines.append(f"{s.problems} problems, {s.attempts} attempts ({s.samples} a problem).")
        if s.failed or not s.complete:
            short = sum(r.attempts < s.samples for r in s.rows)
            lines.append(
                f"**{s.failed} attempts failed for reasons that are not the model's and enter no figure; "
                f"{short} problems have fewer than {s.samples} attempts.**"
            )
        lines += ["", "| figure | value | interval | problems |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {_number(name, e.value)} | {_interval(name, e)} | {e.problems} |"
            for name, e in s.estimates.items()
        ]
        lines.append("")
    return lines


def is_share(name: str) -> bool:
    """Whether a figure is a share, shown in percent."""
    return not name.startswith("mean_")


def _number(name: str, value: float) -> str:
    return f"{100 * value:.1f}%" if is_share(name) else f"{value:.2f}"


def _interval(name: str, estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "-"
    return f"{_number(name, estimate.low)} to {_number(name, estimate.high)}"


def _problem_table(summary: Summary) -> list[str]:
    lines = [
        f"### Problems of {summary.name}",
        "",
        "| problem | correct | turns | tokens | gold | most frequent answer |",
    ]
    lines.append("|---|---|---|---|---|---|")
    lines += [_problem_line(row) for row in summary.rows]
    return [*lines, ""]


def _problem_line(row: ProblemRow) -> str:
    failed = f" ({row.failed} failed)" if row.failed else ""
    cells = (
        row.problem,
        f"{row.correct}/{row.attempts}{failed}",
        f"{row.mean_turns:.1f}",
        f"{row.mean_tokens:.0f}",
        _cell(row.gold),
        _cell(row.majority_answer),
    )
    return "| " + " | ".join(cells) + " |"


def _cell(text: str | None, longest: int = 40) -> str:
    """Text inside a table cell: one line, no bars, no markup."""
    if text is None:
        return "-"
    flat = " ".join(text.split())
    flat = flat if len(flat) <= longest else flat[: longest - 1] + "…"
    return "`" + flat.replace("`", "'").replace("|", "\\|") + "`" if flat else "-"
