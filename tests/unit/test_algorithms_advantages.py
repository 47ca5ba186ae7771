"""Group and batch advantages, dead groups, void members, infrastructure failures."""

from __future__ import annotations

import math
import statistics

import pytest

from agent_rl.algorithms.advantages import RewardGroup, batch_advantages, group_advantages, is_dead_group
from agent_rl.algorithms.choices import Advantage

REWARDS = [1.0, 0.0, 0.0, 1.0, 0.5]
ALL = [True] * 5


def test_grpo_divides_by_the_sample_deviation() -> None:
    mean, std = statistics.mean(REWARDS), statistics.stdev(REWARDS)
    expected = [(reward - mean) / (std + 1e-6) for reward in REWARDS]
    assert group_advantages(REWARDS, ALL) == pytest.approx(expected, rel=1e-12)


def test_dr_grpo_only_centres() -> None:
    expected = [reward - 0.5 for reward in REWARDS]
    assert group_advantages(REWARDS, ALL, Advantage(kind="group_mean")) == pytest.approx(expected)


def test_rloo_subtracts_the_mean_of_the_others() -> None:
    expected = [r - (sum(REWARDS) - r) / 4 for r in REWARDS]
    assert group_advantages(REWARDS, ALL, Advantage(kind="rloo")) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rewards", "dead"),
    [
        ([1.0, 1.0, 1.0], True),
        ([0.0, 0.0, None], True),
        ([1.0, None, None], True),
        ([None, None], True),
        ([], True),
        ([1.0, 0.0, None], False),
        ([0.0, 0.0, 0.1], False),
    ],
)
def test_a_group_is_dead_when_its_rewards_are_equal_failures_aside(rewards, dead) -> None:
    assert is_dead_group(rewards) is dead
    if dead:
        assert group_advantages(rewards, [True] * len(rewards)) == [0.0] * len(rewards)


def test_a_void_member_keeps_a_group_alive_and_is_not_trained() -> None:
    found = group_advantages([1.0, 1.0, 0.0], [True, True, False])
    mean, std = 2 / 3, statistics.stdev([1.0, 1.0, 0.0])
    assert found == pytest.approx([(1 - mean) / (std + 1e-6)] * 2 + [0.0])


def test_void_rewards_can_be_kept_out_of_the_statistics() -> None:
    settings = Advantage(void_in_statistics=False)
    found = group_advantages([1.0, 0.0, -5.0], [True, True, False], settings)
    std = statistics.stdev([1.0, 0.0])
    assert found == pytest.approx([0.5 / (std + 1e-6), -0.5 / (std + 1e-6), 0.0])
    assert group_advantages([1.0, 0.0], [True, False], settings) == [0.0, 0.0]
    assert group_advantages([1.0, 0.0], [True, False], settings.model_copy(update={"kind": "rloo"})) == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["group_mean_std", "group_mean", "rloo", "reinforce_pp_baseline"])
def test_an_infrastructure_failure_enters_no_statistic(kind) -> None:
    settings = Advantage(kind=kind)
    with_failure = group_advantages([1.0, None, 0.0, 0.0], [True, False, True, True], settings)
    without = group_advantages([1.0, 0.0, 0.0], [True] * 3, settings)
    assert [with_failure[i] for i in (0, 2, 3)] == without and with_failure[1] == 0.0


def test_reinforce_pp_whitens_over_the_tokens_of_the_batch() -> None:
    groups = [
        RewardGroup([1.0, 0.0], [True, True], [3, 5]),
        RewardGroup([1.0, None, 0.0], [True, False, False], [2, 7, 11]),
    ]
    found = batch_advantages(groups, Advantage(kind="reinforce_pp", eps=1e-8))
    tokens = [1.0] * 3 + [0.0] * 5 + [1.0] * 2
    mean, scale = statistics.mean(tokens), math.sqrt(statistics.variance(tokens) + 1e-8)
    assert found[0] == pytest.approx([(1 - mean) / scale, -mean / scale])
    assert found[1] == pytest.approx([(1 - mean) / scale, 0.0, 0.0])
    white = [found[0][0]] * 3 + [found[0][1]] * 5 + [found[1][0]] * 2
    assert statistics.mean(white) == pytest.approx(0, abs=1e-12)
    assert statistics.stdev(white) == pytest.approx(1, rel=1e-6)


def test_reinforce_pp_with_baseline_centres_first_and_drops_dead_groups() -> None:
    groups = [RewardGroup([1.0, 0.0], [True, True], [4, 4]), RewardGroup([1.0, 1.0], [True, True], [9, 9])]
    found = batch_advantages(groups, Advantage(kind="reinforce_pp_baseline", eps=0.0))
    scale = math.sqrt(statistics.variance([0.5] * 4 + [-0.5] * 4))
    assert found == [pytest.approx([0.5 / scale, -0.5 / scale]), [0.0, 0.0]]


def test_reinforce_pp_may_keep_groups_of_equal_rewards() -> None:
    settings = Advantage(kind="reinforce_pp", drop_dead_groups=False)
    assert not is_dead_group([1.0], settings) and is_dead_group([None], settings)
    groups = [RewardGroup([1.0], [True], [2]), RewardGroup([0.0], [True], [2])]
    (first,), (second,) = batch_advantages(groups, settings)
    assert first == pytest.approx(-second) and first > 0
    same = [RewardGroup([1.0], [True], [2])] * 2
    assert batch_advantages(same, settings) == [[0.0], [0.0]]


def test_batch_of_groups_without_whitening_is_the_groups() -> None:
    groups = [RewardGroup(REWARDS, ALL, [1] * 5), RewardGroup([0.0, 0.0], [True, True], [1, 1])]
    assert batch_advantages(groups) == [group_advantages(REWARDS, ALL), [0.0, 0.0]]


@pytest.mark.parametrize(
    ("rewards", "flags", "message"),
    [([1.0, math.nan], [True, True], r"rewards\[1\]=nan"), ([1.0], [True, False], "1 rewards but 2")],
)
def test_bad_rewards_are_refused(rewards, flags, message) -> None:
    with pytest.raises(ValueError, match=message):
        group_advantages(rewards, flags)
