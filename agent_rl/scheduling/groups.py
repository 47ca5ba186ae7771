"""What is known of one group while it is played, and the count of what became of all of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(slots=True)
class GroupState:
    """A group from its start until it is trained on or given up."""

    ticket: int
    """Number of the draw; it also names the group's random streams, so that a group that is redone draws alike."""
    problem: str
    """Id of its problem."""
    samples: int
    version: int
    """Oldest weight version that a token of it may have: what was served when it started, and once it is finished
    the oldest version among its tokens."""
    started: float
    """Seconds on the caller's clock."""
    ended: dict[int, float] = field(default_factory=dict)
    """Sample -> when it ended."""
    oldest: int | None = None
    """Oldest version among the tokens of the samples that ended."""
    finished: float | None = None
    """When its last sample ended."""
    dead: bool = False
    """Finished without a signal, and replaced."""

    @property
    def running(self) -> int:
        """Attempts that are still played."""
        return self.samples - len(self.ended)

    def end(self, sample: int, version: int | None, now: float) -> None:
        """An attempt ended; `version` is the oldest among its tokens, None if it has none.

        Raises:
            ValueError: it had ended before, or the group has no such attempt.
        """
        if sample in self.ended or not 0 <= sample < self.samples:
            raise ValueError(f"attempt {sample} of group {self.ticket} ({self.problem}) ended before, or is unknown")
        self.ended[sample] = now
        if version is not None:
            self.oldest = version if self.oldest is None else min(self.oldest, version)
        if not self.running:
            self.finished = now
            if self.oldest is not None:
                self.version = self.oldest

    def saved(self) -> dict[str, Any]:
        """Plain JSON of what a resumed run needs."""
        names = ("ticket", "problem", "samples", "version", "oldest", "dead")
        return {name: getattr(self, name) for name in names} | {"ended": sorted(self.ended)}


@dataclass(slots=True)
class Counters:
    """What became of all groups so far. Part of a checkpoint: a capacity that is derived from counts must not grow
    because a run was resumed."""

    started: int = 0
    """Groups that were begun, redone ones once."""
    finished: int = 0
    trained: int = 0
    dead_replaced: int = 0
    """Finished without a signal and replaced by a fresh problem."""
    stale_finished: int = 0
    """Finished, and then given up for being too old: they were part of the surplus."""
    stale_cancelled: int = 0
    """Ended while they were played, since they would have been too old."""
    surplus_cancelled: int = 0
    """Ended while they were played, since later ones overtook them (`surplus: cancel`)."""
    stragglers_cut: int = 0
    """Attempts (not groups) that their group did not wait for."""
    short_batches: int = 0
    """Batches that the step's deadline cut short."""

    def saved(self) -> dict[str, int]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def restored(cls, values: dict[str, int]) -> Counters:
        """The inverse of `saved`; a counter that is new since then starts at 0."""
        return cls(**{f.name: int(values.get(f.name, 0)) for f in fields(cls)})
