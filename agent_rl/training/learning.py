"""What the training loop asks of a learner, wherever its ranks are, and the learner in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent_rl.engines.base import Engine
from agent_rl.learner import checkpoint
from agent_rl.learner.batch import TrainBatch
from agent_rl.learner.settings import CheckpointSettings
from agent_rl.learner.update import Learner, UpdateReport
from agent_rl.weights.build import weight_sync
from agent_rl.weights.proof import SyncLog, SyncProof
from agent_rl.weights.settings import SyncSettings


class HandOver(Protocol):
    """Brings weights to the engines (see `agent_rl.weights.sync.WeightSync`)."""

    async def hand_over(self, version: int) -> SyncProof | None:
        """Serve the learner's weights as `version`; SyncError if that cannot be proved."""
        ...

    def drop_after(self, version: int) -> None:
        """Drop the records of versions that will be made again."""
        ...

    async def close(self) -> None:
        """Give back what the hand-over holds; idempotent."""
        ...


class Learning(Protocol):
    """A learner of one or more ranks. Calls block; `PartLost` if a rank is gone."""

    def train_on(self, batch: TrainBatch, seed: int, *, with_details: bool = False) -> list[UpdateReport]:
        """All updates of one rollout batch, reported as over all ranks."""
        ...

    def save(self, directory: Path, step: int, progress: Mapping[str, Any], *, score: float | None) -> Path:
        """Write a checkpoint."""
        ...

    def load(self, path: Path) -> checkpoint.Restored:
        """Put a checkpoint back."""
        ...

    def sync(self, log: SyncLog) -> HandOver:
        """The way of its weights to the run's engines; proofs go to `log`."""
        ...


@dataclass(frozen=True)
class LocalLearning:
    """A learner in this process, beside the engine."""

    learner: Learner
    engine: Engine
    tokenizer: Any
    fingerprints: Mapping[str, str]
    retention: CheckpointSettings
    settings: SyncSettings

    def train_on(self, batch: TrainBatch, seed: int, *, with_details: bool = False) -> list[UpdateReport]:
        return self.learner.train_on(batch, seed, with_details=with_details)

    def save(self, directory: Path, step: int, progress: Mapping[str, Any], *, score: float | None) -> Path:
        return checkpoint.save(
            directory,
            step,
            self.learner,
            self.tokenizer,
            progress,
            fingerprints=self.fingerprints,
            score=score,
            retention=self.retention,
        )

    def load(self, path: Path) -> checkpoint.Restored:
        return checkpoint.load(path, self.learner, self.fingerprints)

    def sync(self, log: SyncLog) -> HandOver:
        return weight_sync(self.learner, self.engine, self.settings, vocabulary=len(self.tokenizer), log=log)
