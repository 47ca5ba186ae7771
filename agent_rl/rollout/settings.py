"""Settings of a rollout: which policy, which sandbox, how many episodes, how much of our own failure is borne."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rl.settings import Settings


class RolloutSettings(Settings):
    """Many episodes at once."""

    max_concurrent: int = Field(512, ge=1)
    """Episodes in flight at once."""
    episode_retries: int = Field(1, ge=0)
    """How often an episode that failed for reasons of ours is played again."""
    max_failed_share: float = Field(0.25, gt=0, le=1)
    """A rollout batch with a larger share of failed episodes stops the run."""


class ModelSettings(Settings):
    """The policy to start from."""

    path: str = "package://agent_rl/assets/quickstart"
    """Folder, hub name, GGUF file, or `package://PACKAGE/FILE` for one that a Python package ships."""
    eos_ids: list[int] | None = None
    """Ids that end a turn; null = those of the model's generation config, else the tokenizer's."""


class SandboxSettings(Settings):
    """Where the model's programs run."""

    url: str | None = None
    """A running sandbox service; null = one of our own, started and ended with the run."""
    token_env: str = "AGENT_RL_SANDBOX_TOKEN"
    """Environment variable that holds the token of the service at `url`."""
    backend: Literal["auto", "docker", "bwrap", "landlock", "unsafe"] = "auto"
    """Isolation of our own service; `auto` takes the strongest that passes its canaries on this machine."""
    min_tier: Literal["T0", "T1", "T2", "T3", "T4"] = "T1"
    """Below this the run refuses to start. T0 (no isolation) needs `backend: unsafe`."""
    slots: int = Field(0, ge=0)
    """Programs that run at once in our own service; 0 = one a core."""
