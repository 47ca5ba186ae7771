"""The learner's ranks, as the training loop sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.cluster.ranks import Ranks
from agent_rl.cluster.remote_rollout import RemoteRollout
from agent_rl.cluster.remote_weights import RemoteHandOver, RemoteSource
from agent_rl.learner.batch import TrainBatch
from agent_rl.learner.checkpoint import Restored
from agent_rl.learner.update import UpdateReport
from agent_rl.training.settings import RunConfig
from agent_rl.weights.proof import SyncLog


@dataclass(frozen=True)
class RemoteLearning:
    """`Learning` over ranks."""

    ranks: Ranks
    rollout: RemoteRollout
    config: RunConfig
    model: Any
    """The model without memory (on PyTorch's meta device): names and ties of its weights."""
    vocabulary: int
    fingerprints: Mapping[str, str]

    def train_on(self, batch: TrainBatch, seed: int, *, with_details: bool = False) -> list[UpdateReport]:
        with self.ranks.turn:
            reports = self.ranks.call("train_on", batch, seed, with_details)[0]
            self.ranks.version += 1
        return reports

    def save(self, directory: Path, step: int, progress: Mapping[str, Any], *, score: float | None) -> Path:
        folder = directory.resolve()
        with self.ranks.turn:
            return self.ranks.call("save", folder, step, dict(progress), dict(self.fingerprints), score)[0]

    def load(self, path: Path) -> Restored:
        with self.ranks.turn:
            restored = self.ranks.call("load", path.resolve(), dict(self.fingerprints))[0]
            self.ranks.version = restored.step
        return restored

    def sync(self, log: SyncLog) -> RemoteHandOver:
        source = RemoteSource(self.ranks, self.model, self.config.temperature)
        hand_over = RemoteHandOver(source, self.rollout, self.config, self.vocabulary, log)
        self.rollout.hand_over = hand_over.to
        return hand_over
