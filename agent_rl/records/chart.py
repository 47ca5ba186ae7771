"""Line charts as inline SVG, so that a report is one file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 420, 200, 58, 24, 8


def line_chart(series: Mapping[str, Points], *, lower: float | None = None, upper: float | None = None) -> str:
    """An SVG element with one line (and dots, where there are few points) a series.

    Args:
        series: name to (x, y) points in order of x; points that are not finite are left out.
        lower, upper: ends of the vertical axis; by default those of the data.
    """
    lines = {n: [(x, y) for x, y in points if math.isfinite(y)] for n, points in series.items()}
    lines = {n: points for n, points in lines.items() if points}
    if not lines:
        return '<p class="none">no data</p>'
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    x0, x1 = min(xs), max(xs)
    y0 = min(ys) if lower is None else lower
    y1 = max(ys) if upper is None else upper
    if y1 - y0 < 1e-12:
        y0, y1 = y0 - 0.5, y1 + 0.5

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x0) / (x1 - x0) if x1 > x0 else 0.5
        up = (y - y0) / (y1 - y0)
        return LEFT + across * (WIDTH - LEFT - 8), HEIGHT - BOTTOM - up * (HEIGHT - BOTTOM - TOP)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">', *_axes(x0, x1, y0, y1, place)]
    for index, (name, points) in enumerate(lines.items()):
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(x, y) for x, y in points))
        parts.append(f'<polyline class="s{index % 6}" points="{path}"><title>{escape(name)}</title></polyline>')
        if len(points) <= 20:
            for x, y in points:
                a, b = place(x, y)
                tip = escape(f"{name}: {_number(y)} at {_number(x)}")
                parts.append(
                    f'<circle class="s{index % 6}" cx="{a:.1f}" cy="{b:.1f}" r="3"><title>{tip}</title></circle>'
                )
    legend = "".join(
        f'<span class="key s{index % 6}">{escape(name)} <b>{_number(points[-1][1])}</b></span>'
        for index, (name, points) in enumerate(lines.items())
    )
    return "".join(parts) + f'</svg><div class="legend">{legend}</div>'


def _axes(
    x0: float, x1: float, y0: float, y1: float, place: Callable[[float, float], tuple[float, float]]
) -> list[str]:
    parts = []
    for k in range(5):
        y = y0 + (y1 - y0) * k / 4
        _, b = place(x0, y)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 8}" y1="{b:.1f}" y2="{b:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{b + 4:.1f}" text-anchor="end">{_number(y)}</text>')
    for x, anchor in ((x0, "start"), (x1, "end")):
        a, _ = place(x, y0)
        parts.append(f'<text x="{a:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{_number(x)}</text>')
    return parts


def _number(value: float) -> str:
    return f"{value:.3g}"


def bar_chart(counts: Sequence[tuple[str, int]]) -> str:
    """An SVG element with one horizontal bar a (label, count)."""
    most = max((count for _, count in counts), default=0) or 1
    left, line = 150, 17
    parts = [f'<svg viewBox="0 0 {WIDTH} {line * len(counts) + 4}" role="img">']
    for place, (label, count) in enumerate(counts):
        y = place * line
        width = (WIDTH - left - 50) * count / most
        parts.append(f'<text x="{left - 6}" y="{y + 13}" text-anchor="end">{escape(label[:30])}</text>')
        parts.append(f'<rect class="bar" x="{left}" y="{y + 3}" width="{width:.1f}" height="{line - 5}"/>')
        parts.append(f'<text x="{left + width + 5:.1f}" y="{y + 13}">{count}</text>')
    return "".join(parts) + "</svg>"
