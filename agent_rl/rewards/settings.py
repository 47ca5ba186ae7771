"""Settings of the reward: what a verdict is worth, how the verifier is bounded, and optional shaping."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agent_rl.settings import Settings

ExtractionMode = Literal["boxed", "final_answer", "hashes", "plain"]


class VerifierSettings(Settings):
    """Limits of the answer verifier. Every limit is caused by the answer, hence earns `undecided`."""

    workers: int = Field(default=2, ge=1, le=256)
    """Worker processes for answers that need computer algebra. They start when first needed."""
    wall_seconds: float = Field(default=4.0, gt=0, le=600)
    """Longest wall time of one comparison inside a worker; then the worker is killed."""
    cpu_seconds: float = Field(default=2.0, gt=0, le=600)
    """Most processor time of one comparison; then the kernel ends the worker. Bounds what a hang costs a step."""
    memory_mb: int = Field(default=1024, ge=256)
    """Address space of a worker, in MiB."""
    max_answer_chars: int = Field(default=10_000, ge=16)
    """Longer answers are `undecided` without being read."""
    queue_size: int = Field(default=4096, ge=1)
    """Comparisons that may wait for a worker; callers above it wait for a place."""
    queue_seconds: float = Field(default=120.0, gt=0)
    """Longest wait for a place and a worker together; then an infrastructure error."""
    start_seconds: float = Field(default=60.0, gt=0)
    """Longest time a worker may take to start."""
    crash_retries: int = Field(default=2, ge=0, le=10)
    """Fresh workers tried after one died of itself, before an infrastructure error."""
    jobs_per_worker: int = Field(default=5000, ge=1)
    """A worker is replaced after so many comparisons, which bounds the growth of its caches."""
    percent_as_number: bool = True
    """Whether `50%` also equals `50` (numbers above 1 only); it always equals `0.5`."""
    decimal_digits: int = Field(default=6, ge=1, le=50)
    """A decimal with at least so many places (and significant digits) equals the exact value that rounds to it."""
    relative_tolerance: float = Field(default=1e-2, ge=0)
    """Of the `numeric` verifier: largest |answer - gold| / |gold|."""
    absolute_tolerance: float = Field(default=0.0, ge=0)
    """Of the `numeric` verifier: |answer - gold| up to this is accepted whatever the ratio."""


class FormatSettings(Settings):
    """Reward for the form of an answer, apart from whether it is right."""

    answer_bonus: float = 0.0
    """Added when the trajectory ends with an answer that could be extracted."""
    missing_answer_penalty: float = Field(default=0.0, ge=0)
    """Subtracted when it ends without one."""


class ToolUseSettings(Settings):
    """Reward for using the tool, apart from whether the answer is right."""

    success_bonus: float = Field(default=0.0, ge=0)
    """Added for each call that ran without error, up to `max_rewarded_calls`."""
    failure_penalty: float = Field(default=0.0, ge=0)
    """Subtracted for each call that failed by the program's own fault, up to `max_rewarded_calls`."""
    max_rewarded_calls: int = Field(default=1, ge=0)
    """Bound on the calls that count, so that calling is never worth more than solving."""
    only_if_correct: bool = False
    """Whether the bonus needs a correct answer."""


class OverlongSettings(Settings):
    """Soft overlong punishment (DAPO, Yu et al. 2025, eq. 13): linear over the last `buffer_tokens`."""

    enabled: bool = False
    """Whether the penalty is applied."""
    max_tokens: int = Field(default=4096, ge=1)
    """Length at which the penalty is full."""
    buffer_tokens: int = Field(default=1024, ge=1)
    """Width of the linear part that ends at `max_tokens`."""
    penalty: float = Field(default=1.0, ge=0)
    """Size of the full penalty, subtracted."""

    @model_validator(mode="after")
    def _buffer_fits(self) -> OverlongSettings:
        if self.buffer_tokens > self.max_tokens:
            raise ValueError(
                f"buffer_tokens = {self.buffer_tokens} is more than max_tokens = {self.max_tokens}; "
                "the linear part has to fit below the maximum"
            )
        return self


class RewardSettings(Settings):
    """The whole reward: verdict, form, tool use, length."""

    correct: float = 1.0
    """Reward of a correct answer."""
    wrong: float = 0.0
    """Reward of a wrong, missing or undecided answer."""
    extraction: tuple[ExtractionMode, ...] = ("boxed",)
    """Where answers are looked for in the model's text, in this order."""
    tool_call_bonus: float = Field(default=0.0, ge=0)
    """Short for `tool_use.success_bonus`: a small reward for a call that runs."""
    verifier: VerifierSettings = VerifierSettings()
    """Limits of the verifier."""
    format: FormatSettings = FormatSettings()
    """Reward for the form."""
    tool_use: ToolUseSettings = ToolUseSettings()
    """Reward for tool use."""
    overlong: OverlongSettings = OverlongSettings()
    """Penalty for length."""

    @model_validator(mode="after")
    def _one_bonus(self) -> RewardSettings:
        if self.tool_call_bonus and self.tool_use.success_bonus:
            raise ValueError(
                f"tool_call_bonus = {self.tool_call_bonus} and tool_use.success_bonus = "
                f"{self.tool_use.success_bonus} set the same thing; give one of them"
            )
        return self

    @property
    def success_bonus(self) -> float:
        """Reward of one call that ran, from whichever of the two fields sets it."""
        return self.tool_call_bonus or self.tool_use.success_bonus
