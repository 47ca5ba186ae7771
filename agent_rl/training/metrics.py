"""Numbers of a rollout batch, from its trajectories alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from agent_rl.types import FinishReason, Group, StopReason, ToolStatus, Trajectory, VerdictKind


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rates over trajectories, unless a name says otherwise; failed ones count only in `rollout/failed`.

    `tool_call_rate` is the share of trajectories with at least one call, `tool_ok_rate` the share of calls
    that ran without error, `dead_groups` the share of groups.
    """
    everything = [t for group in groups for t in group.trajectories]
    values = trajectory_rates([t for t in everything if not t.failed])
    values["rollout/failed"] = _share(t.failed for t in everything)
    values["rollout/retried_calls"] = float(
        sum(turn.outcome.retries for t in everything for turn in t.turns if turn.outcome is not None)
    )
    values["rollout/dead_groups"] = _share(group.dead for group in groups)
    return values


def trajectory_rates(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The taxonomy of how trajectories went."""
    calls = [turn.outcome for t in trajectories for turn in t.turns if turn.outcome is not None]
    values = {
        "rollout/reward": _mean([t.reward for t in trajectories if t.reward is not None]),
        "rollout/accuracy": accuracy(trajectories),
        "rollout/tool_call_rate": _share(t.tool_calls > 0 for t in trajectories),
        "rollout/tool_ok_rate": _share(outcome.ok for outcome in calls),
        "rollout/tool_calls": _mean([t.tool_calls for t in trajectories]),
        "rollout/turns": _mean([len(t.turns) for t in trajectories]),
        "rollout/void": _share(t.void for t in trajectories),
        "rollout/truncated": _share(turn.finish is FinishReason.LENGTH for t in trajectories for turn in t.turns[-1:]),
        "rollout/answered": _share(t.answer is not None for t in trajectories),
        "rollout/undecided": _share(
            t.verdict is not None and t.verdict.kind is VerdictKind.UNDECIDED for t in trajectories
        ),
        "rollout/length": _mean([t.length for t in trajectories]),
        "rollout/sampled_tokens": _mean([t.sampled_tokens for t in trajectories]),
    }
    stops = Counter(t.stop for t in trajectories)
    for reason in StopReason:
        values[f"stop/{reason}"] = stops[reason] / max(len(trajectories), 1)
    statuses = Counter(outcome.status for outcome in calls)
    for status in ToolStatus:
        if statuses[status]:
            values[f"tool/{status}"] = statuses[status] / len(calls)
    return values


def accuracy(trajectories: Sequence[Trajectory]) -> float:
    """Share of correct answers among trajectories that did not fail for reasons of ours; 0.0 of none."""
    return _mean([t.verdict.score for t in trajectories if t.verdict is not None])


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _share(flags: Iterable[bool]) -> float:
    return _mean([float(flag) for flag in flags])
