"""Settings of the hand-over of weights (imports nothing heavy)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rl.settings import Settings


class SyncSettings(Settings):
    """How weights reach the engines, and what is asked of them afterwards."""

    adapters: Literal["merged", "separate"] = "merged"
    """With `learner.lora`: send whole weights with the adapter merged in, or the adapter alone (vLLM's LoRA)."""

    checksums: bool = True
    """Compare a checksum of every tensor that was sent with what each engine serves."""

    canary_prompts: int = Field(4, ge=0, le=256)
    """Fixed prompts whose sampled tokens' log-probs are compared between trainer and engine; 0 = none."""

    canary_prompt_tokens: int = Field(144, ge=1)
    """Ids of the first; longer than a block of the prefix cache, so that a cache of older weights shows, and cut to
    half of the model's context. The others have a sixth as many."""

    canary_new_tokens: int = Field(8, ge=1)
    """Tokens that the engine samples behind each."""

    canary_limit: float | None = Field(None, gt=0)
    """Largest mean difference of log-probs, in nats; null = 0.001 for float32, 0.02 for float16, 0.08 for bfloat16."""

    timeout_s: float = Field(600.0, gt=0)
    """Longest wait for one hand-over, proof included."""
