"""One worker process as its parent sees it: start, send, receive, kill."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import psutil

from agent_rl.rewards.settings import VerifierSettings


@dataclass(frozen=True, slots=True)
class Died:
    """The worker ended during a job. `code` is negative for a signal; `deadline` if we killed it for its time."""

    code: int
    deadline: bool
    stderr: str


class Worker:
    """One child process. Owned by one thread; the kernel kills the child when that thread or the process ends."""

    def __init__(self, settings: VerifierSettings):
        self.jobs = 0
        self.ready = False
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `end`)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        environment.setdefault("OMP_NUM_THREADS", "1")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent_rl.rewards.worker", str(os.getpid()), str(settings.memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.inlet, self.outlet = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.inlet, False)
        os.set_blocking(self.outlet, False)

    def send(self, message: Mapping[str, Any], deadline: float) -> bool:
        """Hand over one message; False if the worker does not take it."""
        body = json.dumps(message).encode()
        data = memoryview(struct.pack(">I", len(body)) + body)
        while data:
            if not _wait(self.inlet, select.POLLOUT, deadline):
                return False
            try:
                data = data[os.write(self.inlet, data) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return False
        return True

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """The next message; None if the worker ends or the deadline passes first."""
        data = b""
        while True:
            if len(data) >= 4 and len(data) - 4 >= struct.unpack(">I", data[:4])[0]:
                return json.loads(data[4:])
            if not _wait(self.outlet, select.POLLIN, deadline):
                return None
            try:
                piece = os.read(self.outlet, 65536)
            except BlockingIOError:
                continue
            if not piece:
                return None
            data += piece

    def cpu_seconds(self) -> float:
        """Processor time of the worker so far; 0.0 if it is gone."""
        try:
            times = psutil.Process(self.process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return times.user + times.system

    def end(self, *, deadline: bool) -> Died:
        """Kill the process group, reap it, and say how it ended."""
        if not deadline and self.process.poll() is None:
            # It closed its output: it is dying by itself, and how it dies is what we want to know.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=1.0)
        kill_group(self.process.pid)
        code = self.process.wait(timeout=30)
        self.stderr.seek(0, os.SEEK_END)
        self.stderr.seek(max(0, self.stderr.tell() - 2000))
        text = self.stderr.read().decode(errors="replace").strip()
        for stream in (self.process.stdin, self.process.stdout, self.stderr):
            if stream is not None:
                stream.close()
        return Died(code, deadline, text)


def _wait(descriptor: int, event: int, deadline: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, event)
    remaining = deadline - time.monotonic()
    return remaining > 0 and bool(poller.poll(remaining * 1000))


def kill_group(pid: int) -> None:
    """Kill a process group, if it is still there."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # it is gone already
