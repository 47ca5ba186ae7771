"""What a measurement keeps of one attempt: a row of numbers, without tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from agent_rl.types import Problem, StopReason, Trajectory, VerdictKind


@dataclass(frozen=True, slots=True)
class Outcome:
    """One attempt at one problem."""

    problem: str
    """Id of the problem."""
    source: str
    level: str
    gold: str
    sample: int
    score: float
    """1.0 if the verdict is correct, else 0.0."""
    answer: str | None
    undecided: bool
    turns: int
    tool_calls: int
    tool_failures: int
    """Calls whose program did not end well."""
    truncated: bool
    """A turn was cut by a length cap."""
    void: bool
    """A turn had neither code nor an answer."""
    sampled_tokens: int
    seconds: float
    error: str | None = None
    """Of a failure of ours; such an attempt enters no statistics."""

    @property
    def failed(self) -> bool:
        return self.error is not None


def outcome_of(trajectory: Trajectory) -> Outcome:
    """The row of a judged trajectory. One without a verdict counts as a failure of ours, never as a wrong answer."""
    verdict = trajectory.verdict
    error = None
    if trajectory.failed or verdict is None:
        error = trajectory.error or (f"stopped by {trajectory.stop}" if trajectory.failed else "no verdict")
    outcomes = [turn.outcome for turn in trajectory.turns if turn.outcome is not None]
    return Outcome(
        problem=trajectory.problem.id,
        source=trajectory.problem.source,
        level=str(trajectory.problem.metadata.get("level", "")),
        gold=trajectory.problem.gold,
        sample=trajectory.sample,
        score=verdict.score if verdict is not None else 0.0,
        answer=trajectory.answer,
        undecided=verdict is not None and verdict.kind is VerdictKind.UNDECIDED,
        turns=len(trajectory.turns),
        tool_calls=trajectory.tool_calls,
        tool_failures=sum(not o.ok for o in outcomes),
        truncated=trajectory.truncated,
        void=trajectory.void,
        sampled_tokens=trajectory.sampled_tokens,
        seconds=trajectory.seconds,
        error=error,
    )


def unplayed(problem: Problem, sample: int) -> Outcome:
    """The row of an attempt that the rollout never handed over: a failure of ours."""
    return outcome_of(Trajectory(problem, sample, stop=StopReason.FAILED, error="the rollout ended without it"))


def trajectory_of(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory of a record that `agent_rl.records` wrote."""
    names = {f.name for f in fields(Trajectory)}
    return _adapter().validate_python({k: v for k, v in record.items() if k in names})


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Trajectory)
