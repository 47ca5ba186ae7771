"""The schedule of an asynchronous run: an earliest-deadline-first queue of groups over weight versions.

A group that starts while version `e` is served may hold tokens of `e`, so that it must be in the batch that version
`e + max_staleness` learns from, or an earlier one: that batch is its deadline. A batch takes finished groups, earliest
deadline first. Two rules keep every deadline without giving up a single finished group:

* admission: a group starts only if, counting all that are not trained on yet, at most B groups a batch are due by
  each batch to come (B = groups of a batch);
* completion: a batch is not taken before it holds so many of the groups due soonest that the rest can still be on
  time, even if later groups are finished already.

Over-sampling permits `surplus` groups more than that at a time, and those are what may be given up. Nothing here
waits, sleeps or reads a clock: times are handed in, so that a simulation drives the same code as a run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_rl.scheduling.groups import Counters, GroupState
from agent_rl.scheduling.settings import AsyncSettings


@dataclass(frozen=True, slots=True)
class Taken:
    """One batch, and what ended with it."""

    version: int
    """Weights that it is trained with."""
    batch: tuple[int, ...]
    """Tickets, those due soonest first."""
    dead: tuple[int, ...]
    """Finished without a signal since the last batch, and replaced."""
    dropped: tuple[int, ...]
    """Finished, but too old for any later batch."""
    cancelled: tuple[int, ...]
    """Still played, and not wanted any more."""
    short: bool
    """Whether the step's deadline cut it short."""


class Schedule:
    """The state of all groups that are started and not trained on.

    Args:
        rules: staleness, surplus and deadlines.
        batch: groups of a batch.
        samples: attempts of a group.
        max_attempts: most attempts that are played at once.
        replacements: dead groups of one batch that are replaced.
        steps: batches of the run.
        version: the version that the next batch is trained with: batches trained on so far.
    """

    def __init__(
        self,
        rules: AsyncSettings,
        *,
        batch: int,
        samples: int,
        max_attempts: int,
        replacements: int = 0,
        steps: int = 1 << 40,
        version: int = 0,
    ):
        self.rules, self.batch, self.samples = rules, batch, samples
        self.max_attempts, self.replacements, self.steps = max_attempts, replacements, steps
        self.version = version
        self.surplus = math.ceil((rules.oversample - 1.0) * batch)
        self.counters = Counters()
        self.groups: dict[int, GroupState] = {}
        """Every group that is neither trained on nor given up, by ticket, in the order of their start."""
        self._ready: dict[int, GroupState] = {}
        self._taken: dict[int, GroupState] = {}
        """The batch that is learnt from now, with the dead groups of it and of the next one."""
        self._dead: list[int] = []
        """Dead groups that belong to the next batch."""
        self._next_ticket = 0

    # --- what is there ---

    @property
    def ready(self) -> int:
        """Finished groups that wait for the learner."""
        return len(self._ready)

    @property
    def attempts(self) -> int:
        """Attempts that are played now."""
        return sum(group.running for group in self.groups.values())

    def problems(self) -> set[str]:
        """Ids of all problems that are not trained on yet, those of the batch under way included."""
        return {group.problem for group in (*self.groups.values(), *self._taken.values())}

    # --- starting ---

    def room(self, served: int) -> int:
        """How many groups may start now, while weights of version `served` are served."""
        batches = min(served + self.rules.max_staleness, self.steps - 1) - self.version + 1
        if batches <= 0 or (self.rules.max_buffered is not None and self.ready >= self.rules.max_buffered):
            return 0
        # Surplus is against stragglers: while a whole batch is ready nobody waits for one.
        allowed = batches * self.batch + (self.surplus if self.ready < self.batch else 0)
        playing = self.attempts
        slots = (self.max_attempts - playing) // self.samples if playing else max(self.max_attempts // self.samples, 1)
        return max(0, min(allowed - len(self.groups), slots))

    def start(self, problem: str, served: int, now: float) -> GroupState:
        """Note that a group starts. The caller asked `room` before."""
        group = GroupState(self._next_ticket, problem, self.samples, served, now)
        self._next_ticket += 1
        self.groups[group.ticket] = group
        self.counters.started += 1
        return group

    # --- ending ---

    def end(self, ticket: int, sample: int, version: int | None, now: float) -> bool:
        """An attempt ended, with `version` the oldest among its tokens; whether its group is finished with it."""
        group = self.groups[ticket]
        group.end(sample, version, now)
        return group.finished is not None

    def judge(self, ticket: int, *, dead: bool) -> bool:
        """A finished group joins those that wait for the learner, unless it is dead and may be replaced; whether it
        joined."""
        self.counters.finished += 1
        if dead and len(self._dead) < self.replacements:
            self._dead.append(ticket)
            group = self._taken[ticket] = self.groups.pop(ticket)
            group.dead = True
            self.counters.dead_replaced += 1
            return False
        self._ready[ticket] = self.groups[ticket]
        return True

    def stragglers(self, now: float) -> list[tuple[int, int]]:
        """(ticket, sample) of attempts that their group should not wait for any longer."""
        found = []
        for group in self.groups.values():
            if (until := self._patience(group)) is not None and until <= now:
                found += [(group.ticket, sample) for sample in range(group.samples) if sample not in group.ended]
        return found

    def next_straggler(self) -> float | None:
        """The earliest time at which `stragglers` would name an attempt, if nothing else happens."""
        return min((t for g in self.groups.values() if (t := self._patience(g)) is not None), default=None)

    def _patience(self, group: GroupState) -> float | None:
        needed = group.samples // 2 + 1
        if self.rules.straggler_s is None or not group.running or len(group.ended) < needed:
            return None
        return sorted(group.ended.values())[needed - 1] + self.rules.straggler_s

    # --- batches ---

    def complete(self, waited: float) -> bool:
        """Whether a batch may be taken by a learner that has waited for `waited` seconds."""
        if waited >= self.rules.step_deadline_s:
            return bool(self._ready)
        if len(self._ready) < self.batch:
            return False
        chosen = [self._due(group) for group in self._choice()]
        everything = [self._due(group) for group in self.groups.values()]
        for later in range(self.rules.max_staleness + 1):
            due = self.version + later
            needed = _up_to(everything, due) - later * self.batch - self.surplus
            if _up_to(chosen, due) < min(needed, self.batch):
                return False
        return True

    def take(self) -> Taken:
        """Take the batch that `complete` spoke of; the learner trains on it with `version`, which then is one more.

        Raises:
            ValueError: nothing is finished.
        """
        chosen = self._choice()
        if not chosen:
            raise ValueError("no group is finished: there is no batch to take")
        for group in chosen:
            del self._ready[group.ticket], self.groups[group.ticket]
            self._taken[group.ticket] = group
        newest = max(group.ticket for group in chosen)
        short = len(chosen) < self.batch
        self.counters.short_batches += short
        version, self.version = self.version, self.version + 1
        dropped, cancelled = self.expire()
        cancelled += self._overtaken(newest, self.surplus - len(cancelled))
        dead, self._dead = tuple(self._dead), []
        return Taken(version, tuple(g.ticket for g in chosen), dead, dropped, cancelled, short)

    def trained(self) -> None:
        """The batch that was taken last is learnt from: it is no part of what a checkpoint must hold any more."""
        self.counters.trained += sum(not group.dead for group in self._taken.values())
        self._taken = {ticket: self._taken[ticket] for ticket in self._dead}

    def expire(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Forget the groups that are too old for any batch to come; tickets of (finished, still played) ones."""
        stale = [group for group in self.groups.values() if self._due(group) < self.version]
        playing = tuple(group.ticket for group in stale if group.running)
        finished = tuple(group.ticket for group in stale if not group.running)
        self.counters.stale_finished += len(finished)
        self.counters.stale_cancelled += len(playing)
        self._forget((*playing, *finished))
        return finished, playing

    def _choice(self) -> list[GroupState]:
        return sorted(self._ready.values(), key=lambda group: (group.version, group.ticket))[: self.batch]

    def _due(self, group: GroupState) -> int:
        """Last version that may learn from the group."""
        return group.version + self.rules.max_staleness

    def _overtaken(self, newest: int, most: int) -> tuple[int, ...]:
        """Forget groups that are still played although later ones are trained on, if the rules say so."""
        if self.rules.surplus == "keep":
            return ()
        found = [group.ticket for group in self.groups.values() if group.running and group.ticket < newest]
        found = found[: max(most, 0)]
        self.counters.surplus_cancelled += len(found)
        self._forget(found)
        return tuple(found)

    def _forget(self, tickets: Iterable[int]) -> None:
        for ticket in tickets:
            self.groups.pop(ticket)
            self._ready.pop(ticket, None)

    # --- checkpoints ---

    def saved(self) -> dict[str, Any]:
        """Plain JSON of all that is not trained on: the batch that is being learnt from counts as finished."""
        groups = sorted([*self._taken.values(), *self.groups.values()], key=lambda group: group.ticket)
        return {
            "next_ticket": self._next_ticket,
            "counters": self.counters.saved(),
            "groups": [group.saved() for group in groups],
        }

    def restore(self, state: Mapping[str, Any], served: int, now: float, kept: Collection[tuple[int, int]]) -> None:
        """Go on where `saved` was called.

        Attempts in `kept`, as (ticket, sample), are there as they had ended; all others are to be played again and
        will hold only tokens of `served` and later. Call `expire` afterwards if the rules may have changed.
        """
        self._next_ticket = int(state["next_ticket"])
        self.counters = Counters.restored(state["counters"])
        for values in state["groups"]:
            ticket = int(values["ticket"])
            ended = {sample: now for sample in values["ended"] if (ticket, sample) in kept}
            version = int(values["version"]) if ended else served
            group = GroupState(ticket, values["problem"], int(values["samples"]), version, now, ended)
            group.oldest = values["oldest"] if ended else None
            was_finished = len(values["ended"]) == group.samples
            if group.running:
                self.counters.finished -= was_finished
                self.counters.dead_replaced -= values["dead"]
                self.groups[ticket] = group
                continue
            group.finished, group.dead = now, values["dead"]
            if group.dead:
                self._taken[ticket] = group
                self._dead.append(ticket)
            else:
                self.groups[ticket] = self._ready[ticket] = group


def _up_to(dues: list[int], due: int) -> int:
    return sum(d <= due for d in dues)
