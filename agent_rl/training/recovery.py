"""A run that lost a part goes on from its last checkpoint by itself, unless that keeps happening."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import Field

from agent_rl.settings import Settings


class RecoverySettings(Settings):
    """What happens when a part of the run is lost: engine, sandbox, learner rank, node."""

    attempts: int = Field(3, ge=0)
    """How often the run goes on from its last checkpoint without a step being finished in between; 0 = never. A run
    that has not finished any step stops at once, so that what never worked is not tried again and again."""
    wait_s: float = Field(5.0, ge=0)
    """Seconds before going on; doubled each time in a row."""


class PartLost(RuntimeError):
    """A process of the run is gone, and the run cannot go on without it; the last checkpoint can."""


@dataclass
class Breaker:
    """Counts recoveries in a row without progress."""

    settings: RecoverySettings
    _in_row: int = field(default=0, init=False)
    _last_step: int = field(default=0, init=False)

    def wait(self, finished: int, first: int) -> float | None:
        """Seconds to wait before going on after a loss; None to stop.

        Args:
            finished: steps that are finished now.
            first: steps that were finished when this process began.
        """
        if finished > max(self._last_step, first):
            self._in_row = 0
        elif not self._in_row and finished <= first:
            return None
        self._last_step = max(self._last_step, finished)
        self._in_row += 1
        if self._in_row > self.settings.attempts:
            return None
        return self.settings.wait_s * 2 ** (self._in_row - 1)

    def sentence(self, reason: str) -> str:
        """Why the run stops."""
        if self._in_row > self.settings.attempts > 0:
            return (
                f"the run lost a part {self._in_row} times in a row without finishing a step (recovery.attempts = "
                f"{self.settings.attempts}), so it stops; the last time: {reason}"
            )
        return reason
