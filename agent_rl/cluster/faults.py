"""What can be lost on a cluster, and when a run gives up: plain decisions."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RowOfFailures:
    """Counts failures of one place that nothing came between; a place with too many in a row is started afresh."""

    limit: int = 3
    _count: dict[int, int] = field(default_factory=dict, init=False)

    def note(self, place: int, *, failed: bool) -> bool:
        """Whether the place has now failed so often in a row that it should be started afresh (and is counted anew)."""
        self._count[place] = self._count.get(place, 0) + 1 if failed else 0
        if self._count[place] < self.limit:
            return False
        self._count[place] = 0
        return True
