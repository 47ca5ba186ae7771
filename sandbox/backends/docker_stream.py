"""A container's standard streams as the process they belong to: what `asyncio.subprocess.Process` is for a child.

The engine sends stdout and stderr over one connection in frames: a byte that says which, three of padding, the
length (Docker Engine API, "Attach to a container"); input goes the other way as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import cast

HEADER = struct.Struct(">BxxxI")
STDERR = 2


class ContainerProcess(asyncio.Protocol):
    """The attached container. `stdin`, `stdout`, `stderr`, `wait` and `kill` as a child process has them."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self.stdin = self
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()
        self.pid = 0
        """Process id of the container's first process on the engine's machine."""
        self.on_end: Callable[[], None] = lambda: None
        self.kill = kill
        """Have the engine end the container; returns at once."""
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._ended = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    async def wait(self) -> None:
        """Until the container's streams end, that is until its first process is gone."""
        await self._ended.wait()

    # --- input ---

    def write(self, data: bytes) -> None:
        """Send `data` to the container's input; lost if it has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until more may be written. Raises ConnectionError if the container has ended."""
        await self._writable.wait()
        if self._ended.is_set():
            raise ConnectionResetError("the container has ended")

    def close(self) -> None:
        """End the container's input."""
        if self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(OSError):
                self._transport.write_eof()

    def abandon(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by behaviour only
        for stream in (self.stdout, self.stderr):
            stream.set_transport(transport)  # a reader that is full pauses the connection

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        position = 0
        while len(self._buffer) - position >= HEADER.size:
            which, length = HEADER.unpack_from(self._buffer, position)
            end = position + HEADER.size + length
            if len(self._buffer) < end:
                break
            piece = bytes(self._buffer[position + HEADER.size : end])
            (self.stderr if which == STDERR else self.stdout).feed_data(piece)
            position = end
        del self._buffer[:position]

    def eof_received(self) -> None:
        return None  # nothing more will be asked of it: the transport closes

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set()
        self._writable.set()
        self.stdout.feed_eof()
        self.stderr.feed_eof()
        self.on_end()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
