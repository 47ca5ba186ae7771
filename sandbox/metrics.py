"""Prometheus metrics of one service."""

from __future__ import annotations

import asyncio
import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000)
LAG_PERIOD_S = 0.25


class Metrics:
    """Counters and histograms; a registry of its own, so that several services can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.runs = Counter("sandbox_runs", "Programs run, by status", ["status"], registry=self.registry)
        self.refused = Counter("sandbox_refused", "Requests refused, by code", ["code"], registry=self.registry)
        self.queue_ms = Histogram("sandbox_queue_ms", "Wait for a slot", buckets=_MS, registry=self.registry)
        self.wall_ms = Histogram("sandbox_wall_ms", "Wall time of programs", buckets=_MS, registry=self.registry)
        self.cpu_ms = Histogram("sandbox_cpu_ms", "CPU time of programs", buckets=_MS, registry=self.registry)
        self.overhead_ms = Histogram(
            "sandbox_overhead_ms", "Slot time beyond the program's wall time", buckets=_MS, registry=self.registry
        )
        self.recycles = Counter("sandbox_recycles", "Slots replaced, by reason", ["reason"], registry=self.registry)
        self.start_failures = Counter("sandbox_slot_start_failures", "Failed slot starts", registry=self.registry)
        self.sessions_lost = Counter(
            "sandbox_sessions_lost", "Sessions ended, by reason", ["reason"], registry=self.registry
        )
        self.idempotent_hits = Counter(
            "sandbox_idempotent_hits", "Repeats answered without a run", registry=self.registry
        )
        self.slots = Gauge("sandbox_slots", "Slots, by pool and state", ["pool", "state"], registry=self.registry)
        self.waiting = Gauge("sandbox_queue_waiting", "Runs waiting for a permit", registry=self.registry)
        self.sessions = Gauge("sandbox_sessions", "Open sessions", registry=self.registry)
        self.loop_lag_ms = Gauge("sandbox_loop_lag_ms", "Latest delay of the event loop", registry=self.registry)
        self.loop_lag_max_ms = Gauge("sandbox_loop_lag_max_ms", "Largest delay since start", registry=self.registry)
        self.open_fds = Gauge("sandbox_open_fds", "Open file descriptors of the service", registry=self.registry)
        self.open_fds.set_function(lambda: len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0)
        self.lag_ms = 0.0
        self.lag_max_ms = 0.0

    async def watch_loop(self) -> None:
        """Measure how late the event loop wakes, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(LAG_PERIOD_S)
            self.lag_ms = max(0.0, (loop.time() - before - LAG_PERIOD_S) * 1000)
            self.lag_max_ms = max(self.lag_max_ms, self.lag_ms)
            self.loop_lag_ms.set(self.lag_ms)
            self.loop_lag_max_ms.set(self.lag_max_ms)
