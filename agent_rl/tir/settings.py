"""Settings of the episode: what a turn is, how long it may be, what the model is told and shown."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agent_rl.settings import Settings

INSTRUCTION = (
    "Solve the problem step by step. You may write Python: put a complete program in a block that starts with "
    "a line ```python and ends with a line ```. It is run and its output is shown to you; print what you want "
    "to see. When you know the answer, write it as \\boxed{answer}."
)


class ToolSettings(Settings):
    """How the model's programs are run."""

    session: bool = False
    """Keep variables, imports and functions across the turns of an episode, as a notebook does."""
    wall_s: float = Field(5.0, gt=0)
    """Wall-clock limit of one program, in seconds."""
    cpu_s: float = Field(5.0, gt=0)
    """CPU limit of one program (all its processes), in seconds."""
    memory_mb: int = Field(512, ge=64)
    """Memory limit of one program (all its processes), in MiB."""
    retries: int = Field(3, ge=0)
    """How often a program is sent again when the sandbox, not the program, failed."""
    final_answer: bool = True
    """Offer the function `final_answer(value)`, which prints its value in a box (SimpleTIR)."""


class TirSettings(Settings):
    """The SimpleTIR setting (arXiv 2509.02479) on token ids."""

    format: Literal["chat", "plain"] = "chat"
    """`chat` uses the tokenizer's template; `plain` suits base models."""
    instruction: str = INSTRUCTION
    """Told to the model before the problem."""
    instruction_role: Literal["system", "user", "none"] = "system"
    """Where a chat carries the instruction; `none` leaves it out."""
    tool_role: Literal["auto", "tool", "user"] = "auto"
    """Role of an observation in a chat; `auto` takes `tool` where the template knows it."""
    non_extending_template: Literal["refuse", "concatenate"] = "refuse"
    """What to do with a template whose later renders do not extend earlier ones."""
    template_kwargs: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Handed to the chat template, such as `enable_thinking: false`."""
    observation_header: str = "\nCode execution result:\n"
    """What stands before an observation in the plain format."""
    max_turns: int = Field(5, ge=1)
    """Generations of one episode; code of the last one is run and its observation appended."""
    max_turn_tokens: int = Field(1024, ge=1)
    """Cap on sampled tokens of one turn."""
    max_total_tokens: int = Field(4096, ge=2)
    """Cap on all tokens of a trajectory, prompt and observations included."""
    max_observation_tokens: int = Field(256, ge=16)
    """Longer observations are cut in the middle, with a mark."""
    tool_answer_counts: bool = False
    """Whether a box that a program printed is an answer (SimpleTIR's own code: true)."""
    deadline_s: float = Field(600.0, gt=0)
    """Wall-clock limit of a whole episode, in seconds."""
    tool: ToolSettings = ToolSettings()

    @model_validator(mode="after")
    def _caps_fit(self) -> TirSettings:
        if self.max_turn_tokens >= self.max_total_tokens:
            raise ValueError(
                f"tir.max_turn_tokens = {self.max_turn_tokens} must be below "
                f"tir.max_total_tokens = {self.max_total_tokens}, which counts the prompt too; lower the first "
                "or raise the second"
            )
        return self
