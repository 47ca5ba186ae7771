"""Who is in the loss, who is in the statistics, and what is counted."""

from __future__ import annotations

import pytest

from agent_rl.algorithms.choices import Advantage
from agent_rl.training.batch import assign_advantages, trained_pairs
from agent_rl.training.metrics import rollout_metrics
from agent_rl.types import (
    FinishReason,
    Group,
    Origin,
    Problem,
    Segment,
    StopReason,
    ToolOutcome,
    ToolStatus,
    Trajectory,
    Turn,
)

PROBLEM = Problem("p", "q", "1")


def attempt(sample: int, reward: float | None, *, void: bool = False, tokens: int = 3) -> Trajectory:
    segments = [Segment(Origin.PROMPT, (1, 2))]
    if tokens:
        segments.append(Segment(Origin.MODEL, (5,) * tokens, (-1.0,) * tokens, (0,) * tokens))
    turns = [Turn("text", FinishReason.EOS, void=void)]
    stop = StopReason.FAILED if reward is None else StopReason.VOID if void else StopReason.ANSWER
    return Trajectory(PROBLEM, sample, segments, turns, stop=stop, reward=reward)


def group(*attempts: Trajectory) -> Group:
    return Group(PROBLEM, list(attempts))


def settled(*groups: Group, void_filter: bool = True, **settings) -> list[tuple[Trajectory, float]]:
    assign_advantages(groups, Advantage(**settings), void_filter=void_filter)
    return trained_pairs(groups, void_filter=void_filter)


def test_a_void_trajectory_leaves_the_loss_and_its_reward_stays_in_the_group():
    pairs = settled(group(attempt(0, 1.0), attempt(1, 0.0), attempt(2, 0.0, void=True)))
    assert [t.sample for t, _ in pairs] == [0, 1]
    mean = 1 / 3
    std = (((1 - mean) ** 2 + 2 * mean**2) / 2) ** 0.5
    assert pairs[0][1] == pytest.approx((1 - mean) / (std + 1e-6))


def test_without_the_filter_a_void_trajectory_is_trained_on():
    pairs = settled(group(attempt(0, 1.0), attempt(1, 0.0, void=True)), void_filter=False)
    assert [t.sample for t, _ in pairs] == [0, 1]
    assert pairs[1][1] < 0


def test_a_failure_of_ours_enters_neither_loss_nor_statistics():
    with_failure = settled(group(attempt(0, 1.0), attempt(1, 0.0), attempt(2, None)))
    without = settled(group(attempt(0, 1.0), attempt(1, 0.0)))
    assert [a for _, a in with_failure] == [a for _, a in without]


def test_a_dead_group_leaves_the_batch_and_is_counted():
    dead, live = group(attempt(0, 1.0), attempt(1, 1.0)), group(attempt(0, 1.0), attempt(1, 0.0))
    pairs = settled(dead, live)
    assert len(pairs) == 2
    assert dead.dead
    assert not live.dead
    assert rollout_metrics([dead, live])["rollout/dead_groups"] == 0.5


def test_a_group_is_dead_with_its_void_members_counted_and_failures_not():
    mixed = group(attempt(0, 1.0), attempt(1, 0.0, void=True))
    settled(mixed)
    assert not mixed.dead
    failed = group(attempt(0, 1.0), attempt(1, None))
    settled(failed)
    assert failed.dead


def test_a_trajectory_without_model_tokens_is_not_trained_on():
    pairs = settled(group(attempt(0, 1.0), attempt(1, 0.0, tokens=0)))
    assert [t.sample for t, _ in pairs] == [0]


def test_rates_tell_the_failures_apart():
    ran = attempt(0, 1.0)
    ran.turns.insert(0, Turn("```", FinishReason.FENCE, code="x", outcome=ToolOutcome(ToolStatus.OK, retries=2)))
    broke = attempt(1, 0.0)
    broke.turns.insert(0, Turn("```", FinishReason.FENCE, code="x", outcome=ToolOutcome(ToolStatus.TIMEOUT)))
    values = rollout_metrics([group(ran, broke, attempt(2, 0.0, void=True), attempt(3, None))])
    assert values["rollout/failed"] == 0.25
    assert values["rollout/tool_call_rate"] == pytest.approx(2 / 3)
    assert values["rollout/tool_ok_rate"] == 0.5
    assert values["tool/timeout"] == 0.5
    assert values["rollout/void"] == pytest.approx(1 / 3)
    assert values["rollout/retried_calls"] == 2
