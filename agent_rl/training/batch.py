"""From judged groups to what the learner is given: who is in the loss, and with which advantage."""

from __future__ import annotations

from collections.abc import Sequence

from agent_rl.algorithms.advantages import RewardGroup, batch_advantages, is_dead_group
from agent_rl.algorithms.choices import Advantage
from agent_rl.types import Group, Trajectory


def in_loss(trajectory: Trajectory, *, void_filter: bool) -> bool:
    """Whether the trajectory may be trained on: not failed, something sampled, and not void if those are filtered."""
    if trajectory.reward is None or trajectory.sampled_tokens == 0:
        return False
    return not (void_filter and trajectory.void)


def assign_advantages(groups: Sequence[Group], settings: Advantage, *, void_filter: bool) -> None:
    """Fill in `advantages` and `dead` of each group.

    Rewards of void members stay in the group's statistics unless the method's settings say otherwise; those
    of failed ones (reward None) never enter. A dead group's advantages are all 0.
    """
    reward_groups = [
        RewardGroup(
            rewards=[t.reward for t in group],
            in_loss=[in_loss(t, void_filter=void_filter) for t in group],
            lengths=[t.sampled_tokens for t in group],
        )
        for group in groups
    ]
    for group, rewards, advantages in zip(
        groups, reward_groups, batch_advantages(reward_groups, settings), strict=True
    ):
        group.advantages = advantages
        group.dead = is_dead_group(rewards.rewards, settings)


def trained_pairs(groups: Sequence[Group], *, void_filter: bool) -> list[tuple[Trajectory, float]]:
    """(trajectory, advantage) of everything that enters the loss and its counts, in order.

    Dead groups and filtered trajectories leave numerator and denominator alike; a trajectory of a live group
    whose advantage happens to be 0 stays in the denominator.
    """
    return [
        (trajectory, advantage)
        for group in groups
        if not group.dead and group.advantages is not None
        for trajectory, advantage in zip(group, group.advantages, strict=True)
        if in_loss(trajectory, void_filter=void_filter)
    ]
