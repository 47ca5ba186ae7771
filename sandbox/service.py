"""The service without HTTP: who may run what, where, and for how long.

Outcomes of user code are results; refusals are exceptions (:mod:`sandbox.errors`). The event loop is never
blocked and no Python is ever forked from this process: slots are processes of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from sandbox.admission import FairGate
from sandbox.backends.base import Backend, Probe, SlotError
from sandbox.checks import prepared
from sandbox.errors import NotReady
from sandbox.idempotency import OnceOnly, fingerprint, weigh
from sandbox.metrics import Metrics
from sandbox.schemas import ExecuteRequest, ExecuteResult, Limits, Status
from sandbox.sessions import SessionTable
from sandbox.settings import ServiceSettings
from sandbox.slots import PooledSlot, SlotPool
from sandbox.turns import SessionService

log = logging.getLogger("sandbox")

SWEEP_S = 1.0
OFFLOAD_CHARACTERS = 256 << 10
"""Uploads above this are checked on a thread, so that the loop keeps turning."""


@dataclass(frozen=True)
class Caller:
    """Who asks: the token's tenant, and the client within it that the queue is fair over."""

    tenant: str = "local"
    client: str = "local"


class SandboxService:
    """Admission, slots and sessions over one backend.

    Args:
        settings: limits and sizes.
        backend: the isolation to use; None probes and chooses one by `settings.backend` at :meth:`start`.
    """

    def __init__(self, settings: ServiceSettings, backend: Backend | None = None) -> None:
        self.settings = settings
        self.backend = backend
        self.probes: list[Probe] = []
        self.metrics = Metrics()
        self.state = "starting"
        self.tier = ""
        self.gate = FairGate(settings.slot_count, settings.queue_capacity)
        self.once: OnceOnly[ExecuteResult] = OnceOnly(settings.idempotency_s, settings.idempotency_bytes, weigh)
        self.pools: list[SlotPool] = []
        self.sessions: SessionService | None = None
        self._background: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Probe the backend, warm the pool. Raises SandboxUnavailable (no tier good enough), SlotError."""
        if self.backend is None:
            from sandbox.backends.select import choose_backend

            self.backend, self.probes = await choose_backend(
                self.settings.backend,
                self.settings.min_tier,
                packages=self.settings.packages,
                docker=self.settings.docker,
            )
        else:
            self.probes = [await self.backend.probe()]
        self.tier = next(
            (p.tier.name for p in self.probes if p.backend == self.backend.name and p.tier is not None), ""
        )
        slots = self.settings.slot_count
        self.pool = SlotPool("runs", self.backend, self.settings, self.metrics, minimum=slots, maximum=slots)
        session_pool = SlotPool(
            "sessions",
            self.backend,
            self.settings,
            self.metrics,
            minimum=0,
            maximum=self.settings.session_count,
            spare=self.settings.spare_session_slots,
        )
        self.pools = [self.pool, session_pool]
        self.sessions = SessionService(self, SessionTable(self.settings, session_pool))
        for pool in self.pools:
            self._watch(pool)
        await self.pool.start()
        self.metrics.waiting.set_function(lambda: self.gate.waiting)
        self.spawn(self.metrics.watch_loop())
        self.spawn(self._sweep())
        self.state = "ready"

    async def drain(self) -> None:
        """Admit nothing more and give running programs `drain_s` to end."""
        self.state = "draining"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.drain_s
        while self.gate.free < self.gate.permits and loop.time() < deadline:
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Destroy everything; idempotent."""
        self.state = "stopped"
        await self.once.cancel()
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self.sessions is not None:
            await self.sessions.stop()
        for pool in self.pools:
            await pool.stop()

    def admit(self) -> None:
        """Raise NotReady unless programs are admitted."""
        if self.state != "ready":
            raise NotReady(f"the service is {self.state}", retry_after_s=1.0)

    async def execute(self, request: ExecuteRequest, caller: Caller) -> ExecuteResult:
        """Run one program. Raises ServiceError if it was not run."""
        self.admit()
        ready, notes, digest = await self.inspect(request, session=False)

        async def work() -> ExecuteResult:
            result = await self._run_stateless(ready, caller)
            result.notes[:0] = notes
            return result

        if request.request_id is None:
            return await work()
        key = (caller.tenant, "", request.request_id)
        return await self.once.run(key, digest, work, on_hit=self.metrics.idempotent_hits.inc)

    async def inspect(self, request: ExecuteRequest, *, session: bool) -> tuple[ExecuteRequest, list[str], int]:
        """The request as it will run, notes on what was changed, and its digest. Raises InvalidRequest, TooLarge."""

        def look() -> tuple[ExecuteRequest, list[str], int]:
            ready, notes = prepared(request, self.settings, session=session)
            return ready, notes, fingerprint(request) if request.request_id is not None else 0

        if sum(map(len, request.files.values())) > OFFLOAD_CHARACTERS:
            return await asyncio.to_thread(look)
        return look()

    async def _run_stateless(self, request: ExecuteRequest, caller: Caller) -> ExecuteResult:
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        patience = min(request.queue_timeout_s or self.settings.queue_timeout_s, self.settings.queue_timeout_s)
        await self.gate.enter(caller.tenant, caller.client, patience)
        entered = loop.time()
        try:
            pooled = await self.pool.acquire(caller.tenant, max(0.001, patience - (entered - arrived)))
            started = loop.time()
            result = await self.on_slot(pooled, pooled.slot.run(request), request.limits, self._release)
        finally:
            self.gate.leave(loop.time() - entered)
        return self.finish(result, request, started - arrived, loop.time() - started)

    def finish(self, result: ExecuteResult, request: ExecuteRequest, queued_s: float, held_s: float) -> ExecuteResult:
        """Complete a result with what the service knows, and count it."""
        result.queue_ms = queued_s * 1000
        result.request_id = request.request_id
        result.backend, result.tier = self.backend.name, self.tier
        metrics = self.metrics
        metrics.runs.labels(result.status.value).inc()
        metrics.queue_ms.observe(result.queue_ms)
        metrics.wall_ms.observe(result.wall_ms)
        metrics.cpu_ms.observe(result.cpu_ms)
        metrics.overhead_ms.observe(max(0.0, held_s * 1000 - result.wall_ms))
        return result

    async def on_slot(
        self,
        pooled: PooledSlot,
        call: Coroutine[Any, Any, ExecuteResult],
        limits: Limits,
        done: Callable[[PooledSlot, str], None],
    ) -> ExecuteResult:
        """Await a run in a slot, with the host's second line behind it.

        `done` gets the slot and why it is broken ("" if it is not), also when the caller goes away: then the
        run is killed first.
        """
        run = asyncio.ensure_future(call)
        try:
            await asyncio.wait((run,), timeout=limits.wall_s + self.settings.host_grace_s)
        except asyncio.CancelledError:
            self.spawn(self._abandon(pooled, run, done))
            raise
        if not run.done():
            run.cancel()
            done(pooled, "hung")
            return failure("the slot did not answer within the run's limit and grace; it was destroyed")
        try:
            result = run.result()
        except (SlotError, OSError, EOFError, asyncio.CancelledError) as broken:
            log.warning("slot failed: %s", broken or type(broken).__name__)
            done(pooled, "died")
            return failure("the slot failed while the program ran")
        except Exception:
            done(pooled, "bug")
            raise
        done(pooled, "")
        return result

    async def _abandon(
        self, pooled: PooledSlot, run: asyncio.Future[ExecuteResult], done: Callable[[PooledSlot, str], None]
    ) -> None:
        """Kill a run whose caller went away, then give the slot back."""
        reason = "abandoned"
        try:
            async with asyncio.timeout(self.settings.host_grace_s):
                await pooled.slot.cancel()
                result = await run
            self.metrics.runs.labels(result.status.value).inc()
            reason = ""
        except (SlotError, OSError, EOFError, TimeoutError) as broken:
            log.warning("an abandoned run did not end: %s", broken or type(broken).__name__)
        finally:
            run.cancel()
            done(pooled, reason)

    def _release(self, pooled: PooledSlot, broken: str) -> None:
        self.pool.release(pooled, broken=broken)

    def spawn(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Run something in the background, owned by the service."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for pool in self.pools:
                pool.sweep()
            self.sessions.table.sweep()

    def _watch(self, pool: SlotPool) -> None:
        slots = self.metrics.slots
        slots.labels(pool.name, "free").set_function(lambda: len(pool.free))
        slots.labels(pool.name, "busy").set_function(lambda: len(pool.busy))
        slots.labels(pool.name, "starting").set_function(lambda: pool.starting)


def failure(reason: str) -> ExecuteResult:
    """A result that says the sandbox, not the program, failed."""
    return ExecuteResult(status=Status.SANDBOX_ERROR, retryable=True, notes=[reason])


@contextlib.asynccontextmanager
async def running(settings: ServiceSettings, backend: Backend | None = None) -> AsyncIterator[SandboxService]:
    """A started service, stopped at the end."""
    service = SandboxService(settings, backend)
    try:
        await service.start()
        yield service
    finally:
        await service.stop()
