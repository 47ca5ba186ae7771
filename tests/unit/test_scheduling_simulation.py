"""The virtual clock: engines share their speed among rows, and runs on it keep what the schedule promises."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from agent_rl.scheduling.routing import Routes
from agent_rl.scheduling.settings import AsyncSettings
from agent_rl.scheduling.simulation import Outcome, Simulation
from agent_rl.scheduling.virtual_engine import Hardware, VirtualEngine
from agent_rl.scheduling.workload import Workload, groups_from, groups_of
from tests.recordings import made_trajectory

PLAIN = Hardware(engines=2, rows=8, step_s=1.0, row_s=0.5, learner_tokens_per_s=1000.0, sync_s=0.0)
EVEN = Workload((((((10, 0.0),),)) * 1,), "even")


def simulate(workload: Workload, hardware: Hardware = PLAIN, steps: int = 8, **rules) -> Outcome:
    return Simulation(AsyncSettings(**rules), hardware, workload, batch=4, samples=4, steps=steps, warm=2).run()


def tailed(seed: int = 0) -> Workload:
    rng = random.Random(seed)
    groups = tuple(
        tuple(((max(int(rng.lognormvariate(3, 0.9)), 1), rng.expovariate(1.0)), (5, 0.0)) for _ in range(4))
        for _ in range(40)
    )
    return Workload(groups, "made")


def test_rows_of_an_engine_share_its_steps():
    engine = VirtualEngine(PLAIN)
    engine.add(1, 10)
    assert engine.next_end() == (15.0, 1)  # steps of 1.5 s
    engine.advance(7.5)
    engine.add(2, 10)
    assert engine.next_end() == (7.5 + 5 * 2.0, 1)  # steps of 2 s from here
    engine.advance(17.5)
    engine.remove(1)
    assert engine.tokens == pytest.approx(15)
    assert engine.next_end() == (17.5 + 5 * 1.5, 2)
    engine.pause(20.0)
    assert engine.next_end() == (20.0 + 5 * 1.5, 2)
    engine.advance(27.5)
    engine.remove(2)
    assert engine.tokens == pytest.approx(20) and engine.busy == pytest.approx(17.5 + 7.5)
    assert engine.next_end() is None


def test_even_episodes_of_a_synchronous_run_take_what_arithmetic_says():
    found = simulate(EVEN, max_staleness=0)
    # 16 rows on 2 engines: 10 steps of 1 + 8 x 0.5 s, then 160 tokens of learning.
    assert found.waits == pytest.approx([50.0] * 6)
    assert found.rate == pytest.approx(16 / (50.0 + 0.16), rel=1e-6)
    assert found.engine_share == pytest.approx(50.0 / 50.16) and found.wasted == 0.0


def test_staleness_keeps_its_limit_and_throws_nothing_away_without_surplus():
    for limit in (0, 1, 3):
        found = simulate(tailed(), max_staleness=limit, steps=12)
        assert max(found.staleness) <= limit and found.wasted == 0.0
        assert len(found.staleness) == 4 * 10


def test_overlap_is_faster_than_waiting_and_over_sampling_gives_up_what_is_long():
    hardware = replace(PLAIN, learner_tokens_per_s=20.0)
    waiting = simulate(tailed(), hardware, steps=20, max_staleness=0)
    overlapping = simulate(tailed(), hardware, steps=20, max_staleness=2)
    surplus = simulate(tailed(), hardware, steps=20, max_staleness=0, oversample=1.5)
    assert overlapping.rate > 1.2 * waiting.rate
    assert surplus.wasted > 0.0 and surplus.length_bias < 0.9 < overlapping.length_bias


def test_a_run_on_the_virtual_clock_repeats():
    assert simulate(tailed(), max_staleness=2, oversample=1.25) == simulate(tailed(), max_staleness=2, oversample=1.25)


def test_a_workload_is_read_from_records_with_our_failures_left_out():
    from agent_rl.records.recorder import record
    from agent_rl.types import StopReason

    rng = random.Random(0)
    made = [made_trajectory(f"p{i % 2}", i, 40, rng) for i in range(6)]
    made[3].stop = StopReason.FAILED
    groups = groups_of([record(t) for t in made])
    assert [len(group) for group in groups] == [3, 2]
    for turns, trajectory in zip(groups[0], made[::2], strict=True):
        assert sum(tokens for tokens, _ in turns) == trajectory.sampled_tokens
    assert groups_from([[list(map(list, turns)) for turns in group] for group in groups]) == groups


def test_stretching_keeps_the_mean_and_spreads_lengths():
    base = Workload((((((1000, 0.0),),)) * 1,), "one")
    rng = random.Random(1)
    lengths = [turns[0][0] for _ in range(3000) for turns in replace(base, tokens=2.0, spread=0.8).draw(rng, 1)]
    assert sum(lengths) / len(lengths) == pytest.approx(2000, rel=0.08)
    assert max(lengths) > 10_000 and min(lengths) < 400


def test_attempts_go_to_the_place_with_the_fewest_and_move_when_it_is_lost():
    routes = Routes(["a", "b"])
    assert [routes.send(name) for name in ("1", "2", "3")] == ["a", "b", "a"]
    routes.done("1")
    assert routes.send("4") == "a" and routes.loads == {"a": 2, "b": 1}
    assert sorted(routes.lose("a")) == ["3", "4"]
    assert routes.lose("a") == [] and routes.send("3") == "b"
    routes.done("4")
    routes.add("a")
    assert routes.send("4") == "a"
    routes.lose("a")
    routes.lose("b")
    with pytest.raises(LookupError, match="no place left"):
        routes.send("5")
