"""From rewards to advantages, in plain Python floats (a batch has thousands of rewards, not millions).

A reward of None is an infrastructure failure: it enters no statistic. A member that is not in the loss (void,
for example) has advantage 0, while its reward stays in the statistics unless `void_in_statistics` is off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agent_rl.algorithms.choices import Advantage


@dataclass(frozen=True)
class RewardGroup:
    """The trajectories of one problem."""

    rewards: Sequence[float | None]
    """One each; None = infrastructure failure."""
    in_loss: Sequence[bool]
    """Whether the trajectory is trained on (False: void, rejected, failed)."""
    lengths: Sequence[int]
    """Model tokens of each trajectory, for whitening over tokens."""


def is_dead_group(rewards: Sequence[float | None], settings: Advantage = Advantage()) -> bool:
    """Whether the group leaves loss and counts: all its rewards (failures aside, void ones included) are equal.

    A group with fewer than two rewards is dead too. Never when `drop_dead_groups` is off and a reward exists.
    """
    present = [reward for reward in rewards if reward is not None]
    if not settings.drop_dead_groups:
        return not present
    return len(set(present)) < 2


def group_advantages(
    rewards: Sequence[float | None], in_loss: Sequence[bool], settings: Advantage = Advantage()
) -> list[float]:
    """One advantage per member. Members that failed or are not in the loss get 0.0; so does a dead group.

    group_mean_std: (r - mean) / (std + eps), std with n - 1 (GRPO). group_mean: r - mean (Dr. GRPO). rloo:
    r - mean of the others (Ahmadian et al. 2024). reinforce_pp: r; reinforce_pp_baseline: r - mean; both are to
    be whitened over the whole batch (`batch_advantages`). Raises ValueError on unequal lengths or a reward that
    is not finite.
    """
    if len(rewards) != len(in_loss):
        raise ValueError(f"{len(rewards)} rewards but {len(in_loss)} in_loss flags; give one flag per reward")
    for position, reward in enumerate(rewards):
        if reward is not None and not math.isfinite(reward):
            raise ValueError(f"rewards[{position}]={reward} is not finite; use None for an infrastructure failure")
    if is_dead_group(rewards, settings):
        return [0.0] * len(rewards)
    counted = [
        reward
        for reward, trained in zip(rewards, in_loss, strict=True)
        if reward is not None and (trained or settings.void_in_statistics)
    ]
    return [
        _advantage(reward, counted, settings) if trained and reward is not None else 0.0
        for reward, trained in zip(rewards, in_loss, strict=True)
    ]


def batch_advantages(groups: Sequence[RewardGroup], settings: Advantage = Advantage()) -> list[list[float]]:
    """Advantages of a whole batch, group by group; the REINFORCE++ kinds are whitened over it.

    Whitening runs over model tokens: each trajectory counts as many times as it has tokens (variance with
    n - 1, eps inside the root, as in verl's masked_whiten). Dead groups and members out of the loss do not enter.
    """
    found = [group_advantages(group.rewards, group.in_loss, settings) for group in groups]
    if settings.kind not in ("reinforce_pp", "reinforce_pp_baseline"):
        return found
    live = [
        [trained and reward is not None for reward, trained in zip(group.rewards, group.in_loss, strict=True)]
        if not is_dead_group(group.rewards, settings)
        else [False] * len(group.rewards)
        for group in groups
    ]
    weights = [
        [length * use for length, use in zip(group.lengths, flags, strict=True)]
        for group, flags in zip(groups, live, strict=True)
    ]
    return whiten(found, weights, settings.eps)


def whiten(values: list[list[float]], weights: list[list[int]], eps: float) -> list[list[float]]:
    """(v - mean) / sqrt(var + eps) with token counts as weights; entries of weight 0 become 0.0."""
    pairs = [(v, w) for vs, ws in zip(values, weights, strict=True) for v, w in zip(vs, ws, strict=True) if w > 0]
    total = sum(w for _, w in pairs)
    if total < 2:
        return [[0.0] * len(group) for group in values]
    mean = math.fsum(v * w for v, w in pairs) / total
    variance = math.fsum(w * (v - mean) ** 2 for v, w in pairs) / (total - 1)
    if variance == 0:
        return [[0.0] * len(group) for group in values]
    scale = 1 / math.sqrt(variance + eps)
    return [
        [(v - mean) * scale if w > 0 else 0.0 for v, w in zip(vs, ws, strict=True)]
        for vs, ws in zip(values, weights, strict=True)
    ]


def _advantage(reward: float, counted: Sequence[float], settings: Advantage) -> float:
    mean = math.fsum(counted) / len(counted)
    if settings.kind == "reinforce_pp":
        return reward
    if settings.kind == "rloo":
        # n/(n-1) (r - mean) = r minus the mean of the others; a lone member has no baseline to differ from.
        return (reward - mean) * len(counted) / (len(counted) - 1) if len(counted) > 1 else 0.0
    if settings.kind != "group_mean_std":
        return reward - mean
    if len(counted) < 2:
        return 0.0
    variance = math.fsum((value - mean) ** 2 for value in counted) / (len(counted) - 1)
    return (reward - mean) / (math.sqrt(variance) + settings.eps)
