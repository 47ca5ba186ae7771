"""A measurement that is killed goes on where it stopped, and says what it lacks."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest
from test_evaluation_metrics import attempt

from agent_rl.evaluation.run import evaluate, load_sets
from agent_rl.evaluation.settings import EvaluationSettings
from agent_rl.records.recorder import shards
from agent_rl.tasks.problems import Problems
from agent_rl.types import InfrastructureError, Problem, StopReason, Trajectory, VerdictKind

SETTINGS = EvaluationSettings(samples=3, resamples=100)
IDENTITY = {"model": "m"}


class Killed(BaseException):
    """Stands for a process that ends here."""


class Policy:
    """Plays attempts deterministically; can be killed, fail, or lose attempts."""

    def __init__(self, die_after=None, fail=(), lose=()):
        self.die_after, self.fail, self.lose = die_after, set(fail), set(lose)
        self.played: list[str] = []

    def __call__(self, name):
        async def play(attempts):
            for problem, sample in attempts:
                if self.die_after is not None and len(self.played) == self.die_after:
                    raise Killed
                key = f"{problem.id}#{sample}"
                if key in self.lose:
                    continue
                self.played.append(key)
                if key in self.fail:
                    yield Trajectory(problem, sample, stop=StopReason.FAILED, error="engine: gone")
                    continue
                right = (int(problem.id[1:]) + sample) % 2 == 0
                t = attempt(
                    problem.id, sample, "7" if right else "8", VerdictKind.CORRECT if right else VerdictKind.WRONG
                )
                t.problem = problem
                yield t

        return play


@pytest.fixture
def sets():
    return {"s": Problems(tuple(Problem(f"p{i}", f"q{i}", "7") for i in range(4)))}


async def run(policy, sets, folder, settings=SETTINGS, **fields):
    return await evaluate(policy, sets, settings, folder, identity=fields.pop("identity", IDENTITY), **fields)


async def test_killed_and_resumed_equals_uninterrupted(sets, tmp_path):
    whole = await run(Policy(), sets, tmp_path / "whole")
    first = Policy(die_after=5)
    with pytest.raises(Killed):
        await run(first, sets, tmp_path / "torn")
    shard = shards(tmp_path / "torn" / "trajectories" / "s")[0]
    shard.write_bytes(shard.read_bytes()[:-7])  # the crash cut the last record short
    second = Policy()
    resumed = await run(second, sets, tmp_path / "torn")
    assert len(second.played) == 12 - 4
    assert resumed.summaries == whole.summaries
    assert resumed.complete
    third = Policy()
    assert (await run(third, sets, tmp_path / "torn")).summaries == whole.summaries
    assert third.played == []


async def test_failed_attempts_are_made_again(sets, tmp_path):
    first = await run(Policy(fail=["p1#0", "p2#2"]), sets, tmp_path)
    assert not first.complete and first.summaries[0].failed == 2
    assert "2 attempts failed" in first.files["md"].read_text()
    second = Policy()
    again = await run(second, sets, tmp_path)
    assert sorted(second.played) == ["p1#0", "p2#2"]
    assert again.complete and again.summaries[0].failed == 0


async def test_lost_attempts_are_counted(sets, tmp_path):
    result = await run(Policy(lose=[f"p0#{i}" for i in range(3)]), sets, tmp_path)
    assert not result.complete
    assert (result.summaries[0].failed, result.summaries[0].problems) == (3, 4)


async def test_attempts_nobody_asked_for_are_refused(sets, tmp_path):
    def play(name):
        async def twice(attempts):
            for problem, sample in [*attempts, attempts[0]]:
                yield attempt(problem.id, sample, "7", VerdictKind.CORRECT)

        return twice

    with pytest.raises(ValueError, match="p0#0 was not asked for"):
        await run(play, sets, tmp_path)


async def test_a_broken_machine_stops_the_measurement_and_keeps_what_is_recorded(sets, tmp_path):
    policy = Policy(fail=[f"p{i}#{s}" for i in range(1, 4) for s in range(3)])
    with pytest.raises(InfrastructureError, match=r"8 of 11 attempts.*engine: gone.*same folder"):
        await run(policy, sets, tmp_path)
    assert len(policy.played) == 11
    second = Policy()
    assert (await run(second, sets, tmp_path)).complete
    assert len(second.played) == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"identity": {"model": "other"}}, "another model"),
        ({"settings": EvaluationSettings(samples=3, temperature=0.5)}, "another evaluation"),
    ],
)
async def test_folder_of_another_measurement_is_refused(sets, tmp_path, change, message):
    await run(Policy(), sets, tmp_path)
    with pytest.raises(ValueError, match=message):
        await run(Policy(), sets, tmp_path, **change)


async def test_other_data_is_refused_but_other_intervals_are_not(sets, tmp_path):
    await run(Policy(), sets, tmp_path)
    other = {"s": Problems((*sets["s"].items, Problem("p9", "q9", "7")))}
    with pytest.raises(ValueError, match="another data"):
        await run(Policy(), other, tmp_path)
    again = Policy()
    await run(again, sets, tmp_path, settings=EvaluationSettings(samples=3, resamples=150, confidence=0.5))
    assert again.played == []


async def test_report_files_hold_the_figures(sets, tmp_path):
    seen = []
    result = await run(
        Policy(),
        sets,
        tmp_path,
        command="agent-rl eval x",
        on_finish=lambda name, outcome: seen.append(outcome.problem),
    )
    assert len(seen) == 12
    report = json.loads(result.files["json"].read_text())
    assert report["command"] == "agent-rl eval x" and report["identity"]["model"] == "m"
    assert report["sets"][0]["estimates"]["avg@3"]["value"] == pytest.approx(0.5)
    assert report["sets"][0]["complete"] and len(report["sets"][0]["rows"]) == 4
    text = result.files["md"].read_text()
    assert "| avg@3 | 50.0% |" in text and "| p1 | 1/3 |" in text and "agent-rl eval x" in text
    ElementTree.fromstring(result.files["svg"].read_text())


async def test_report_survives_odd_answers(tmp_path):
    def play(name):
        async def odd(attempts):
            for problem, sample in attempts:
                t = attempt(problem.id, sample, "a|b`\n<&>" * 20)
                t.problem = problem
                yield t

        return odd

    sets = {"x-1": Problems((Problem("p<1>", "q", "|`&"),))}
    result = await run(play, sets, tmp_path, settings=EvaluationSettings(samples=1))
    table = [line for line in result.files["md"].read_text().splitlines() if line.startswith("| p<1>")]
    assert len(table) == 1 and table[0].replace("\\|", "").count("|") == 7
    ElementTree.fromstring(result.files["svg"].read_text())


def test_own_sets_are_loaded_with_their_limit():
    settings = EvaluationSettings(data={"mine": {"families": [], "count": 20}}, limit=5)
    assert len(load_sets(settings)["mine"]) == 5
    with pytest.raises(ValueError, match="nothing to evaluate"):
        load_sets(EvaluationSettings())
