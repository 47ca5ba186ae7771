"""A pool of killable worker processes behind a bounded queue.

Each lane is a thread that owns one worker process: it starts it, hands it one job at a time, waits until the
job's deadline and kills the whole process group if that passes. A thread, not an event loop, so that any
thread and any loop can wait for a result.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import IO, Any

import psutil

from agent_rl.rewards.settings import VerifierSettings
from agent_rl.types import InfrastructureError

STARVED_SHARE = 0.1
"""A worker that got less than this share of its wall time as processor time was starved by the machine."""
_IDLE_POLL_SECONDS = 1.0


class QueueFull(Exception):
    """No place in the queue at present."""


@dataclass(slots=True)
class _Job:
    message: Mapping[str, Any]
    custom: bool
    future: Future[dict[str, Any]] = field(default_factory=Future)
    enqueued: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class _Died:
    """The worker ended during a job. `code` is negative for a signal; `deadline` if we killed it for its time."""

    code: int
    deadline: bool
    cpu_seconds: float
    stderr: str


class _Worker:
    """One child process. Owned by one thread; the kernel kills the child when that thread or the process ends."""

    def __init__(self, settings: VerifierSettings):
        self.jobs = 0
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `end`)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p) or "."}
        environment.setdefault("OMP_NUM_THREADS", "1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agent_rl.rewards.worker", str(os.getpid()), str(settings.memory_mb)],
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

    def end(self, *, deadline: bool, cpu_seconds: float = 0.0) -> _Died:
        """Kill the process group, reap it, and say how it ended."""
        if not deadline and self.process.poll() is None:
            # It closed its output: it is dying by itself, and how it dies is what we want to know.
            try:
                self.process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                deadline = False
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.process.kill()
        code = self.process.wait(timeout=30)
        self.stderr.seek(0, os.SEEK_END)
        self.stderr.seek(max(0, self.stderr.tell() - 2000))
        text = self.stderr.read().decode(errors="replace").strip()
        for stream in (self.process.stdin, self.process.stdout, self.stderr):
            if stream is not None:
                stream.close()
        return _Died(code, deadline, cpu_seconds, text)


def _wait(descriptor: int, event: int, deadline: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, event)
    remaining = deadline - time.monotonic()
    return remaining > 0 and bool(poller.poll(remaining * 1000))


class WorkerPool:
    """Runs jobs in worker processes. Thread-safe. Nothing starts before the first job.

    Every result is a dict with `kind` and `reason`; a crash of the workers themselves, a queue that does not
    move, and closing while jobs wait set :class:`InfrastructureError` on the job's future.
    """

    def __init__(self, settings: VerifierSettings):
        self.settings = settings
        self._queue: queue.Queue[_Job] = queue.Queue(settings.queue_size)
        self._lock = threading.Lock()
        self._lanes: list[threading.Thread] = []
        self._idle = 0
        self._closed = threading.Event()
        self._running: set[_Worker] = set()
        self.started = 0
        """Workers started so far."""
        self.killed = 0
        """Workers killed at a deadline so far."""
        _open_pools.add(self)

    def submit(self, message: Mapping[str, Any], *, custom: bool = False) -> Future[dict[str, Any]]:
        """Queue one job.

        Raises:
            QueueFull: all places are taken; try again later.
            InfrastructureError: the pool is closed.
        """
        job = _Job(message, custom)
        with self._lock:
            if self._closed.is_set():
                raise InfrastructureError("verifier", "the verifier is closed", retryable=False)
            try:
                self._queue.put_nowait(job)
            except queue.Full:
                raise QueueFull from None
            if self._idle < self._queue.qsize() and len(self._lanes) < self.settings.workers:
                lane = threading.Thread(target=self._serve, name=f"verifier-{len(self._lanes)}", daemon=True)
                self._lanes.append(lane)
                lane.start()
        return job.future

    def close(self) -> None:
        """Kill every worker, fail every waiting job, and wait for the threads."""
        with self._lock:
            self._closed.set()
            running = list(self._running)
        for worker in running:
            _kill_group(worker.process.pid)
        for lane in self._lanes:
            lane.join(timeout=35)
        while True:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(
                    InfrastructureError("verifier", "closed while the answer waited", retryable=False)
                )
        _open_pools.discard(self)

    def _serve(self) -> None:
        worker: _Worker | None = None
        try:
            while not self._closed.is_set():
                with self._lock:
                    self._idle += 1
                try:
                    job = self._queue.get(timeout=_IDLE_POLL_SECONDS)
                except queue.Empty:
                    continue
                finally:
                    with self._lock:
                        self._idle -= 1
                if not job.future.set_running_or_notify_cancel():
                    continue
                try:
                    result, worker = self._execute(job, worker)
                    job.future.set_result(result)
                except InfrastructureError as error:
                    worker = None
                    job.future.set_exception(error)
                except BaseException as error:
                    job.future.set_exception(InfrastructureError("verifier", f"{type(error).__name__}: {error}"))
                    raise
        finally:
            if worker is not None:
                self._end(worker, deadline=True)

    def _execute(self, job: _Job, worker: _Worker | None) -> tuple[dict[str, Any], _Worker | None]:
        """Run one job, on a fresh worker after each death, within the bounds of the settings."""
        settings = self.settings
        if time.monotonic() - job.enqueued > settings.queue_seconds:
            raise InfrastructureError(
                "verifier",
                f"no worker became free within queue_seconds = {settings.queue_seconds}; raise workers",
            )
        complaint = ""
        for _ in range(settings.crash_retries + 1):
            if self._closed.is_set():
                break
            if worker is None:
                worker, complaint = self._start()
                if worker is None:
                    continue
            began = worker.cpu_seconds()
            deadline = time.monotonic() + settings.wall_seconds
            reply = worker.receive(deadline) if worker.send(job.message, deadline) else None
            if reply is not None:
                worker.jobs += 1
                if reply.pop("recycle") or worker.jobs >= settings.jobs_per_worker:
                    self._end(worker, deadline=True)
                    worker = None
                return reply, worker
            used = worker.cpu_seconds() - began
            died = self._end(worker, deadline=time.monotonic() >= deadline, cpu_seconds=used)
            worker = None
            verdict, complaint = self._after_death(died, job)
            if verdict is not None:
                return verdict, None
        if self._closed.is_set():
            raise InfrastructureError("verifier", "closed while the answer was compared", retryable=False)
        raise InfrastructureError(
            "verifier", f"{complaint}, {settings.crash_retries + 1} times in a row", retryable=True
        )

    def _after_death(self, died: _Died, job: _Job) -> tuple[dict[str, Any] | None, str]:
        """A verdict if the answer caused the end of the worker; else what to say if it happens again."""
        limit = self.settings.wall_seconds
        if died.code == -signal.SIGXCPU:
            return {
                "kind": "undecided",
                "reason": f"deadline: more than {self.settings.cpu_seconds:g} s of processor time",
            }, ""
        if died.deadline:
            self.killed += 1
            if died.cpu_seconds >= STARVED_SHARE * limit or job.custom:
                return {"kind": "undecided", "reason": f"deadline: no result within {limit:g} s"}, ""
            return None, (f"the machine gave a worker only {died.cpu_seconds:.2f} s of processor time in {limit:g} s")
        how = f"signal {-died.code}" if died.code < 0 else f"exit status {died.code}"
        return None, f"a worker died ({how}): {died.stderr[-500:] or 'no message'}"

    def _start(self) -> tuple[_Worker | None, str]:
        worker = _Worker(self.settings)
        with self._lock:
            self._running.add(worker)
            self.started += 1
        if worker.receive(time.monotonic() + self.settings.start_seconds) is not None:
            return worker, ""
        died = self._end(worker, deadline=False)
        return None, f"a worker did not start: {died.stderr[-500:] or f'exit status {died.code}'}"

    def _end(self, worker: _Worker, *, deadline: bool, cpu_seconds: float = 0.0) -> _Died:
        with self._lock:
            self._running.discard(worker)
        return worker.end(deadline=deadline, cpu_seconds=cpu_seconds)


_open_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # it is gone already


@atexit.register
def _close_all() -> None:
    """A pool that nobody closed still leaves no process behind."""
    for pool in list(_open_pools):
        pool.close()
