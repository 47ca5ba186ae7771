"""Where metrics are shown while a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from agent_rl.training.settings import TrackerSettings


class Tracker(Protocol):
    """Takes scalars by step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of one step."""
        ...

    def close(self) -> None:
        """Flush and end."""
        ...


class TensorBoardTracker:
    """TensorBoard event files under `folder`."""

    def __init__(self, folder: Path, *, purge_step: int | None = None):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=purge_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def trackers(settings: TrackerSettings, run: Path, *, resumed_after: int | None) -> list[Tracker]:
    """The trackers that the settings ask for."""
    found: list[Tracker] = []
    if settings.tensorboard:
        purge = None if resumed_after is None else resumed_after + 1
        found.append(TensorBoardTracker(run / "tensorboard", purge_step=purge))
    return found
