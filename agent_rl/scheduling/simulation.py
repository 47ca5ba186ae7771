"""A training run on a virtual clock: the schedule and the routes that a run uses, over engines and a learner that only
take time. Episodes cost what a workload says; everything else is decided by `Schedule`.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

from agent_rl.scheduling.routing import Routes
from agent_rl.scheduling.schedule import Schedule
from agent_rl.scheduling.settings import AsyncSettings
from agent_rl.scheduling.virtual_engine import Hardware, VirtualEngine
from agent_rl.scheduling.workload import Turns, Workload


@dataclass
class Outcome:
    """What a simulated run measured, after the batches that warm it up."""

    seconds: float = 0.0
    trajectories: int = 0
    engine_share: float = 0.0
    """Tokens decoded, as a share of what the engines decode with full rows."""
    engine_busy: float = 0.0
    """Share of the time in which an engine had at least one row, mean over engines."""
    learner_busy: float = 0.0
    """Share of the time in which the learner worked."""
    waits: list[float] = field(default_factory=list)
    """Seconds that the learner waited for each batch."""
    latencies: list[float] = field(default_factory=list)
    """Seconds from the start of each trained group to the update."""
    staleness: list[int] = field(default_factory=list)
    """Versions that each trained group's oldest token lies behind."""
    wasted: float = 0.0
    """Share of the tokens of ended and given-up episodes that no batch had."""
    length_bias: float = 0.0
    """Mean tokens of trained episodes over the mean of all that were started."""

    @property
    def rate(self) -> float:
        """Trajectories trained on a second."""
        return self.trajectories / self.seconds


@dataclass(eq=False)
class _Episode:
    ticket: int
    sample: int
    turns: Turns
    engine: int
    turn: int = 0
    row: int = -1
    version: int | None = None
    """Of its first token."""
    gone: bool = False

    @property
    def name(self) -> str:
        return f"{self.ticket}#{self.sample}"

    @property
    def tokens(self) -> int:
        return sum(tokens for tokens, _ in self.turns)


@dataclass
class _Totals:
    """Sums up to some time."""

    now: float = 0.0
    tokens: float = 0.0
    busy: float = 0.0
    learning: float = 0.0


class Simulation:
    """One run. `run` gives its outcome.

    Args:
        rules: as of a training run.
        batch, samples: groups of a batch, attempts of a group.
        steps: batches; the first `warm` are not measured.
    """

    def __init__(
        self,
        rules: AsyncSettings,
        hardware: Hardware,
        workload: Workload,
        *,
        batch: int = 64,
        samples: int = 8,
        steps: int = 24,
        warm: int = 4,
        seed: int = 0,
    ):
        self.hardware, self._workload, self._rng = hardware, workload, random.Random(seed)
        self._steps, self._warm = steps, warm
        attempts = hardware.engines * hardware.rows
        # The last batches are not measured either, so that the run does not end before them.
        self._schedule = Schedule(rules, batch=batch, samples=samples, max_attempts=attempts)
        self._engines = [VirtualEngine(hardware) for _ in range(hardware.engines)]
        self._routes = Routes(list(range(hardware.engines)))
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._now, self._served = 0.0, 0
        self._waiting_since: float | None = 0.0
        self._playing: dict[int, list[_Episode]] = {}
        self._at_row: dict[int, _Episode] = {}
        self._started: dict[int, float] = {}
        self._learning = 0.0
        self._drawn: list[int] = []
        self._trained: list[int] = []
        self._given_up = 0
        self._mark = _Totals()
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Play until the last batch is taken."""
        self._fill()
        while self._schedule.version < self._steps:
            self._next()
        return self._summary()

    # --- what happens ---

    def _next(self) -> None:
        """The next thing that happens: a row that ends, or something with a fixed time."""
        ends = [(*end, i) for i, engine in enumerate(self._engines) if (end := engine.next_end()) is not None]
        first = min(ends, default=None)
        if first is not None and (not self._events or first[0] <= self._events[0][0]):
            self._now, row, engine = first
            self._engines[engine].advance(self._now)
            self._engines[engine].remove(row)
            self._turn_ended(self._at_row.pop(row))
        elif self._events:
            self._now, _, happen = heapq.heappop(self._events)
            happen()
        else:
            raise RuntimeError("the simulated run stands still")

    def _later(self, seconds: float, happen: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self._now + seconds, self._number, happen))

    def _fill(self) -> None:
        """Start what the schedule has room for, and hand the learner a batch if it waits for one."""
        for _ in range(self._schedule.room(self._served)):
            group = self._schedule.start("", self._served, self._now)
            self._started[group.ticket] = self._now
            costs = self._workload.draw(self._rng, group.samples)
            members = [_Episode(group.ticket, s, turns, 0) for s, turns in enumerate(costs)]
            self._playing[group.ticket] = members
            for episode in members:
                episode.engine = self._routes.send(episode.name)
                self._drawn.append(episode.tokens)
                self._generate(episode)
        if self._waiting_since is not None and self._schedule.complete(0.0):
            self._take(self._waiting_since)

    def _generate(self, episode: _Episode) -> None:
        if episode.gone:
            return
        self._number += 1
        episode.row = self._number
        self._at_row[episode.row] = episode
        if episode.version is None:
            episode.version = self._served
        self._engines[episode.engine].advance(self._now)
        self._engines[episode.engine].add(episode.row, episode.turns[episode.turn][0])

    def _turn_ended(self, episode: _Episode) -> None:
        seconds = episode.turns[episode.turn][1]
        episode.turn += 1
        going_on = episode.turn < len(episode.turns)
        self._later(seconds, lambda: self._generate(episode) if going_on else self._episode_ended(episode))

    def _episode_ended(self, episode: _Episode) -> None:
        if episode.gone:
            return
        self._routes.done(episode.name)
        if self._schedule.end(episode.ticket, episode.sample, episode.version, self._now):
            self._schedule.judge(episode.ticket, dead=False)
        self._fill()

    def _take(self, waiting_since: float) -> None:
        versions = {ticket: group.version for ticket, group in self._schedule.groups.items()}
        taken = self._schedule.take()
        measured = taken.version >= self._warm
        if taken.version == self._warm:
            self._mark = self._totals()
        tokens = 0
        for ticket in taken.batch:
            members = self._playing.pop(ticket)
            tokens += sum(episode.tokens for episode in members)
            if measured:
                self._trained += [episode.tokens for episode in members]
                self._outcome.staleness.append(taken.version - versions[ticket])
                self._outcome.latencies.append(self._now - self._started[ticket])
        for ticket in (*taken.dropped, *taken.cancelled):
            self._give_up(self._playing.pop(ticket), measured)
        if measured:
            self._outcome.waits.append(self._now - waiting_since)
        self._waiting_since = None
        seconds = tokens / self.hardware.learner_tokens_per_s
        self._learning += seconds
        self._later(seconds, self._learnt)
        self._fill()

    def _give_up(self, members: list[_Episode], measured: bool) -> None:
        for episode in members:
            episode.gone = True
            self._routes.done(episode.name)
            if self._at_row.pop(episode.row, None) is not None:
                self._engines[episode.engine].advance(self._now)
                self._engines[episode.engine].remove(episode.row)
            if measured:
                self._given_up += sum(tokens for tokens, _ in episode.turns[: episode.turn])

    def _learnt(self) -> None:
        self._schedule.trained()
        for engine in self._engines:
            engine.advance(self._now)
            engine.pause(self._now + self.hardware.sync_s)
        self._served = self._schedule.version
        self._later(self.hardware.sync_s, self._synced)

    def _synced(self) -> None:
        self._waiting_since = self._now
        self._fill()

    # --- what was measured ---

    def _totals(self) -> _Totals:
        for engine in self._engines:
            engine.advance(self._now)
        return _Totals(
            self._now, sum(e.tokens for e in self._engines), sum(e.busy for e in self._engines), self._learning
        )

    def _summary(self) -> Outcome:
        found, end, begin = self._outcome, self._totals(), self._mark
        engines = self.hardware.engines
        found.seconds = end.now - begin.now
        found.trajectories = len(self._trained) - self._schedule.batch * self._schedule.samples
        found.engine_share = (end.tokens - begin.tokens) / (found.seconds * engines * self.hardware.peak)
        found.engine_busy = (end.busy - begin.busy) / (found.seconds * engines)
        found.learner_busy = (end.learning - begin.learning) / found.seconds
        found.wasted = self._given_up / max(self._given_up + sum(self._trained), 1)
        found.length_bias = fmean(self._trained) / fmean(self._drawn)
        return found
