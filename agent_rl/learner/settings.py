"""Settings of the learner (imports nothing heavy)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agent_rl.settings import Settings


class OptimizerSettings(Settings):
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) with a learning-rate schedule and gradient clipping."""

    lr: float = Field(1e-6, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the first and second moment."""
    eps: float = Field(1e-8, gt=0)
    """Added to the square root of the second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay, applied to matrices only (never to norms and biases)."""
    grad_clip: float | None = Field(1.0, gt=0)
    """Largest global gradient norm; null = not clipped."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after warm-up; linear and cosine need `total_updates`."""
    warmup_updates: int = Field(0, ge=0)
    """Optimiser updates of linear warm-up from 0."""
    total_updates: int | None = Field(None, gt=0)
    """Optimiser updates until the schedule reaches its end; null = the trainer's own count."""
    final_lr_ratio: float = Field(0.0, ge=0, le=1)
    """Learning rate at the schedule's end, as a share of `lr`."""


class LoraSettings(Settings):
    """Low-rank adapters (Hu et al., arXiv 2106.09685) through the package peft (extra `lora`)."""

    rank: int = Field(16, gt=0)
    """Rank of each adapter."""
    alpha: float = Field(32.0, gt=0)
    """Scale: an adapter's output is multiplied by alpha / rank."""
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Names of the linear layers that get an adapter; `all-linear` = all but the output head."""


class CheckpointSettings(Settings):
    """Which checkpoints are kept. The newest complete one always is."""

    every: int = Field(10, ge=0)
    """Trainer steps between checkpoints; 0 = only at the end."""
    keep_last: int = Field(2, ge=1)
    """Number of newest checkpoints that are kept."""
    keep_every: int | None = Field(None, gt=0)
    """Checkpoints whose step is a multiple of this are kept for ever; null = none."""
    keep_best: bool = True
    """Whether the checkpoint with the best `score` is kept."""


class LearnerSettings(Settings):
    """How a rollout batch becomes optimiser updates."""

    optimizer: OptimizerSettings = OptimizerSettings()
    """AdamW, schedule and clipping."""
    updates_per_batch: int = Field(1, gt=0)
    """Optimiser updates that one rollout batch is split into, by trajectory."""
    epochs: int = Field(1, gt=0)
    """Passes over each rollout batch; each pass is split into `updates_per_batch` updates anew."""
    micro_batch_tokens: int = Field(4096, gt=0)
    """Tokens of one forward and backward pass; a longer trajectory gets a pass of its own."""
    packing: Literal["auto", "padded", "packed"] = "auto"
    """`packed` = trajectories side by side without padding; `auto` = packed where the model's attention allows."""
    logprob_chunk_bytes: int = Field(64 * 2**20, gt=0)
    """Bytes of float32 logits that the head holds at a time; trades memory for larger matrix products."""
    autocast: Literal["none", "bfloat16"] = "none"
    """Arithmetic of the layers; weights, optimiser and head stay float32."""
    gradient_checkpointing: bool = False
    """Recompute each layer in the backward pass: less memory, about a third more time."""
    lora: LoraSettings | None = None
    """Train low-rank adapters instead of all weights; null = all weights."""
    reference_model: str | None = None
    """Model name or path for the KL penalty; null = the initial policy, if a penalty asks for one."""
    max_nonfinite_updates: int = Field(5, ge=0)
    """Updates in a row that may be skipped for a gradient that is not finite, before the run stops."""
    entropy: bool = True
    """Whether the policy's entropy at model tokens is measured (about the cost of one more pass over the logits)."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """Retention of checkpoints."""

    @model_validator(mode="after")
    def _schedule_fits(self) -> LearnerSettings:
        total, warmup = self.optimizer.total_updates, self.optimizer.warmup_updates
        if total is not None and warmup >= total:
            raise ValueError(f"optimizer.warmup_updates={warmup} must be below optimizer.total_updates={total}")
        return self
