"""Settings of asynchronous training: how old, how many, how long."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rl.settings import Settings


class AsyncSettings(Settings):
    """Rollout and learning at the same time (`mode: async`)."""

    max_staleness: int = Field(2, ge=0)
    """Most weight versions that the oldest token of a trajectory may lie behind the weights that are trained with it.
    0 starts nothing that the weights of the moment would not learn from: with `oversample` above 1 that is a
    synchronous run which does not wait for its last episodes."""
    oversample: float = Field(1.0, ge=1.0, le=8.0)
    """Groups that are played for each one that a batch needs. With 1 nothing is ever given up for being late; what is
    above 1 may be, and the episodes given up are the long ones."""
    surplus: Literal["keep", "cancel"] = "keep"
    """What becomes of groups that later ones overtook: `keep` lets them go on into a later batch while they are fresh
    enough, `cancel` ends as many as `oversample` adds."""
    max_buffered: int | None = Field(None, ge=1)
    """Finished groups that may wait for the learner before no more are started; null = what `max_staleness` permits."""
    straggler_s: float | None = Field(None, gt=0)
    """Seconds that the rest of a group has once more than half of it is finished; then the group goes on without it
    (counted as failures of ours, in neither loss nor statistics). null = `tir.deadline_s` alone bounds an episode."""
    step_deadline_s: float = Field(3600.0, gt=0)
    """Seconds that the learner waits for a batch; then it takes the groups that are finished, and the run stops if
    there is none."""
