"""How long at least one of many concurrent things was going on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class BusyClock:
    """Adds up the wall time during which one or more `track()` blocks were open.

    Sums of durations say little when 256 episodes overlap; this is the time that a step would be shorter
    by, at most, if the tracked thing were free.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.count = 0
        self._open = 0
        self._since = 0.0

    def read(self) -> float:
        """Busy seconds up to now, open blocks included."""
        return self.seconds + (time.monotonic() - self._since if self._open else 0.0)

    @contextmanager
    def track(self) -> Iterator[None]:
        """Count the body of the `with` block as busy."""
        if self._open == 0:
            self._since = time.monotonic()
        self._open += 1
        self.count += 1
        try:
            yield
        finally:
            self._open -= 1
            if self._open == 0:
                self.seconds += time.monotonic() - self._since
