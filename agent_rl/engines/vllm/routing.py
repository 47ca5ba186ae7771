"""Which engine plays which trajectory: the one that holds its cache."""

from __future__ import annotations


class Routes:
    """Gives each trajectory the engine with the fewest trajectories, for as long as it lives.

    Args:
        engines: how many there are.
    """

    def __init__(self, engines: int):
        self._load = [0] * engines
        self._of: dict[str, int] = {}

    def rank(self, trajectory: str) -> int | None:
        """Number of the engine; None if there is only one."""
        if len(self._load) == 1:
            return None
        if trajectory not in self._of:
            self._of[trajectory] = rank = self._load.index(min(self._load))
            self._load[rank] += 1
        return self._of[trajectory]

    def pin(self, trajectory: str, rank: int) -> None:
        """The trajectory is to be played by that engine."""
        if len(self._load) > 1 and trajectory not in self._of:
            self._of[trajectory] = rank
            self._load[rank] += 1

    def forget(self, trajectory: str) -> None:
        """The trajectory has ended."""
        rank = self._of.pop(trajectory, None)
        if rank is not None:
            self._load[rank] -= 1
