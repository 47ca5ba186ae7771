"""Mean and spread over seeds, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

AMOUNTS = ("minutes", "processor minutes")
"""Figures that are no shares."""


@dataclass(frozen=True)
class Result:
    """One finished run: figures by name, shares in 0..1."""

    variant: str
    seed: int
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Spread:
    """Mean over seeds, and the sample standard deviation where there are two or more."""

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class Row:
    """One variant over its seeds."""

    variant: str
    runs: int
    figures: Mapping[str, Spread]


def summarise(results: Sequence[Result]) -> list[Row]:
    """One row a variant, in the order of their first appearance."""
    rows = []
    for variant in dict.fromkeys(r.variant for r in results):
        own = [r for r in results if r.variant == variant]
        names = dict.fromkeys(name for r in own for name in r.figures)
        values = {name: [r.figures[name] for r in own if name in r.figures] for name in names}
        rows.append(Row(variant, len(own), {name: spread(v) for name, v in values.items()}))
    return rows


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(mean(values), stdev(values) if len(values) > 1 else None, len(values))


def markdown(rows: Sequence[Row], *, varied: str, seeds: Sequence[int]) -> str:
    """The table, starting accuracies in a sentence above it."""
    names = list(dict.fromkeys(name for row in rows for name in row.figures))
    starts = [name for name in names if name.startswith("start ")]
    columns = [name for name in names if name not in starts]
    lines = []
    if rows and starts:
        first = rows[0].figures
        told = ", ".join(f"{name.removeprefix('start ')} {_show(name, first[name])}" for name in starts)
        lines += [f"Before training (seeds {', '.join(map(str, seeds))}): {told}.", ""]
    lines += [
        f"| {varied} | runs | " + " | ".join(columns) + " |",
        "|---|---:|" + "---:|" * len(columns),
    ]
    for row in rows:
        cells = [_show(name, row.figures.get(name)) for name in columns]
        lines.append(f"| {row.variant} | {row.runs} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _show(name: str, value: Spread | None) -> str:
    if value is None:
        return "-"
    scale, digits, unit = (1, 1, "") if name in AMOUNTS else (100, 1, " %")
    text = f"{scale * value.mean:.{digits}f}"
    if value.deviation is not None:
        text += f" ± {scale * value.deviation:.{digits}f}"
    return text + unit
