"""What a run hands to its recorder: batches with advantages and filters, updates token by token."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from agent_rl.learner.batch import TrainBatch
from agent_rl.learner.update import UpdateReport
from agent_rl.records.index import read_summaries
from agent_rl.records.recorder import TrajectoryRecorder
from agent_rl.records.schema import Summary
from agent_rl.records.settings import RecordSettings
from agent_rl.records.token_updates import Tokens
from agent_rl.types import Group, Trajectory


@dataclass
class Recording:
    """The recorder of a training run, and what it is asked to keep."""

    recorder: TrajectoryRecorder
    settings: RecordSettings
    void_filter: bool
    seconds: float = field(default=0.0, init=False)
    """Spent on writing so far."""

    def __post_init__(self) -> None:
        if self.settings.level == "full":
            import pyarrow.parquet  # noqa: F401 - loaded here, so that the first step does not wait for it

    def batch(self, step: int, groups: Sequence[Group]) -> None:
        """Keep a judged rollout batch, before it is learnt from: what breaks an update should not take it along."""
        members = [t for group in groups for t in group]
        details = [
            {"advantage": advantage, "filters": filters(t, group, void_filter=self.void_filter)}
            for group in groups
            for t, advantage in zip(group, group.advantages or [None] * len(group.trajectories), strict=True)
        ]
        with self._timed():
            self.recorder.append(f"train-{step:06}", members, details, step=step)

    def wants_details(self, step: int) -> bool:
        """Whether the learner should say what it did to each token."""
        return self.settings.level == "full" and step % self.settings.every == 0

    def updates(self, step: int, batch: TrainBatch, reports: Sequence[UpdateReport]) -> None:
        """Keep what the learner did to each token, if it was asked."""
        with self._timed():
            tokens = {row.key: Tokens(row.loss_mask.numpy(), row.advantage) for row in batch.rows}
            self.recorder.append_updates(step, reports, tokens)

    def measurement(self, name: str, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Keep a held-out measurement."""
        self.recorder.append(f"{name}-{step:06}", trajectories, step=step)

    def rows(self) -> list[Summary]:
        """What is recorded so far, without tokens."""
        return read_summaries(self.recorder.folder)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start


def filters(trajectory: Trajectory, group: Group, *, void_filter: bool) -> list[str]:
    """Why a trajectory is not in the loss; empty if it is."""
    reasons = {
        "failed": trajectory.reward is None,
        "nothing_sampled": trajectory.sampled_tokens == 0,
        "void": void_filter and trajectory.void,
        "dead_group": group.dead,
    }
    return [name for name, applies in reasons.items() if applies]
