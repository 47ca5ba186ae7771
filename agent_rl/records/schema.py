"""The form of a record, version 1: what one line of a shard holds, and the light row of the index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from agent_rl.records.shards import SCHEMA
from agent_rl.types import Problem, Segment, StopReason, ToolStatus, Trajectory, Turn, Verdict

TIMEOUTS = (ToolStatus.TIMEOUT, ToolStatus.CPU_TIMEOUT)


class Record(BaseModel):
    """One recorded trajectory. Fields of `agent_rl.types.Trajectory`, and what training made of it."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True, populate_by_name=True)

    version: Literal[1] = Field(SCHEMA, alias="schema")
    """Version of this form."""
    level: Literal["full", "tokens", "text"] = "tokens"
    """What was asked to be kept; at `text`, `segments` is empty."""
    split: str = ""
    """`train`, or the name of the held-out set."""
    step: int | None = None
    """Rollout batch of training, from 1; of a measurement, the finished steps before it."""
    problem: Problem
    sample: int
    segments: list[Segment] = []
    """Runs of token ids in order, with origin and, where sampled, log-probs (nats) and weight versions."""
    turns: list[Turn] = []
    """Text, program, tool outcome with all its fields, observation as the model saw it, seconds."""
    stop: StopReason | None = None
    answer: str | None = None
    error: str | None = None
    verdict: Verdict | None = None
    reward: float | None = None
    reward_parts: dict[str, float] = {}
    seconds: float = 0.0
    advantage: float | None = None
    """As the learner was given it; None outside training."""
    filters: list[str] = []
    """Why it is not in the loss: `failed`, `nothing_sampled`, `void`, `dead_group`. Empty: it is."""

    @property
    def key(self) -> str:
        """Name of this attempt within its rollout batch."""
        return f"{self.problem.id}#{self.sample}"

    def trajectory(self) -> Trajectory:
        """The trajectory as it was, for whatever takes one."""
        names = ("stop", "answer", "error", "verdict", "reward", "seconds")
        rest = {name: getattr(self, name) for name in names}
        parts = dict(self.reward_parts)
        return Trajectory(self.problem, self.sample, list(self.segments), list(self.turns), reward_parts=parts, **rest)


class Place(NamedTuple):
    """Where a record lies."""

    shard: str
    """File, below the folder of trajectories."""
    start: int
    """First byte of its frame."""
    end: int
    row: int
    """Line within the frame."""


class Summary(NamedTuple):
    """One trajectory in a list: what can be told without its tokens. A tuple, since lists of 100,000 are made."""

    split: str
    step: int | None
    problem: str
    sample: int
    source: str
    stop: str | None
    verdict: str | None
    answer: str | None
    gold: str
    reward: float | None
    advantage: float | None
    filters: list[str]
    void: bool
    truncated: bool
    timed_out: bool
    failed: bool
    turns: int
    tool_calls: int
    tool_failures: int
    length: int
    sampled_tokens: int
    seconds: float
    shard: str
    start: int
    end: int
    row: int

    @property
    def key(self) -> str:
        return f"{self.problem}#{self.sample}"

    @property
    def correct(self) -> bool:
        return self.verdict == "correct"


def summary_values(trajectory: Trajectory, fields: Mapping[str, Any], place: Place) -> list[Any]:
    """The values of a `Summary`, in order: one line of the index."""
    outcomes = [turn.outcome for turn in trajectory.turns if turn.outcome is not None]
    verdict = trajectory.verdict
    return [
        fields.get("split", ""),
        fields.get("step"),
        trajectory.problem.id,
        trajectory.sample,
        trajectory.problem.source,
        trajectory.stop,
        None if verdict is None else verdict.kind,
        trajectory.answer,
        trajectory.problem.gold,
        trajectory.reward,
        fields.get("advantage"),
        list(fields.get("filters", ())),
        trajectory.void,
        trajectory.truncated,
        any(outcome.status in TIMEOUTS for outcome in outcomes),
        trajectory.failed,
        len(trajectory.turns),
        trajectory.tool_calls,
        sum(not outcome.ok for outcome in outcomes),
        trajectory.length,
        trajectory.sampled_tokens,
        round(trajectory.seconds, 4),
        *place,
    ]
