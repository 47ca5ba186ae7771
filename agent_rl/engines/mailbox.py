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
        self._closed = False

    def post(self, command: Command) -> bool:
        """Leave a command and wake the worker; False if the mailbox is closed, and nobody will carry it out."""
        with self._ready:
            if not self._closed:
                self._commands.append(command)
                self._ready.notify()
            return not self._closed

    def close(self) -> list[Command]:
        """Take no more commands; returns those that are left."""
        with self._ready:
            self._closed = True
            commands = list(self._commands)
            self._commands.clear()
            return commands

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
