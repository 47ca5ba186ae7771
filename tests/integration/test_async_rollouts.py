"""Batches that are played ahead of the learner: what is in flight, what is waited for, what is kept and what is not."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from agent_rl.config import ConfigError
from agent_rl.engines.scripted import ScriptedEngine
from agent_rl.rewards.settings import RewardSettings
from agent_rl.rewards.verifier import Verifier
from agent_rl.rollout.answers import ExtractionRules
from agent_rl.rollout.run import Rollout, TooManyFailures
from agent_rl.rollout.settings import RolloutSettings
from agent_rl.tasks.problems import Problems
from agent_rl.tasks.settings import DataSettings
from agent_rl.tir.fence import FenceScanner
from agent_rl.tir.formats import prompt_format
from agent_rl.tir.settings import TirSettings
from agent_rl.training.asynchronous import AsynchronousSource
from agent_rl.training.data import RunData
from agent_rl.training.evaluate import HeldOut
from agent_rl.training.parts import Parts
from agent_rl.training.progress import Display
from agent_rl.training.settings import EvalSettings, RunConfig
from agent_rl.training.source import SynchronousSource
from agent_rl.training.unfinished import Unfinished
from agent_rl.types import InfrastructureError, Problem
from tests.toys import chatml_tokenizer

PROBLEMS = Problems(tuple(Problem(f"p{i}", f"What is {i} + 1?", str(i + 1)) for i in range(40)))


class Player:
    """A source over a scripted engine: attempts last as long as `seconds` says, even ones are right."""

    def __init__(self, source, engine, said):
        self.source, self.engine, self.said = source, engine, said
        self.version = engine.weight_version

    async def step(self) -> list:
        groups = await self.source.batch(self.version + 1)
        self.last = groups
        return groups

    async def learn(self) -> None:
        self.version += 1
        self.source.learnt()
        await self.engine.load_weights([], self.version)
        self.source.weights_served()


def config(**changes) -> RunConfig:
    given = {
        "data": {"families": []}, "mode": "async", "steps": 20, "problems_per_step": 4, "samples_per_problem": 2,
        "learner": {"updates_per_batch": 1}, "tir": {"deadline_s": 60},
    }  # fmt: skip
    return RunConfig.model_validate({**given, **changes})


@asynccontextmanager
async def playing(tmp_path, seconds=lambda problem, sample: 0.0, *, version=0, reply=None, settings=None, held_out=()):
    settings = settings or config()
    tokenizer = chatml_tokenizer()
    tir = TirSettings(**settings.tir.model_dump())

    def name(request) -> tuple[str, int]:
        problem, _, sample = request.trajectory.partition("#")
        return problem, int(sample)

    def script(request, turn):
        problem, sample = name(request)
        if reply is not None:
            return reply(problem, sample)
        return f"\\boxed{{{int(problem[1:]) + 1 + sample % 2}}}"

    engine = ScriptedEngine(
        tokenizer, script, scanner=FenceScanner, latency=lambda r, turn: seconds(*name(r)), version=version
    )
    rewards = RewardSettings()
    async with Verifier(rewards.verifier) as verifier:
        rollout = Rollout(
            engine=engine, format=prompt_format(tokenizer, tir), answers=ExtractionRules(rewards), verifier=verifier,
            open_tool=lambda problem, sample: NoTool(), tir=tir, rewards=rewards,
            settings=RolloutSettings(**settings.rollout.model_dump()),
        )  # fmt: skip
        parts = Parts(
            tokenizer=tokenizer, piece=str, learning=None, engine=engine, rollout=rollout,
            data=RunData(PROBLEMS, held_out), sandbox="none", fingerprints={},
        )  # fmt: skip
        said: list[str] = []
        display = Display()
        display.say = said.append
        kind = AsynchronousSource if settings.mode == "async" else SynchronousSource
        more = (Unfinished(tmp_path / "unfinished"),) if settings.mode == "async" else ()
        source = kind(settings, parts, display, *more)
        try:
            yield Player(source, engine, said)
        finally:
            await source.close()


class NoTool:
    """Programs are not run here."""

    async def run(self, code, *, deadline):
        raise InfrastructureError("sandbox", "no program was expected")

    async def close(self) -> None:
        pass


def ids(groups) -> list[str]:
    return [group.problem.id for group in groups]


async def test_rollouts_go_on_while_the_learner_works(tmp_path):
    async with playing(tmp_path, lambda problem, sample: 0.05) as player:
        first = await player.step()
        assert len(first) == 4 and all(len(g.trajectories) == 2 for g in first)
        await asyncio.sleep(0.5)
        assert player.source.schedule.ready == 8, "two batches are played while the learner is busy with the first"
        assert player.source.schedule.attempts == 0, "and no more, since a third could be too old"
        await player.learn()
        assert player.source.schedule.attempts == 8
        second = await player.step()
        assert not set(ids(first)) & set(ids(second))


async def test_no_version_is_older_than_the_limit_and_nothing_comes_twice(tmp_path):
    slow = {"p3", "p17", "p20"}
    settings = config(asynchronous={"max_staleness": 1})
    async with playing(tmp_path, lambda p, s: 0.4 if p in slow else 0.02 * s, settings=settings) as player:
        seen = []
        for _ in range(8):
            for group in await player.step():
                seen.append(group.problem.id)
                for trajectory in group:
                    oldest = min(v for s in trajectory.segments for v in s.weight_versions)
                    assert player.version - oldest <= 1
            await player.learn()
        assert len(seen) == 32 == len(set(seen))
        assert player.source.schedule.counters.stale_cancelled == 0


async def test_over_sampling_does_not_wait_for_the_last_ones(tmp_path):
    slow = {"p0", "p5", "p9", "p30"}
    settings = config(asynchronous={"max_staleness": 0, "oversample": 2.0})
    async with playing(tmp_path, lambda p, s: 30.0 if p in slow else 0.0, settings=settings) as player:
        for _ in range(5):
            groups = await asyncio.wait_for(player.step(), 10)
            assert not set(ids(groups)) & slow
            await player.learn()
        counters = player.source.schedule.counters
        assert counters.stale_cancelled + counters.stale_finished > 0


async def test_a_straggler_leaves_its_group_and_is_counted_as_our_failure(tmp_path):
    settings = config(samples_per_problem=4, asynchronous={"straggler_s": 0.2})
    async with playing(tmp_path, lambda p, s: 30.0 if s == 3 else 0.0, settings=settings) as player:
        groups = await asyncio.wait_for(player.step(), 10)
        for group in groups:
            assert [t.failed for t in group] == [False, False, False, True]
            assert "straggler_s = 0.2" in group.trajectories[3].error
            assert group.trajectories[3].reward is None


async def test_a_step_without_a_finished_group_stops_the_run_in_plain_words(tmp_path):
    settings = config(asynchronous={"step_deadline_s": 0.3})
    async with playing(tmp_path, lambda p, s: 30.0, settings=settings) as player:
        with pytest.raises(TooManyFailures, match=r"no group was finished within asynchronous.step_deadline_s = 0.3 s"):
            await player.step()


async def test_dead_groups_are_replaced_within_a_bound_and_come_with_the_batch(tmp_path):
    settings = config(refill_rounds=1, asynchronous={"max_staleness": 0})
    dead = {f"p{i}" for i in range(0, 40, 2)}

    def reply(problem, sample):
        return f"\\boxed{{{int(problem[1:]) + 1 + (sample % 2 if problem not in dead else 0)}}}"

    async with playing(tmp_path, reply=reply, settings=settings) as player:
        for _ in range(4):
            groups = await player.step()
            live = [g for g in groups if g.problem.id not in dead]
            replaced = groups[4:]
            assert len(groups) - len(replaced) == 4 and len(replaced) <= 4
            assert all(g.problem.id in dead for g in replaced)
            if len(replaced) < 4:
                assert len(live) == 4
            await player.learn()


async def test_an_error_of_ours_in_an_attempt_is_raised_and_not_lost(tmp_path):
    def reply(problem, sample):
        raise ZeroDivisionError("a mistake of ours")

    async with playing(tmp_path, reply=reply) as player:
        with pytest.raises(ZeroDivisionError, match="a mistake of ours"):
            await asyncio.wait_for(player.step(), 10)


async def test_failures_above_the_limit_stop_the_run(tmp_path):
    async with playing(tmp_path, reply=lambda p, s: InfrastructureError("engine", "gone")) as player:
        with pytest.raises(TooManyFailures, match="8 of 8 episodes failed"):
            await asyncio.wait_for(player.step(), 10)


async def test_what_is_finished_is_restored_and_what_was_in_flight_is_played_again(tmp_path):
    slow = {"p1", "p4", "p33", "p20", "p25"}
    async with playing(tmp_path, lambda p, s: 30.0 if p in slow and s == 1 else 0.01) as player:
        trained = ids(await player.step())
        await player.learn()
        await asyncio.sleep(0.4)
        progress = player.source.progress(1)
        waiting = {t.key: t.ids for play in player.source._plays.values() for t in play.ended.values()}
        counters = player.source.schedule.counters
        assert waiting and player.source.schedule.attempts
        flight = player.source.schedule.attempts
    again: list[str] = []

    def seconds(problem, sample):
        again.append(f"{problem}#{sample}")
        return 0.01

    async with playing(tmp_path, seconds, version=1) as player:
        player.source.restore(progress, 1)
        assert player.said == [
            f"{len(waiting)} finished trajectories that were not trained on are restored; "
            f"{flight} that were in flight are played again"
        ]
        assert player.source.schedule.counters == counters
        seen = list(trained)
        kept = 0
        for _ in range(5):
            groups = await asyncio.wait_for(player.step(), 10)
            seen += ids(groups)
            for trajectory in (t for g in groups for t in g if t.key in waiting):
                assert trajectory.ids == waiting[trajectory.key]
                assert trajectory.key not in again, "a finished trajectory is not played again"
                kept += 1
            await player.learn()
        assert kept == len(waiting), "every finished trajectory was trained on"
        assert len(seen) == len(set(seen)) == 24


async def test_a_batch_that_is_being_learnt_from_is_part_of_the_checkpoint(tmp_path):
    async with playing(tmp_path) as player:
        first = await player.step()
        await asyncio.sleep(0.2)
        progress = player.source.progress(0)
    async with playing(tmp_path) as player:
        player.source.restore(progress, 0)
        again = await asyncio.wait_for(player.step(), 10)
        assert ids(again) == ids(first)
        assert [t.ids for g in again for t in g] == [t.ids for g in first for t in g]


async def test_a_synchronous_run_goes_on_from_an_asynchronous_one_with_the_same_problems_first(tmp_path):
    async with playing(tmp_path, lambda p, s: 0.02) as player:
        trained = ids(await player.step())
        await player.learn()
        progress = player.source.progress(1)
        pending = [play.problem.id for play in player.source._plays.values()]
    async with playing(tmp_path, version=1, settings=config(mode="sync")) as player:
        player.source.restore(progress, 1)
        assert "played anew" in player.said[0]
        groups = await player.step()
        assert ids(groups) == pending[:4] and not set(ids(groups)) & set(trained)


async def test_held_out_problems_with_the_id_of_one_to_train_on_are_refused(tmp_path):
    held_out = HeldOut("exam", EvalSettings(data=DataSettings(families=[])), PROBLEMS[7:9])
    with pytest.raises(
        ConfigError, match=r"2 problems of evals.exam have the id of a problem to train on, such as 'p7'"
    ):
        async with playing(tmp_path, held_out=(held_out,)):
            pytest.fail("it was accepted")


def test_files_of_unfinished_trajectories_go_with_their_checkpoints(tmp_path):
    import random

    from tests.recordings import made_trajectory

    store = Unfinished(tmp_path / "unfinished")
    made = [(i, made_trajectory(f"p{i}", 0, 40, random.Random(i))) for i in range(3)]
    names = [store.save(step, made) for step in (1, 2, 2, 3)]
    assert len(set(names)) == 4
    assert [(ticket, t) for ticket, t in store.load(names[1])] == made
    store.keep([2, 3], names[2])
    assert sorted(p.name for p in store.folder.iterdir()) == sorted(names[2:])
    assert list(store.load("unfinished-000009-1.jsonl.zst")) == []
