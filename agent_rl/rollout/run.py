"""Many episodes at once: play, judge, gather into groups, and stop when it is us who keep failing."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from agent_rl.engines.base import Engine, Generation, GenerationRequest, Sampling
from agent_rl.rewards.settings import RewardSettings
from agent_rl.rewards.shaping import reward_parts
from agent_rl.rewards.verifier import Verifier
from agent_rl.rollout.busy import BusyClock
from agent_rl.rollout.settings import RolloutSettings
from agent_rl.tir.episode import AnswerRules, EpisodeContext, run_episode
from agent_rl.tir.formats import PromptFormat
from agent_rl.tir.settings import TirSettings
from agent_rl.tir.tool import PythonTool
from agent_rl.types import Group, InfrastructureError, Origin, Problem, StopReason, ToolOutcome, Trajectory

Attempt = tuple[Problem, int]
"""A problem and the index of a sample of it."""


class TooManyFailures(RuntimeError):
    """So many episodes failed for reasons of ours that going on would waste the run."""


@dataclass
class Clocks:
    """Wall time of rollouts by activity; the three overlap."""

    generation: BusyClock = field(default_factory=BusyClock)
    tools: BusyClock = field(default_factory=BusyClock)
    verdicts: BusyClock = field(default_factory=BusyClock)
    sampled_tokens: int = 0

    def read(self) -> dict[str, float]:
        """Busy seconds so far by activity, what is going on now included."""
        return {name: getattr(self, name).read() for name in ("generation", "tools", "verdicts")}


class Player(ABC):
    """Plays and judges attempts, wherever that happens."""

    format: PromptFormat
    settings: RolloutSettings

    @abstractmethod
    def play(
        self, attempts: Sequence[Attempt], *, sampling: Sampling, stream: str, clocks: Clocks | None = None
    ) -> AsyncGenerator[Trajectory, None]:
        """Judged trajectories, each as it ends. Leaving the loop early cancels what is in flight."""

    def metrics(self) -> dict[str, float]:
        """Of the places where attempts are played, if there are several."""
        return {}

    async def groups(
        self,
        problems: Sequence[Problem],
        samples: int,
        *,
        sampling: Sampling,
        stream: str,
        clocks: Clocks | None = None,
        on_finish: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> list[Group]:
        """`samples` attempts at each problem, in the order of the problems.

        Args:
            stream: names the random streams; see `agent_rl.tir.episode.stream_seed`.
            on_finish: called as each trajectory is judged.

        Raises:
            TooManyFailures: the share of failed episodes is above `max_failed_share`.
        """
        attempts = [(problem, sample) for problem in problems for sample in range(samples)]
        done: dict[str, Trajectory] = {}
        async for trajectory in self.play(attempts, sampling=sampling, stream=stream, clocks=clocks):
            done[trajectory.key] = trajectory
            on_finish(trajectory)
        ordered = [done[f"{problem.id}#{sample}"] for problem, sample in attempts]
        self.check_failures(ordered)
        return [Group(problem, ordered[i * samples : (i + 1) * samples]) for i, problem in enumerate(problems)]

    def check_failures(self, trajectories: Sequence[Trajectory]) -> None:
        """Raises TooManyFailures if more of these than the settings bear failed for reasons of ours."""
        failed = [t for t in trajectories if t.failed]
        if len(failed) <= self.settings.max_failed_share * len(trajectories):
            return
        raise TooManyFailures(
            f"{len(failed)} of {len(trajectories)} episodes failed for reasons that are not the model's "
            f"(rollout.max_failed_share = {self.settings.max_failed_share:g}); the last said: {failed[-1].error}"
        )


async def as_they_end(work: Iterable[Coroutine[Any, Any, Trajectory]]) -> AsyncGenerator[Trajectory, None]:
    """Run all of it at once and yield each result as it comes; what still runs when this is closed is cancelled."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        for task in asyncio.as_completed(tasks):
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True)
class Rollout(Player):
    """Plays and judges attempts, `max_concurrent` at a time, over one engine and one sandbox."""

    engine: Engine
    format: PromptFormat
    answers: AnswerRules
    verifier: Verifier
    open_tool: Callable[[Problem, int], PythonTool]
    tir: TirSettings
    rewards: RewardSettings
    settings: RolloutSettings
    lockstep: bool = False
    """Deterministic runs: a fixed set of episodes starts together and the engine waits for all of them."""

    async def play(
        self, attempts: Sequence[Attempt], *, sampling: Sampling, stream: str, clocks: Clocks | None = None
    ) -> AsyncGenerator[Trajectory, None]:
        """Judged trajectories, each as it ends. Leaving the loop early cancels what is in flight."""
        clocks = clocks or Clocks()
        context = self._context(sampling, stream, clocks)
        if self.lockstep:
            size = self.settings.max_concurrent
            for start in range(0, len(attempts), size):
                async for trajectory in self._play_together(attempts[start : start + size], context, clocks):
                    yield trajectory
        else:
            async for trajectory in self._play_together(attempts, context, clocks):
                yield trajectory

    async def _play_together(
        self, attempts: Sequence[Attempt], context: EpisodeContext, clocks: Clocks
    ) -> AsyncIterator[Trajectory]:
        gate = asyncio.Semaphore(self.settings.max_concurrent)
        self.engine.expect([f"{problem.id}#{sample}" for problem, sample in attempts])

        async def one(problem: Problem, sample: int) -> Trajectory:
            async with gate:
                return await self._attempt(problem, sample, context, clocks)

        async with aclosing(as_they_end([one(problem, sample) for problem, sample in attempts])) as ended:
            async for trajectory in ended:
                yield trajectory

    async def _attempt(self, problem: Problem, sample: int, context: EpisodeContext, clocks: Clocks) -> Trajectory:
        for retry in range(self.settings.episode_retries + 1):
            if retry:
                self.engine.expect([f"{problem.id}#{sample}"])
            trajectory = await run_episode(problem, sample, context)
            if not trajectory.failed:
                break
        await self._judge(trajectory, clocks)
        return trajectory

    async def _judge(self, trajectory: Trajectory, clocks: Clocks) -> None:
        if trajectory.failed:
            return
        problem = trajectory.problem
        try:
            with clocks.verdicts.track():
                trajectory.verdict = await self.verifier.verify(trajectory.answer, problem.gold, kind=problem.kind)
        except InfrastructureError as error:
            trajectory.stop, trajectory.error = StopReason.FAILED, str(error)
            return
        outcomes = [turn.outcome for turn in trajectory.turns if turn.outcome is not None]
        succeeded = sum(outcome.ok for outcome in outcomes)
        trajectory.reward_parts = reward_parts(
            trajectory.verdict,
            self.rewards,
            tokens=sum(len(s.ids) for s in trajectory.segments if s.origin is not Origin.PROMPT),
            calls_succeeded=succeeded,
            calls_failed=len(outcomes) - succeeded,
        )
        trajectory.reward = sum(trajectory.reward_parts.values())

    def _context(self, sampling: Sampling, stream: str, clocks: Clocks) -> EpisodeContext:
        def open_tool(problem: Problem, sample: int) -> PythonTool:
            return _TimedTool(self.open_tool(problem, sample), clocks.tools)

        return EpisodeContext(
            engine=_TimedEngine(self.engine, clocks),
            format=self.format,
            answers=self.answers,
            settings=self.tir,
            sampling=sampling,
            open_tool=open_tool,
            stream=stream,
        )


@dataclass
class _TimedEngine:
    """The engine, with its busy time on a clock and its tokens counted."""

    engine: Engine
    clocks: Clocks

    async def generate(self, request: GenerationRequest) -> Generation:
        with self.clocks.generation.track():
            generation = await self.engine.generate(request)
        self.clocks.sampled_tokens += len(generation.ids)
        return generation

    def release(self, trajectory: str) -> None:
        self.engine.release(trajectory)


@dataclass
class _TimedTool:
    """A tool, with its busy time on a clock."""

    tool: PythonTool
    clock: BusyClock

    async def run(self, code: str, *, deadline: float) -> ToolOutcome:
        with self.clock.track():
            return await self.tool.run(code, deadline=deadline)

    async def close(self) -> None:
        await self.tool.close()
