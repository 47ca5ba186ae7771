"""How other threads tell the worker what to do."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Command = Callable[[], None]


class Mailbox:
    """Commands for one worker thread, carried out in the order they were posted."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._ready = threading.Condition()

    def post(self, command: Command) -> None:
        """Leave a command and wake the worker."""
        with self._ready:
            self._commands.append(command)
            self._ready.notify()

    def take(self, timeout: float | None) -> list[Command]:
        """All commands there are. Waits up to `timeout` seconds for a first one (None: until one comes)."""
        if timeout == 0 and not self._commands:
            return []
        with self._ready:
            if not self._commands:
                self._ready.wait(timeout)
            commands = list(self._commands)
            self._commands.clear()
            return commands
