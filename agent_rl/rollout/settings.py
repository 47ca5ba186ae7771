"""Settings of a rollout: how many episodes at once, and how much of our own failure is borne."""

from __future__ import annotations

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
