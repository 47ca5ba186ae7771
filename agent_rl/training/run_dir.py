"""A run's folder: what was asked for, what was measured, what can be resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_rl.config import ConfigError, dump, load
from agent_rl.training.settings import RunConfig

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"


class RunDir:
    """`runs/NAME`: `config.yaml` (resolved), `metrics.jsonl`, `trajectories/`, `checkpoints/`, `report.html`."""

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def create(cls, config: RunConfig) -> RunDir:
        """A new folder; a name that is taken gets a number, so that no run overwrites another."""
        parent = Path(config.runs_dir)
        number = 1
        while True:
            path = parent / (config.name if number == 1 else f"{config.name}-{number}")
            try:
                path.mkdir(parents=True, exist_ok=False)
                break
            except FileExistsError:
                number += 1
        run = cls(path)
        (path / CONFIG).write_text(dump(config), encoding="utf-8")
        return run

    @classmethod
    def open(cls, path: Path, overrides: tuple[str, ...] = ()) -> tuple[RunDir, RunConfig]:
        """An existing run, with the configuration it ran with, overrides applied.

        Raises:
            ConfigError: the folder is no run.
        """
        if not (path / CONFIG).is_file():
            raise ConfigError(f"{path} is no run to resume: it has no {CONFIG}")
        return cls(path), load(path / CONFIG, overrides, model=RunConfig)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def trajectories(self) -> Path:
        return self.path / "trajectories"

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add one row; it is on disk when this returns."""
        with open(self.path / METRICS, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=True) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The rows so far; a last line that a crash cut short is left out."""
        path = self.path / METRICS
        if not path.exists():
            return
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield json.loads(line)

    def truncate_metrics(self, last_step: int) -> int:
        """Drop rows of steps after `last_step` (they will be made again); the number dropped."""
        rows = list(self.metrics())
        kept = [row for row in rows if row["step"] <= last_step]
        temporary = self.path / (METRICS + ".new")
        with open(temporary, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in kept)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path / METRICS)
        return len(rows) - len(kept)
