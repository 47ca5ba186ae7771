"""How late the event loop is: time in which no rollout, tool or weight hand-over can make progress."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

EVERY = 0.05
"""Seconds between two looks at the clock."""


@dataclass
class LoopLag:
    """Sleeps again and again, and notes by how much it overslept."""

    _worst: float = field(default=0.0, init=False)
    _sum: float = field(default=0.0, init=False)
    _count: int = field(default=0, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        """Begin to watch the running loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._watch(), name="loop lag")

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(EVERY)
            late = max(loop.time() - before - EVERY, 0.0)
            self._worst, self._sum, self._count = max(self._worst, late), self._sum + late, self._count + 1

    def read(self) -> dict[str, float]:
        """Mean and largest lag in seconds since the last call."""
        values = {"time/loop_lag": self._sum / max(self._count, 1), "time/loop_lag_max": self._worst}
        self._worst, self._sum, self._count = 0.0, 0.0, 0
        return values

    async def stop(self) -> None:
        """End the watch."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
