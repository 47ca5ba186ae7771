"""What a person sees while a run goes on: a bar for the batch, one line a step, three lines at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

HEADER = "step        reward  acc   calls  void  trunc  dead  failed   tok/s   step s  clip   gate   left"


class Display:
    """The terminal of a run. Without a terminal the step lines are printed and the bars left out."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()

    def say(self, text: str) -> None:
        """A line of plain text."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def error(self, text: str) -> None:
        """A line about what went wrong, on standard error."""
        print(f"error: {text}", file=sys.stderr)

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[_Bar]:
        """A bar that lives as long as the block."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bars:
            yield _Bar(bars, label, total)

    def header(self) -> None:
        """Names of the columns of `step`."""
        self.say(HEADER)

    def step(self, step: int, steps: int, row: Mapping[str, float], seconds_left: float) -> None:
        """One line about a finished step."""
        get = row.get
        self.say(
            f"{step:>4}/{steps:<5} {get('rollout/reward', 0):7.3f} {get('rollout/accuracy', 0):5.1%} "
            f"{get('rollout/tool_call_rate', 0):6.1%} {get('rollout/void', 0):5.1%} "
            f"{get('rollout/truncated', 0):6.1%} {get('rollout/dead_groups', 0):5.1%} "
            f"{get('rollout/failed', 0):6.1%} {get('time/tokens_per_second', 0):8.0f} {get('time/step', 0):7.1f} "
            f"{get('policy/clip_rate', 0):6.1%} {get('policy/mask_rate', 0):6.1%} {_clock(seconds_left)}"
        )

    def evaluation(self, step: int, row: Mapping[str, float]) -> None:
        """One line about a measurement."""
        numbers = [f"{key} {value:.1%}" for key, value in row.items() if "/accuracy_" in key]
        self.say(f"     held out at step {step}: " + ", ".join(numbers))


class _Bar:
    def __init__(self, bars: Progress, label: str, total: int):
        self._bars = bars
        self._task = bars.add_task(label, total=total)

    def advance(self) -> None:
        self._bars.advance(self._task)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    return f"{minutes:>3}:{rest:02}"
