"""When a waiting request may join the running batch."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from agent_rl.engines.job import Job
from agent_rl.types import InfrastructureError


class Admission(Protocol):
    """Holds the requests that wait for a row."""

    def add(self, job: Job) -> None: ...

    def remove(self, job: Job) -> None: ...

    def waiting(self) -> list[Job]: ...

    def take(self, running: int, room: int) -> list[Job]:
        """At most `room` jobs to start now, beside `running` others."""
        ...

    def may_free(self, running: int) -> bool:
        """Whether slots of released trajectories may be freed now."""
        ...

    def put_back(self, jobs: Iterable[Job]) -> None:
        """These were taken, but there is no memory for them yet."""
        ...

    def expect(self, names: Iterable[str]) -> None: ...

    def release(self, name: str) -> None: ...

    def overdue(self) -> InfrastructureError | None:
        """Why those that wait should wait no longer."""
        ...

    def next_check(self) -> float:
        """Time on `time.monotonic()` at which `overdue` may change by itself."""
        ...


class Continuous:
    """First come, first served. A few arrivals beside a large batch wait some steps for company, since a
    prefill of one row costs almost as much as one of many.

    Args:
        patience: most decode steps of such a wait.
    """

    def __init__(self, patience: int):
        self._patience = patience
        self._queue: deque[Job] = deque()
        self._waited = 0

    def add(self, job: Job) -> None:
        self._queue.append(job)

    def remove(self, job: Job) -> None:
        self._queue.remove(job)

    def waiting(self) -> list[Job]:
        return list(self._queue)

    def take(self, running: int, room: int) -> list[Job]:
        if not self._queue or room <= 0:
            return []
        self._waited += 1
        if running and self._waited <= self._patience and len(self._queue) * 8 < running:
            return []
        self._waited = 0
        return [self._queue.popleft() for _ in range(min(room, len(self._queue)))]

    def may_free(self, running: int) -> bool:
        return True

    def put_back(self, jobs: Iterable[Job]) -> None:
        self._queue.extendleft(reversed(list(jobs)))

    def expect(self, names: Iterable[str]) -> None:
        """Nothing to do."""

    def release(self, name: str) -> None:
        """Nothing to do."""

    def overdue(self) -> InfrastructureError | None:
        return None

    def next_check(self) -> float:
        return math.inf


class Lockstep:
    """Rounds: one starts when each announced trajectory has asked or been released, in the order of names.

    Which rows share a batch then follows from the samples alone. A trajectory that was not announced is
    announced by its first request.

    Args:
        timeout: seconds after which a round that waits for a trajectory gives up.
    """

    def __init__(self, timeout: float):
        self._timeout = timeout
        self._expected: set[str] = set()
        self._asked: dict[str, Job] = {}
        self._round: deque[Job] = deque()
        self._since = 0.0

    def add(self, job: Job) -> None:
        if not self._asked:
            self._since = time.monotonic()
        self._expected.add(job.name)
        self._asked[job.name] = job

    def remove(self, job: Job) -> None:
        if job in self._round:
            self._round.remove(job)
        else:
            del self._asked[job.name]

    def waiting(self) -> list[Job]:
        return [*self._round, *self._asked.values()]

    def take(self, running: int, room: int) -> list[Job]:
        if running or self._round:
            # Those that are awaited may be in the round that runs: the clock starts when it is over.
            self._since = time.monotonic()
        elif self._asked and self._expected <= self._asked.keys():
            self._round.extend(self._asked[name] for name in sorted(self._asked))
            self._asked.clear()
        return [self._round.popleft() for _ in range(min(room, len(self._round)))]

    def may_free(self, running: int) -> bool:
        # A release comes when a tool is done: freed in the middle of a round, its slot would go to a row of this
        # round or not, as the clock has it, and rows would stand in another order.
        return not running and not self._round

    def put_back(self, jobs: Iterable[Job]) -> None:
        self._round.extendleft(reversed(list(jobs)))

    def expect(self, names: Iterable[str]) -> None:
        self._expected.update(names)

    def release(self, name: str) -> None:
        self._expected.discard(name)

    def overdue(self) -> InfrastructureError | None:
        missing = sorted(self._expected - self._asked.keys())
        if not self._asked or not missing or time.monotonic() < self._since + self._timeout:
            return None
        names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        return InfrastructureError(
            "engine",
            f"a lockstep batch waited {self._timeout:g} s for {names}, announced but neither asking nor released; "
            "raise engine.lockstep_timeout_s if tools may take that long",
        )

    def next_check(self) -> float:
        return self._since + self._timeout if self._asked else math.inf
