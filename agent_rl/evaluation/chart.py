"""The plot of a measurement: accuracy figures with intervals, and how many problems are solved how often. Plain SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from agent_rl.evaluation.estimates import Estimate
from agent_rl.evaluation.metrics import Summary

_WIDTH = 760
_LEFT = 150
_RIGHT = 90
_ROW = 24
_MOST_STEPS = 16
_HEIGHT = 90
_INK = "#1f2933"
_SOFT = "#cbd5e1"
_BLUE = "#2563a8"


def chart(summaries: Sequence[Summary]) -> str:
    """One SVG document with a block for each problem set."""
    body: list[str] = []
    y = 24.0
    for summary in summaries:
        y = _block(body, summary, y)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y:.0f}" viewBox="0 0 {_WIDTH} {y:.0f}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{_INK}" role="img" '
        f'aria-label="Accuracy with intervals and solve rates">'
    )
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{y:.0f}" fill="#ffffff"/>', *body, "</svg>"]) + "\n"


def _block(body: list[str], summary: Summary, y: float) -> float:
    body.append(_text(16, y, summary.name, weight="bold"))
    y += 12
    for name, estimate in summary.estimates.items():
        if "@" in name:
            y += _ROW
            _interval(body, name, estimate, y)
    y += 20
    for percent in range(0, 101, 25):
        x = _x(percent / 100)
        body.append(_text(x, y, f"{percent}%", anchor="middle", size=11))
    return _histogram(body, summary, y + 30)


def _x(value: float) -> float:
    return _LEFT + value * (_WIDTH - _LEFT - _RIGHT)


def _interval(body: list[str], name: str, estimate: Estimate, y: float) -> None:
    body.append(_text(_LEFT - 12, y + 4, name, anchor="end"))
    body.append(f'<line x1="{_x(0):.1f}" x2="{_x(1):.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_SOFT}"/>')
    if estimate.low is not None and estimate.high is not None:
        body.append(
            f'<line x1="{_x(estimate.low):.1f}" x2="{_x(estimate.high):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{_BLUE}" stroke-width="5" stroke-linecap="round" opacity="0.45"/>'
        )
    body.append(f'<circle cx="{_x(estimate.value):.1f}" cy="{y:.1f}" r="5" fill="{_BLUE}"/>')
    body.append(_text(_WIDTH - _RIGHT + 14, y + 4, f"{100 * estimate.value:.1f}%"))


def _histogram(body: list[str], summary: Summary, y: float) -> float:
    """Problems by how many of their attempts are correct; by tenths of them if there are many attempts."""
    rates = [r.rate for r in summary.rows if r.rate is not None]
    steps = summary.samples if summary.samples <= _MOST_STEPS else 10
    counts = [0] * (steps + 1)
    for rate in rates:
        counts[round(rate * steps)] += 1
    top = max(counts, default=0) or 1
    body.append(_text(_LEFT - 12, y + _HEIGHT / 2, "problems", anchor="end"))
    base = y + _HEIGHT
    for number, count in enumerate(counts):
        left, right = _x(number / len(counts)) + 2, _x((number + 1) / len(counts)) - 2
        height = (_HEIGHT - 18) * count / top
        body.append(
            f'<rect x="{left:.1f}" y="{base - height:.1f}" width="{right - left:.1f}" height="{height:.1f}" '
            f'fill="{_BLUE}" opacity="0.75"/>'
        )
        if count:
            body.append(_text((left + right) / 2, base - height - 4, str(count), anchor="middle", size=11))
    body.append(f'<line x1="{_x(0):.1f}" x2="{_x(1):.1f}" y1="{base:.1f}" y2="{base:.1f}" stroke="{_INK}"/>')
    for number in range(steps + 1):
        x = _x((number + 0.5) / len(counts))
        body.append(_text(x, base + 14, str(number), anchor="middle", size=11))
    label = f"correct attempts of {summary.samples}" if steps == summary.samples else "tenths of the attempts correct"
    body.append(_text((_x(0) + _x(1)) / 2, base + 30, label, anchor="middle", size=11))
    return base + 60


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 13, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">'
        f"{escape(text)}</text>"
    )
