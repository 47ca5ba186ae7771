"""What the learner tells a user when a step cannot be taken."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agent_rl.learner.batch import TrainRow


class LearnerOutOfMemory(RuntimeError):
    """A forward or backward pass did not fit."""


class TooManyNonfiniteUpdates(RuntimeError):
    """More updates in a row than allowed had a gradient that was not finite."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch failed for want of memory (the CPU allocator raises a plain RuntimeError)."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)


def describe(rows: Sequence[TrainRow], limit: int = 8) -> str:
    """Names and lengths, longest first."""
    ordered = sorted(rows, key=lambda row: -row.length)
    named = ", ".join(f"{row.key} ({row.length} tokens)" for row in ordered[:limit])
    return named + (f" and {len(rows) - limit} more" if len(rows) > limit else "")


def out_of_memory(rows: Sequence[TrainRow], tokens: int, budget: int) -> LearnerOutOfMemory:
    """The message for a pass of `tokens` tokens under a micro-batch budget of `budget`."""
    if len(rows) > 1:
        advice = f"turn down learner.micro_batch_tokens (now {budget})"
    else:
        advice = "one trajectory alone is too long: turn down the trajectory's token cap"
    return LearnerOutOfMemory(
        f"out of memory in a micro-batch of {len(rows)} trajectories, {tokens} tokens: {describe(rows)}. "
        f"To fit, {advice}, turn on learner.gradient_checkpointing, or use learner.autocast=bfloat16 or learner.lora."
    )


def nonfinite(count: int, bound: int, rows: Sequence[TrainRow]) -> TooManyNonfiniteUpdates:
    """The message when the bound on skipped updates is passed; `rows` are those of the last bad passes."""
    where = f" Last seen in: {describe(rows)}." if rows else ""
    return TooManyNonfiniteUpdates(
        f"{count} updates in a row had a gradient that is not finite (learner.max_nonfinite_updates={bound}); "
        f"the weights were not touched by them.{where} Turn down learner.optimizer.lr, or "
        "look at these trajectories' log-probs."
    )
