"""Batches that are played ahead of the learner: the schedule's decisions, carried out.

Every attempt is a task. When one ends, when weights change, when a batch is taken and when a straggler's time is up,
the schedule is asked what to start and what to end. A trajectory goes on over a change of weights: the engine computes
its cache anew and samples the next token with the new weights, so that its tokens carry several versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_rl.algorithms.advantages import is_dead_group
from agent_rl.algorithms.settings import resolve
from agent_rl.config import ConfigError
from agent_rl.engines.base import Sampling
from agent_rl.rollout.run import Clocks, TooManyFailures
from agent_rl.scheduling.groups import GroupState
from agent_rl.scheduling.schedule import Schedule, Taken
from agent_rl.tasks.stream import ProblemStream
from agent_rl.training.metrics import oldest_version
from agent_rl.training.parts import Parts
from agent_rl.training.progress import Display
from agent_rl.training.settings import RunConfig
from agent_rl.training.unfinished import Unfinished
from agent_rl.types import Group, Problem, StopReason, Trajectory


@dataclass
class _Play:
    """A group that is not trained on yet: its problem, and the trajectories that ended."""

    problem: Problem
    ended: dict[int, Trajectory] = field(default_factory=dict)
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    finished: float = 0.0

    def group(self) -> Group:
        return Group(self.problem, [self.ended[sample] for sample in sorted(self.ended)])


@dataclass
class AsynchronousSource:
    """Keeps rollouts in flight while the learner works, within the limits of `config.asynchronous`.

    Args:
        unfinished: where trajectories that wait are kept beside a checkpoint.
    """

    config: RunConfig
    parts: Parts
    display: Display
    unfinished: Unfinished

    def __post_init__(self) -> None:
        self.clocks = Clocks()
        config = self.config
        self._refuse_shared_ids()
        self._advantage = resolve(config.method).advantage
        self._stream = ProblemStream(self.parts.data.train, config.problems_per_step, config.seed)
        self.schedule = self._schedule(0)
        self._plays: dict[int, _Play] = {}
        self._tasks: dict[asyncio.Task[None], str] = {}
        """Every task that has not ended, with its problem: until then the engine knows the problem's name."""
        self._fault: BaseException | None = None
        self._changed = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._on_end: Callable[[], None] = lambda: None
        self._metrics: dict[str, float] = {}
        self._under_way: dict[int, _Play] = {}
        """The batch that is learnt from."""
        self._closed = False

    def _refuse_shared_ids(self) -> None:
        """Attempts are named by problem, and those of a measurement are played beside those of training."""
        trained = {problem.id for problem in self.parts.data.train}
        for held_out in self.parts.data.held_out:
            shared = sorted(trained & {problem.id for problem in held_out.problems})
            if shared:
                raise ConfigError(
                    f"{len(shared)} problems of evals.{held_out.name} have the id of a problem to train on, such as "
                    f"{shared[0]!r}; mode = async plays both at once: give them ids of their own, or use mode: sync"
                )

    def _schedule(self, version: int) -> Schedule:
        config = self.config
        return Schedule(
            config.asynchronous,
            batch=config.problems_per_step,
            samples=config.samples_per_problem,
            max_attempts=config.rollout.max_concurrent,
            replacements=config.refill_rounds * config.problems_per_step,
            steps=config.steps,
            version=version,
        )

    # --- for the training loop ---

    async def batch(self, step: int) -> list[Group]:
        """The next batch, as soon as it is complete.

        Raises:
            TooManyFailures: too many of its episodes failed for reasons of ours, or nothing ended in time.
        """
        begun = time.monotonic()
        self._advance()
        total = self.config.problems_per_step * self.config.samples_per_problem
        with self.display.bar(f"step {step}", total) as bar:
            self._on_end = bar.advance
            try:
                while not self.schedule.complete(time.monotonic() - begun):
                    await self._wait(begun)
            finally:
                self._on_end = lambda: None
        taken = self.schedule.take()
        groups = [self._plays.pop(ticket) for ticket in (*taken.batch, *taken.dead)]
        self._under_way = dict(zip((*taken.batch, *taken.dead), groups, strict=True))
        self._metrics = self._measures(taken, groups[: len(taken.batch)])
        for ticket in (*taken.dropped, *taken.cancelled):
            self._forget(ticket)
        self._advance()
        batch = [play.group() for play in groups]
        self.parts.rollout.check_failures([t for group in batch for t in group])
        return batch

    def learnt(self) -> None:
        self.schedule.trained()
        self._under_way = {}

    def weights_served(self) -> None:
        self._advance()

    def metrics(self) -> dict[str, float]:
        return self._metrics

    def moved_on(self) -> bool:
        return bool(self.schedule.groups)

    def progress(self, step: int) -> dict[str, Any]:
        plays = {**self._under_way, **self._plays}
        ended = [(ticket, t) for ticket, play in plays.items() for t in play.ended.values()]
        kept = self.unfinished.save(step, ended) if ended else ""
        return {"stream": self._stream.state(), "unfinished": {**self.schedule.saved(), "kept": kept}}

    def saved(self, progress: dict[str, Any], checkpoints: Path) -> None:
        steps = [int(path.name.removeprefix("step-")) for path in checkpoints.glob("step-*")]
        self.unfinished.keep(steps, progress["unfinished"]["kept"])

    def restore(self, progress: dict[str, Any], step: int) -> None:
        self._stream.restore(progress["stream"])
        state = progress.get("unfinished")
        self.schedule = self._schedule(step)
        if state is None:
            return
        problems = {problem.id: problem for problem in self.parts.data.train}
        self._plays = {g["ticket"]: _Play(problems[g["problem"]]) for g in state["groups"]}
        now = time.monotonic()
        for ticket, trajectory in self.unfinished.load(state["kept"]):
            self._plays[ticket].ended[trajectory.sample] = trajectory
            self._plays[ticket].finished = now
        kept = {(ticket, sample) for ticket, play in self._plays.items() for sample in play.ended}
        self.schedule.restore(state, self.parts.engine.weight_version, now, kept)
        finished, playing = self.schedule.expire()
        for ticket in (*finished, *playing):
            self._forget(ticket)
        again = [group for group in self.schedule.groups.values() if group.running]
        self.display.say(
            f"{len(kept)} finished trajectories that were not trained on are restored; "
            f"{sum(group.running for group in again)} that were in flight are played again"
        )
        for group in again:
            self._play(group)

    async def close(self) -> None:
        """End all attempts, and wait until they have."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for ticket in list(self._plays):
            self._forget(ticket)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- carrying decisions out ---

    def _advance(self) -> None:
        """Do what the schedule decides now, and see to it that it is asked again in time."""
        if self._closed:
            return
        now = time.monotonic()
        for ticket, sample in self.schedule.stragglers(now):
            self._cut(ticket, sample)
        while self._fault is None and self.schedule.room(self.parts.engine.weight_version):
            problem = self._draw()
            if problem is None:
                break
            group = self.schedule.start(problem.id, self.parts.engine.weight_version, now)
            self._plays[group.ticket] = _Play(problem)
            self._play(group)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if (due := self.schedule.next_straggler()) is not None:
            self._alarm = asyncio.get_running_loop().call_later(max(due - now, 0.0) + 1e-3, self._advance)
        self._changed.set()

    def _draw(self) -> Problem | None:
        """A problem that no attempt is at and no batch to come holds; None if there is none now."""
        taken = self.schedule.problems() | set(self._tasks.values())
        if len(taken) >= len(self.parts.data.train):
            return None
        return next(iter(self._stream.next_batch(1, apart_from=taken)), None)

    def _play(self, group: GroupState) -> None:
        """Start the attempts of a group that have not ended."""
        play = self._plays[group.ticket]
        for sample in range(group.samples):
            if sample not in group.ended:
                task = asyncio.create_task(self._attempt(group.ticket, play.problem, sample))
                play.tasks[sample] = task
                self._tasks[task] = play.problem.id
                task.add_done_callback(self._left)

    async def _attempt(self, ticket: int, problem: Problem, sample: int) -> None:
        play = self.parts.rollout.play(
            [(problem, sample)],
            sampling=Sampling(temperature=self.config.temperature),
            stream=f"{self.config.seed}/ticket/{ticket}",
            clocks=self.clocks,
        )
        async with contextlib.aclosing(play):
            async for trajectory in play:
                self._ended(ticket, trajectory)

    def _left(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and task.exception() is not None:
            self._fault = self._fault or task.exception()
        self._advance()

    def _ended(self, ticket: int, trajectory: Trajectory) -> None:
        play, now = self._plays[ticket], time.monotonic()
        play.ended[trajectory.sample] = trajectory
        play.tasks.pop(trajectory.sample, None)
        self._on_end()
        if self.schedule.end(ticket, trajectory.sample, oldest_version(trajectory), now):
            play.finished = now
            self.schedule.judge(ticket, dead=is_dead_group([t.reward for t in play.group()], self._advantage))
        self._changed.set()

    def _cut(self, ticket: int, sample: int) -> None:
        """End an attempt that its group does not wait for any longer; it counts as a failure of ours."""
        play = self._plays[ticket]
        play.tasks[sample].cancel()
        self.schedule.counters.stragglers_cut += 1
        patience = self.config.asynchronous.straggler_s
        error = f"its group did not wait for it longer than asynchronous.straggler_s = {patience:g} s"
        prompt = self.parts.rollout.format.prompt(play.problem.question)
        self._ended(ticket, Trajectory(play.problem, sample, [prompt], stop=StopReason.DEADLINE, error=error))

    def _forget(self, ticket: int) -> None:
        for task in self._plays.pop(ticket).tasks.values():
            task.cancel()

    async def _wait(self, begun: float) -> None:
        """Until something happened or the step's deadline passed."""
        if self._fault is not None:
            raise self._fault
        limit = self.config.asynchronous.step_deadline_s
        left = begun + limit - time.monotonic()
        if left <= 0:
            raise TooManyFailures(
                f"no group was finished within asynchronous.step_deadline_s = {limit:g} s; "
                f"{self.schedule.attempts} attempts are in flight: look at the engine and the sandbox, or raise it"
            )
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), left)

    def _measures(self, taken: Taken, plays: list[_Play]) -> dict[str, float]:
        now, counters = time.monotonic(), self.schedule.counters
        versions = [v for play in plays for t in play.ended.values() if (v := oldest_version(t)) is not None]
        limit = self.config.asynchronous.max_staleness
        if versions and taken.version - min(versions) > limit:
            raise RuntimeError(
                f"a trajectory of weight version {min(versions)} was about to be trained on by version "
                f"{taken.version}, more than asynchronous.max_staleness = {limit} behind: the engine serves older "
                "weights than it says"
            )
        return {
            "async/waited_for_learner": sum(now - play.finished for play in plays) / max(len(plays), 1),
            "async/ready": float(self.schedule.ready),
            "async/in_flight": float(self.schedule.attempts),
            **{f"async/{name}": float(value) for name, value in counters.saved().items()},
        }
