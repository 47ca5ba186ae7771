"""A pool of killable worker processes behind a bounded queue.

Each lane is a thread that owns one worker process: it starts it, hands it one job at a time, waits until the
job's deadline and kills the whole process group if that passes. A thread, not an event loop, so that any
thread and any loop can wait for a result.
"""

from __future__ import annotations

import atexit
import queue
import signal
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from agent_rl.rewards.process import Died, Worker, kill_group
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


class WorkerPool:
    """Runs jobs in worker processes. Thread-safe. Nothing starts before the first job.

    Every result is a dict with `kind` and `reason`; a crash of the workers themselves, a queue that does not
    move, and closing while jobs wait set :class:`InfrastructureError` on the job's future.
    """

    def __init__(self, settings: VerifierSettings):
        self.settings = settings
        self.jobs: queue.Queue[_Job | None] = queue.Queue(settings.queue_size)
        self.closed = threading.Event()
        self.started = 0
        """Workers started so far."""
        self.killed = 0
        """Workers ended at a deadline so far, by us or by the kernel."""
        self._lock = threading.Lock()
        self._lanes: list[_Lane] = []
        _open_pools.add(self)

    def submit(self, message: Mapping[str, Any], *, custom: bool = False) -> Future[dict[str, Any]]:
        """Queue one job.

        Raises:
            QueueFull: all places are taken; try again later.
            InfrastructureError: the pool is closed.
        """
        job = _Job(message, custom)
        with self._lock:
            if self.closed.is_set():
                raise InfrastructureError("verifier", "the verifier is closed", retryable=False)
            try:
                self.jobs.put_nowait(job)
            except queue.Full:
                raise QueueFull from None
            idle = sum(lane.idle for lane in self._lanes)
            if idle < self.jobs.qsize() and len(self._lanes) < self.settings.workers:
                lane = _Lane(self, len(self._lanes))
                self._lanes.append(lane)
                lane.start()
        return job.future

    def count(self, *, started: int = 0, killed: int = 0) -> None:
        """Add to the counters."""
        with self._lock:
            self.started += started
            self.killed += killed

    def close(self) -> None:
        """Kill every worker, fail every waiting job, and wait for the threads."""
        with self._lock:
            self.closed.set()
        while True:
            try:
                job = self.jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None and job.future.set_running_or_notify_cancel():
                job.future.set_exception(
                    InfrastructureError("verifier", "closed while the answer waited", retryable=False)
                )
        for lane in self._lanes:
            lane.interrupt()
        for lane in self._lanes:
            lane.join(timeout=35)
        _open_pools.discard(self)


class _Lane(threading.Thread):
    """A thread and the one worker process that it owns."""

    def __init__(self, pool: WorkerPool, index: int):
        super().__init__(name=f"verifier-{index}", daemon=True)
        self.pool = pool
        self.settings = pool.settings
        self.idle = False
        self.worker: Worker | None = None

    def interrupt(self) -> None:
        """Make the lane notice that the pool is closed, whatever it waits for."""
        worker = self.worker
        if worker is not None:
            kill_group(worker.process.pid)
        if not self.pool.jobs.full():
            self.pool.jobs.put(None)

    def run(self) -> None:
        """Serve jobs until the pool is closed."""
        try:
            while not self.pool.closed.is_set():
                self.idle = True
                try:
                    job = self.pool.jobs.get(timeout=_IDLE_POLL_SECONDS)
                except queue.Empty:
                    continue
                finally:
                    self.idle = False
                if job is not None and job.future.set_running_or_notify_cancel():
                    self._serve(job)
        finally:
            self._end_worker(deadline=True)

    def _serve(self, job: _Job) -> None:
        try:
            job.future.set_result(self._execute(job))
        except InfrastructureError as error:
            job.future.set_exception(error)
        except Exception as error:
            # A fault of this thread (no file descriptors left, ...) must reach the caller, and the worker is suspect.
            self._end_worker(deadline=True)
            job.future.set_exception(InfrastructureError("verifier", f"{type(error).__name__}: {error}"))

    def _execute(self, job: _Job) -> dict[str, Any]:
        """Run one job, on a fresh worker after each death, within the bounds of the settings."""
        settings = self.settings
        if time.monotonic() - job.enqueued > settings.queue_seconds:
            raise InfrastructureError(
                "verifier",
                f"no worker became free within queue_seconds = {settings.queue_seconds}; raise workers",
            )
        complaint = ""
        for _ in range(settings.crash_retries + 1):
            if self.pool.closed.is_set():
                raise InfrastructureError("verifier", "closed while the answer was compared", retryable=False)
            worker, complaint = self._ready_worker()
            if worker is None:
                continue
            began = worker.cpu_seconds()
            deadline = time.monotonic() + settings.wall_seconds
            reply = worker.receive(deadline) if worker.send(job.message, deadline) else None
            if reply is not None:
                worker.jobs += 1
                if reply.pop("recycle") or worker.jobs >= settings.jobs_per_worker:
                    self._end_worker(deadline=True)
                return reply
            used = worker.cpu_seconds() - began
            died = self._end_worker(deadline=time.monotonic() >= deadline)
            assert died is not None
            verdict, complaint = self._after_death(died, used, job)
            if not self.pool.closed.is_set():
                self._spawn()  # it starts while this verdict is on its way
            if verdict is not None:
                return verdict
        raise InfrastructureError(
            "verifier", f"{complaint}, {settings.crash_retries + 1} times in a row", retryable=True
        )

    def _after_death(self, died: Died, used: float, job: _Job) -> tuple[dict[str, Any] | None, str]:
        """A verdict if the answer caused the end of the worker; else what to say if it happens again.

        `used` is the processor time of this job in seconds.
        """
        limit = self.settings.wall_seconds
        if died.code in (-signal.SIGPROF, -signal.SIGXCPU):
            self.pool.count(killed=1)
            spent = self.settings.cpu_seconds
            return _undecided(f"deadline: more than {spent:g} s of processor time"), ""
        if died.deadline:
            self.pool.count(killed=1)
            if used >= STARVED_SHARE * limit or job.custom:
                return _undecided(f"deadline: no result within {limit:g} s"), ""
            return None, f"the machine gave a worker only {used:.2f} s of processor time in {limit:g} s"
        how = f"signal {-died.code}" if died.code < 0 else f"exit status {died.code}"
        return None, f"a worker died ({how}): {died.stderr[-500:] or 'no message'}"

    def _ready_worker(self) -> tuple[Worker | None, str]:
        """A worker that has started, or None and a complaint."""
        worker = self.worker or self._spawn()
        if worker.ready or worker.receive(time.monotonic() + self.settings.start_seconds) is not None:
            worker.ready = True
            return worker, ""
        died = self._end_worker(deadline=False)
        assert died is not None
        return None, f"a worker did not start: {died.stderr[-500:] or f'exit status {died.code}'}"

    def _spawn(self) -> Worker:
        self.worker = Worker(self.settings)
        self.pool.count(started=1)
        return self.worker

    def _end_worker(self, *, deadline: bool) -> Died | None:
        worker, self.worker = self.worker, None
        return None if worker is None else worker.end(deadline=deadline)


def _undecided(reason: str) -> dict[str, Any]:
    return {"kind": "undecided", "reason": reason}


_open_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A pool that nobody closed still leaves no process behind."""
    for pool in list(_open_pools):
        pool.close()
