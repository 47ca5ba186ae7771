"""How results leave the worker thread."""

from __future__ import annotations

import asyncio

from agent_rl.engines.base import Generation
from agent_rl.engines.job import Job
from agent_rl.types import InfrastructureError

Outcome = Generation | InfrastructureError


class Outbox:
    """Outcomes that wait for delivery. One call wakes an event loop for all that is its own: a wake-up costs a
    system call and a change of threads, and a decode step may finish dozens of turns."""

    def __init__(self) -> None:
        self._items: list[tuple[Job, Outcome]] = []

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, job: Job, outcome: Outcome) -> None:
        """Keep an outcome until the next delivery."""
        self._items.append((job, outcome))

    def deliver(self) -> None:
        """Resolve the futures, each in its own event loop."""
        if not self._items:
            return
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Job, Outcome]]] = {}
        for job, outcome in self._items:
            by_loop.setdefault(job.loop, []).append((job, outcome))
        self._items = []
        for loop, items in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, items)
            except RuntimeError:
                # The loop was closed: its tasks are gone, and nobody waits for these.
                if not loop.is_closed():
                    raise


def _resolve(items: list[tuple[Job, Outcome]]) -> None:
    for job, outcome in items:
        if job.future.done():
            continue
        if isinstance(outcome, InfrastructureError):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
