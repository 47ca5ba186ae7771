"""What a study varies, and over which seeds."""

from __future__ import annotations

from itertools import product
from typing import Any

from pydantic import Field

from agent_rl.settings import Settings


class StudySettings(Settings):
    """Runs of one configuration with every combination of some values, each with several seeds."""

    name: str = "study"
    """Name of the study; its folder is `runs/studies/NAME` unless `output` says otherwise."""
    output: str | None = None
    """Folder of the runs and the table."""
    base: str
    """Configuration of each run, such as `configs/quickstart.yaml`."""
    vary: dict[str, list[Any]] = Field(min_length=1)
    """Dotted settings and the values they take; of several, every combination is run."""
    seeds: list[int] = Field(default=[0, 1, 2], min_length=1)
    """Seeds of each combination."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Dotted settings that are the same in all runs, where they differ from `base`."""
    without_tools: bool = True
    """Also measure each final policy with a single turn, in which no program's output can help."""

    @property
    def folder(self) -> str:
        return self.output or f"runs/studies/{self.name}"

    def variants(self) -> list[dict[str, Any]]:
        """Each combination, as dotted settings."""
        return [dict(zip(self.vary, values, strict=True)) for values in product(*self.vary.values())]
