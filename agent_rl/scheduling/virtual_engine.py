"""An engine that only takes time: all its rows get a token a step, and a step takes longer the more rows there are."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Hardware:
    """How fast things are; the defaults are of the order of a 7 B model with one accelerator an engine."""

    engines: int = 8
    rows: int = 64
    """Rows of an engine when it is full."""
    step_s: float = 0.012
    """Seconds of a decode step without rows (the weights are read once)."""
    row_s: float = 0.0001
    """Seconds that each row adds."""
    learner_tokens_per_s: float = 40_000.0
    sync_s: float = 2.0
    """Seconds of a hand-over of weights, in which nothing is decoded."""

    @property
    def peak(self) -> float:
        """Tokens a second of one engine with full rows."""
        return self.rows / (self.step_s + self.rows * self.row_s)


@dataclass
class VirtualEngine:
    """Rows by number; times are the caller's."""

    hardware: Hardware
    tokens: float = 0.0
    """Decoded so far."""
    busy: float = 0.0
    """Seconds with at least one row."""
    _now: float = 0.0
    _paused_until: float = 0.0
    _progress: float = 0.0
    """Tokens that a row would have got since the beginning."""
    _ends: list[tuple[float, int]] = field(default_factory=list)
    """(progress at which it ends, row), a heap that may still hold rows that are gone."""
    _rows: set[int] = field(default_factory=set)

    def advance(self, now: float) -> None:
        """Let time pass up to `now`."""
        begin = max(self._now, min(self._paused_until, now))
        if self._rows and now > begin:
            steps = (now - begin) / self._step()
            self._progress += steps
            self.tokens += steps * len(self._rows)
            self.busy += now - begin
        self._now = now

    def add(self, row: int, tokens: int) -> None:
        """A turn of so many tokens begins. Time has been advanced."""
        self._rows.add(row)
        heapq.heappush(self._ends, (self._progress + tokens, row))

    def remove(self, row: int) -> None:
        """A row ended, or was given up. Time has been advanced."""
        self._rows.discard(row)

    def pause(self, until: float) -> None:
        """Decode nothing before `until`. Time has been advanced."""
        self._paused_until = until

    def next_end(self) -> tuple[float, int] | None:
        """(time, row) of the row that ends first if nothing else happens."""
        while self._ends and self._ends[0][1] not in self._rows:
            heapq.heappop(self._ends)
        if not self._ends:
            return None
        left = max(self._ends[0][0] - self._progress, 0.0)
        return max(self._now, self._paused_until) + left * self._step(), self._ends[0][1]

    def _step(self) -> float:
        return self.hardware.step_s + self.hardware.row_s * len(self._rows)
