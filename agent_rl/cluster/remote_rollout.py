"""The rollout actors, as the training loop sees them. Attempts go to the actor with the fewest.

An actor that is gone is started again by Ray; it gets the weights of the moment before it plays. An attempt that was
with it is played anew elsewhere with the same random streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from agent_rl.cluster.faults import RowOfFailures
from agent_rl.cluster.rollout_actor import About, Place, Played
from agent_rl.cluster.settings import ClusterSettings
from agent_rl.engines.base import Sampling
from agent_rl.rollout.run import Attempt, Clocks, Player, as_they_end
from agent_rl.rollout.settings import RolloutSettings
from agent_rl.scheduling.routing import Routes
from agent_rl.tir.formats import PromptFormat
from agent_rl.training.recovery import PartLost
from agent_rl.types import Problem, StopReason, Trajectory
from agent_rl.weights.errors import SyncError

MOVES = 3
"""How often an attempt is played anew because its actor was lost; then it counts as a failure of ours."""

DEAD_CALLS, BETWEEN_CALLS = 5, 2.0
"""Calls in a row that are told that an actor is dead before that is believed, and seconds between two."""

HandOver = Callable[[Place], Awaitable[int | None]]


@dataclass
class RemoteRollout(Player):
    """`Player` over actors.

    Args:
        actors: handles by number; each is ready.
        first: what each actor said when it was ready.
        say: told when an actor is lost or back.
    """

    ray: Any
    actors: dict[int, Any]
    first: dict[int, Place]
    format: PromptFormat
    settings: RolloutSettings
    cluster: ClusterSettings
    episode_s: float
    """Longest wait for one attempt, retries and verdict included; an actor that takes longer is started afresh."""
    say: Callable[[str], None] = lambda text: None
    hand_over: HandOver | None = None
    """Brings the weights of the moment to an actor that is back, and says their version."""
    wanted: int = 0
    """Version of the weights that an actor must have before it plays."""
    weight_version: int = 0
    """Version that every actor serves that plays."""
    _clocks: dict[int, dict[str, float]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._here = dict(self.first)
        self._routes: Routes[int] = Routes(list(self._here))
        self._changed = asyncio.Event()
        self._coming_back: dict[int, asyncio.Task[None]] = {}
        self._failures = RowOfFailures()
        self._gate = asyncio.Semaphore(self.settings.max_concurrent)
        self.lost = 0
        """Actors lost so far."""
        self.moved = 0
        """Attempts that were played anew because their actor was lost."""

    # --- actors ---

    def places(self) -> list[Place]:
        """The actors that are here now."""
        return list(self._here.values())

    async def someone(self) -> None:
        """Wait until there is an actor.

        Raises:
            PartLost: none is left, and none is coming back.
        """
        while not self._routes.places:
            if not self._coming_back:
                raise PartLost(f"all {len(self.actors)} rollout actors are lost and none could be started again")
            self._changed.clear()
            await self._changed.wait()

    async def find_lost(self, places: Sequence[Place]) -> list[Place]:
        """Which of these do not answer any more; they are let go."""
        found = []
        for place in places:
            try:
                await asyncio.wait_for(_ref(place.actor.ping.remote()), self.cluster.start_timeout_s)
            except (self.ray.exceptions.RayActorError, TimeoutError):
                found.append(place)
                self._lose(place)
        return found

    def _lose(self, place: Place) -> None:
        """An actor is gone: nothing is sent to it until it is back with the weights of the moment."""
        if self._here.get(place.number) is not place:
            return
        self.lost += 1
        del self._here[place.number]
        self._routes.lose(place.number)
        self._clocks.pop(place.number, None)
        self.say(f"rollout actor {place.number} was lost; its attempts are played anew, and it is started again")
        self._coming_back[place.number] = asyncio.create_task(self._come_back(place))

    async def _come_back(self, place: Place) -> None:
        number, actor = place.number, place.actor
        try:
            again = Place(number, actor, await asyncio.wait_for(self._restarted(actor), self.cluster.start_timeout_s))
            served: int | None = None
            # A hand-over to the others may have begun meanwhile: then this one gets those weights, too.
            while served is None or served < self.wanted:
                assert self.hand_over is not None
                if (served := await self.hand_over(again)) is None:
                    raise PartLost(f"rollout actor {number} was lost again while it took weights")
            self._here[number] = again
            self._routes.add(number)
            self.say(f"rollout actor {number} is back")
        except (self.ray.exceptions.RayError, TimeoutError, PartLost, SyncError) as error:
            reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            self.say(f"rollout actor {number} does not come back ({reason}); the run goes on without it")
        finally:
            del self._coming_back[number]
            self._changed.set()

    async def _restarted(self, actor: Any) -> About:
        """What the actor says of itself once Ray has started it again; calls fail until it is there.

        Raises:
            RayActorError: it is dead for good.
        """
        dead = 0
        while True:
            try:
                return await _ref(actor.start.remote())
            except self.ray.exceptions.RayActorError as error:
                dead = dead + 1 if isinstance(error, self.ray.exceptions.ActorDiedError) else 0
                if dead == DEAD_CALLS:
                    raise
                await asyncio.sleep(BETWEEN_CALLS)

    def metrics(self) -> dict[str, float]:
        return {
            "cluster/actors": float(len(self._here)),
            "cluster/actors_lost": float(self.lost),
            "cluster/attempts_moved": float(self.moved),
        }

    # --- attempts ---

    async def play(
        self, attempts: Sequence[Attempt], *, sampling: Sampling, stream: str, clocks: Clocks | None = None
    ) -> AsyncGenerator[Trajectory, None]:
        clocks = clocks or Clocks()

        async def one(problem: Problem, sample: int) -> Trajectory:
            async with self._gate:
                return await self._attempt(problem, sample, sampling, stream, clocks)

        async with aclosing(as_they_end([one(problem, sample) for problem, sample in attempts])) as ended:
            async for trajectory in ended:
                yield trajectory

    async def _attempt(
        self, problem: Problem, sample: int, sampling: Sampling, stream: str, clocks: Clocks
    ) -> Trajectory:
        name = f"{stream}/{problem.id}#{sample}"
        for _ in range(MOVES + 1):
            await self.someone()
            place = self._here[self._routes.send(name)]
            ref = place.actor.play.remote(problem, sample, sampling, stream)
            try:
                played = await asyncio.wait_for(_ref(ref), self.episode_s)
            except asyncio.CancelledError:
                self.ray.cancel(ref)
                raise
            except (self.ray.exceptions.RayActorError, TimeoutError) as error:
                if isinstance(error, TimeoutError):
                    self.say(f"rollout actor {place.number} did not end an episode within {self.episode_s:g} s")
                    self.ray.kill(place.actor, no_restart=False)
                self._lose(place)
                self.moved += 1
                continue
            finally:
                self._routes.done(name)
            self._count(place, played, clocks)
            return played.trajectory
        error = f"engine: {MOVES + 1} rollout actors were lost while they played it; it may be what breaks them"
        return Trajectory(problem, sample, [self.format.prompt(problem.question)], stop=StopReason.FAILED, error=error)

    def _count(self, place: Place, played: Played, clocks: Clocks) -> None:
        """Clocks show the mean over actors; one that fails again and again is started afresh."""
        before = self._clocks.get(place.number, {})
        for activity, seconds in played.busy.items():
            clock = getattr(clocks, activity)
            clock.seconds += max(seconds - before.get(activity, 0.0), 0.0) / len(self.actors)
        self._clocks[place.number] = played.busy
        clocks.sampled_tokens += played.tokens
        trajectory = played.trajectory
        broken = trajectory.stop is StopReason.FAILED and (trajectory.error or "").startswith(("engine:", "sandbox:"))
        if self._failures.note(place.number, failed=broken) and self._here.get(place.number) is place:
            self.say(f"rollout actor {place.number} failed {self._failures.limit} times in a row: {trajectory.error}")
            self.ray.kill(place.actor, no_restart=False)
            self._lose(place)

    async def close(self) -> None:
        """Wait for nobody any more."""
        for task in self._coming_back.values():
            task.cancel()
        await asyncio.gather(*self._coming_back.values(), return_exceptions=True)


async def _ref(ref: Any) -> Any:
    """Await an object reference; a task of its own so that it can be cancelled and timed."""
    return await ref
