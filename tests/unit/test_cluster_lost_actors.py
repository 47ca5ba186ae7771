"""Attempts over rollout actors that die, hang, fail and come back: the routes and the waits, without a cluster.

Actors are objects of this process with Ray's way of calling, and Ray's own exceptions.
"""

from __future__ import annotations

import asyncio
import types
from dataclasses import dataclass, field

import pytest
import torch

from agent_rl.cluster import remote_rollout
from agent_rl.cluster.remote_rollout import RemoteRollout
from agent_rl.cluster.rollout_actor import About, Place, Played
from agent_rl.cluster.settings import ClusterSettings
from agent_rl.engines.base import Sampling
from agent_rl.rollout.run import Clocks
from agent_rl.rollout.settings import RolloutSettings
from agent_rl.tir.formats import prompt_format
from agent_rl.tir.settings import TirSettings
from agent_rl.training.recovery import PartLost
from agent_rl.types import Origin, Problem, Segment, StopReason, Trajectory
from tests.toys import chatml_tokenizer

exceptions = pytest.importorskip("ray.exceptions")
PROBLEMS = [Problem(f"p{i}", "What is 1 + 1?", "2") for i in range(6)]


@dataclass
class Method:
    call: object

    def remote(self, *arguments):
        return asyncio.ensure_future(self.call(*arguments))


@dataclass
class Actor:
    """Plays at once, unless it is told otherwise."""

    alive: bool = True
    revives: bool = True
    hangs: bool = False
    fatal: str = ""
    """Id of a problem that ends it."""
    error: str = ""
    played: list[str] = field(default_factory=list)
    starts: int = 0

    def __getattr__(self, name):
        return Method(object.__getattribute__(self, f"do_{name}"))

    async def do_start(self) -> About:
        if not self.alive and not self.revives:
            raise exceptions.ActorDiedError()
        self.alive = True
        self.starts += 1
        return About("none", torch.float32, {}, self.starts)

    async def do_ping(self) -> int:
        if not self.alive:
            raise exceptions.ActorDiedError()
        return 1

    async def do_play(self, problem, sample, sampling, stream) -> Played:
        await asyncio.sleep(0.01)
        if problem.id == self.fatal:
            self.alive = False
        if self.hangs:
            await asyncio.sleep(3600)
        if not self.alive:
            raise exceptions.ActorUnavailableError("gone", b"0" * 16)
        self.played.append(f"{problem.id}#{sample}")
        segments = [Segment(Origin.PROMPT, (1,)), Segment(Origin.MODEL, (2, 3), (-1.0, -1.0), (0, 0))]
        stop = StopReason.FAILED if self.error else StopReason.ANSWER
        trajectory = Trajectory(problem, sample, segments, stop=stop, error=self.error or None)
        return Played(trajectory, {"generation": len(self.played), "tools": 0.0, "verdicts": 0.0}, 2)


class Cluster:
    """A rollout over such actors, and what it said."""

    def __init__(self, *actors: Actor, episode_s: float = 5.0):
        self.killed: list[Actor] = []
        self.said: list[str] = []
        self.served: list[int] = []
        ray = types.SimpleNamespace(exceptions=exceptions, kill=self._kill, cancel=lambda ref: ref.cancel())
        places = {n: Place(n, actor, About("none", torch.float32, {}, 0)) for n, actor in enumerate(actors)}
        form = prompt_format(chatml_tokenizer(), TirSettings())
        self.rollout = RemoteRollout(
            ray, dict(enumerate(actors)), places, form, RolloutSettings(), ClusterSettings(start_timeout_s=5.0),
            episode_s, self.said.append, self._hand_over,
        )  # fmt: skip

    def _kill(self, actor: Actor, *, no_restart: bool) -> None:
        assert not no_restart
        self.killed.append(actor)
        actor.alive, actor.hangs, actor.error = False, False, ""

    async def _hand_over(self, place: Place) -> int | None:
        self.served.append(place.number)
        return self.rollout.wanted

    async def play(self, problems=PROBLEMS, clocks=None) -> dict[str, Trajectory]:
        attempts = [(problem, sample) for problem in problems for sample in range(2)]
        found = self.rollout.play(attempts, sampling=Sampling(), stream="s", clocks=clocks)
        return {trajectory.key: trajectory async for trajectory in found}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(remote_rollout, "BETWEEN_CALLS", 0.01)


async def test_attempts_are_shared_out_and_clocks_show_the_mean_over_actors():
    one, two, clocks = Actor(), Actor(), Clocks()
    found = await Cluster(one, two).play(clocks=clocks)
    assert len(found) == 12 and len(one.played) == len(two.played) == 6
    assert clocks.generation.seconds == pytest.approx(6.0) and clocks.sampled_tokens == 24


async def test_attempts_of_a_lost_actor_are_played_elsewhere_and_it_comes_back_with_weights():
    lost, other = Actor(alive=False), Actor()
    cluster = Cluster(lost, other)
    found = await cluster.play()
    assert len(found) == 12 and not any(t.failed for t in found.values())
    assert cluster.rollout.lost == 1 and cluster.rollout.moved >= 1
    await asyncio.gather(*cluster.rollout._coming_back.values())
    assert cluster.served == [0] and lost.starts == 1
    assert cluster.said[0].startswith("rollout actor 0 was lost") and cluster.said[-1] == "rollout actor 0 is back"
    assert {place.number for place in cluster.rollout.places()} == {0, 1}


async def test_a_run_goes_on_without_an_actor_that_stays_dead():
    gone, other = Actor(alive=False, revives=False), Actor()
    cluster = Cluster(gone, other)
    assert len(await cluster.play()) == 12 and len(other.played) == 12
    await asyncio.gather(*cluster.rollout._coming_back.values())
    assert "rollout actor 0 does not come back (ActorDiedError" in cluster.said[-1]


async def test_without_any_actor_the_run_has_lost_a_part():
    cluster = Cluster(Actor(alive=False, revives=False))
    with pytest.raises(PartLost, match="all 1 rollout actors are lost"):
        await asyncio.wait_for(cluster.play(), 10)


async def test_an_attempt_that_ends_every_actor_is_given_up_and_the_others_are_played():
    cluster = Cluster(Actor(fatal="p3"), Actor(fatal="p3"))
    found = await asyncio.wait_for(cluster.play(), 20)
    failed = {key for key, trajectory in found.items() if trajectory.failed}
    assert {"p3#0", "p3#1"} <= failed
    assert "rollout actors were lost while they played it" in found["p3#0"].error
    assert len(found) == 12


async def test_an_actor_that_hangs_is_started_afresh():
    hanging = Actor(hangs=True)
    cluster = Cluster(hanging, episode_s=0.2)
    found = await asyncio.wait_for(cluster.play(PROBLEMS[:1]), 10)
    assert len(found) == 2 and not any(t.failed for t in found.values())
    assert cluster.killed and "did not end an episode within 0.2 s" in cluster.said[0]


async def test_an_actor_whose_engine_fails_in_a_row_is_started_afresh():
    broken = Actor(error="engine: the generation worker failed")
    cluster = Cluster(broken)
    found = await asyncio.wait_for(cluster.play(PROBLEMS[:2]), 10)
    assert len(found) == 4 and cluster.killed == [broken]
    assert any("failed 3 times in a row: engine: the generation worker failed" in line for line in cluster.said)
    await asyncio.gather(*cluster.rollout._coming_back.values())
    assert not any(t.failed for t in (await cluster.play(PROBLEMS[2:3])).values())
