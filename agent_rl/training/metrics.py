"""Numbers of a rollout batch, from its trajectories alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from agent_rl.learner.update import UpdateReport
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


def oldest_version(trajectory: Trajectory) -> int | None:
    """Oldest weight version among the sampled tokens; None if nothing was sampled."""
    return min((min(s.weight_versions) for s in trajectory.segments if s.weight_versions), default=None)


def staleness_metrics(trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """How far the weights that sampled lie behind the `version` that learns, in versions.

    `mean` and `max` are of each trajectory's oldest token, `tokens` is the mean over tokens, and `mixed` the share of
    trajectories whose tokens are of more than one version.
    """
    versions = [[v for s in t.segments for v in s.weight_versions] for t in trajectories]
    versions = [found for found in versions if found]
    oldest = [version - min(found) for found in versions]
    return {
        "staleness/mean": _mean(oldest),
        "staleness/max": float(max(oldest, default=0)),
        "staleness/tokens": _mean([version - v for found in versions for v in found]),
        "staleness/mixed": _share(min(found) != max(found) for found in versions),
    }


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


def learner_metrics(reports: Sequence[UpdateReport]) -> dict[str, float]:
    """Of all updates of one batch: means weighted by model tokens, extremes as extremes, counts as sums."""
    applied = [r for r in reports if r.applied]
    values = {
        "learner/updates": float(len(applied)),
        "learner/skipped_updates": float(sum(r.nonfinite for r in reports)),
        "learner/loss": _mean([r.loss for r in applied]),
        "learner/grad_norm": _mean([r.grad_norm for r in applied]),
        "learner/lr": applied[-1].lr if applied else 0.0,
        "learner/tokens": float(sum(r.tokens for r in reports)),
        "learner/model_tokens": float(sum(r.model_tokens for r in reports)),
    }
    names = sorted({name for r in reports for name in r.diagnostics if not name.startswith("log_ratio_m")})
    for name in names:
        found = [(r.diagnostics[name], r.model_tokens) for r in reports if name in r.diagnostics]
        if name in ("tokens", "sequences") or name.startswith("clamped"):
            values[f"policy/{name}"] = sum(value for value, _ in found)
        else:
            weight = sum(tokens for _, tokens in found)
            values[f"policy/{name}"] = sum(value * tokens for value, tokens in found) / max(weight, 1)
    for name, extreme in (("log_ratio_max", max), ("log_ratio_min", min)):
        if found := [r.diagnostics[name] for r in reports if name in r.diagnostics]:
            values[f"policy/{name}"] = extreme(found)
    return values


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _share(flags: Iterable[bool]) -> float:
    return _mean([float(flag) for flag in flags])
