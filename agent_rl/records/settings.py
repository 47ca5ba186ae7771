"""What a run keeps of its trajectories."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rl.settings import Settings


class RecordSettings(Settings):
    """Recording of trajectories, in the run's folder."""

    level: Literal["full", "tokens", "text"] = "full"
    """`full`: tokens, and after the update each token's ratio, window, budget and gate. `tokens`: ids, sampler's
    log-probs and weight versions. `text`: turns as text, without ids."""
    every: int = Field(1, ge=1)
    """Of level `full`: steps between updates whose per-token quantities are kept (the trajectories always are)."""
