"""What comes out of a run: its two streams, kept head and tail, and its own report."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from typing import Any

PIECE = 1 << 16
MAX_REPORT = 4 << 20
SETUP_S = 10.0
"""Longest time from fork to the program's first instruction."""


class Capture:
    """Head and tail of a stream, up to `limit` bytes together, and the number of all."""

    def __init__(self, descriptor: int, limit: int, factor: int) -> None:
        self.descriptor, self.limit = descriptor, limit
        self.flood = max(limit, 4096) * factor
        self.total = 0
        self.kept = bytearray()
        self.tail = bytearray()

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        room = max(0, self.limit - len(self.kept))
        self.kept += data[:room]
        self.tail += data[room:]
        if len(self.tail) > self.limit + (1 << 20):
            del self.tail[: -self.limit or None]

    def read(self, everything: bool) -> bool:
        """Read what is there (one piece unless `everything`); False at the end of the stream."""
        while True:
            try:
                data = os.read(self.descriptor, PIECE)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.feed(data)
            if not everything or self.flooded:
                return True

    @property
    def flooded(self) -> bool:
        return self.total > self.flood

    def parts(self) -> tuple[bytes, bytes]:
        """(head, tail); no tail when nothing was dropped."""
        if self.total <= self.limit:
            return bytes(self.kept), b""
        half = self.limit // 2
        rest = self.limit - half
        recent = bytes(self.kept[half:] + self.tail)
        return bytes(self.kept[:half]), recent[len(recent) - rest :]


class Run:
    """One program, or one turn of a session, in flight."""

    def __init__(self, limits: dict[str, Any], out: Capture, err: Capture, report: socket.socket) -> None:
        self.limits, self.out, self.err, self.report = limits, out, err, report
        self.begun: float | None = None
        self.ended: float | None = None
        self.deadline = time.monotonic() + SETUP_S
        self.compiled = False
        self.reason: str | None = None
        self.kill_at = 0.0
        self.killed_at: float | None = None
        self.outcome: dict[str, Any] = {}
        self.exited: dict[str, Any] | None = None
        self.died: int | None = None
        self.pid: int | None = None
        self.cpu_s = 0.0
        self.peak = 0
        self.oom = False
        self.notes: list[str] = []
        self._buffer = b""

    def hear(self) -> bool:
        """Lines of the program's own report, malformed ones passed over; False at its end."""
        try:
            data, ancillary, _, _ = self.report.recvmsg(PIECE, socket.CMSG_SPACE(12))
        except (BlockingIOError, ConnectionResetError):
            return True
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        if len(self._buffer) > MAX_REPORT:
            self._buffer = b""
        for line in lines:
            if line == b"started":
                if self.begun is None:
                    self.begun = time.monotonic()
                    self.deadline = self.begun + self.limits["wall_s"]
                    for level, kind, value in ancillary:
                        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                            self.pid = struct.unpack("iII", value[:12])[0]
            elif line == b"compiled":
                self.compiled = True
            else:
                self._believe(line)
        return bool(data)

    def _believe(self, line: bytes) -> None:
        with contextlib.suppress(ValueError):
            message = json.loads(line)
            if not isinstance(message, dict):
                return
            if isinstance(message.get("died"), int) and self.died is None:
                self.died = message["died"]
            elif "code" in message and not self.outcome:
                self.outcome = message


class Session:
    """The process that holds a session's state, between turns."""

    def __init__(self, pid: int, out: int, err: int, report: socket.socket) -> None:
        self.pid, self.out, self.err, self.report = pid, out, err, report
        self.alive = True
        self.late = 0

    def drain(self) -> None:
        """Drop what was written between turns."""
        for descriptor in (self.out, self.err):
            with contextlib.suppress(BlockingIOError):
                while data := os.read(descriptor, PIECE):
                    self.late += len(data)
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while self.report.recv(PIECE):
                pass

    def close(self) -> None:
        os.close(self.out)
        os.close(self.err)
        self.report.close()


def memory_file(data: bytes) -> int:
    """Descriptor of an anonymous file that holds `data`."""
    descriptor = os.memfd_create("request")
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return descriptor
