"""Settings of the generation engines."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rl.settings import Settings


class EngineSettings(Settings):
    """How tokens are generated."""

    kind: Literal["transformers"] = "transformers"
    """Which engine: `transformers` is embedded in this process and serves any Hugging Face causal language model."""

    max_rows: int = Field(256, ge=1, le=65536)
    """Most trajectories that are decoded in one batch; more wait their turn."""

    kv_budget_mb: int = Field(2048, ge=1)
    """Memory for the KV cache in MiB (2**20 bytes), of running and of waiting trajectories together."""

    max_length: int | None = Field(None, ge=2)
    """Most tokens of a trajectory, prompt included; by default what the model was configured for."""

    keep_cache: bool = True
    """Keep a trajectory's KV cache while its tool runs; without it each turn prefills its whole context again."""

    prefill_tokens: int = Field(8192, ge=16)
    """Most tokens, padding included, of one prefill forward; a longer context is a batch of its own."""

    admit_after_steps: int = Field(4, ge=0)
    """Decode steps that a few arrivals may wait for more, so that they are prefilled in one batch."""

    max_waiting: int = Field(65536, ge=1)
    """Most requests that may be queued or running; one more is refused."""

    deterministic: bool = False
    """Lockstep batches: a batch starts when each announced trajectory has asked or been released, so that the
    same seeds give the same tokens bit for bit, whatever the tools' latency. A run sets this for all its parts."""

    lockstep_timeout_s: float = Field(600.0, gt=0)
    """Longest wait of a lockstep batch for an announced trajectory; then all that wait fail with its name."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the weights: `auto` is float32 on a CPU and the checkpoint's own elsewhere."""

    device: str = "auto"
    """Where the model runs: `cpu`, `cuda`, `cuda:1`, `mps`; `auto` takes the first accelerator, else the CPU."""
