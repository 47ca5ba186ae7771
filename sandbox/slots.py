"""The pool of slots: started in parallel up to a bound, recycled, replaced with back-off when they die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from sandbox.backends.base import Backend, Slot, SlotError
from sandbox.errors import NotReady, Overloaded, QueueTimeout
from sandbox.metrics import Metrics
from sandbox.settings import ServiceSettings

log = logging.getLogger("sandbox")

TENANT_PATIENCE_S = 1.0
"""A waiter of another tenant lets the slot's own tenant go first for this long."""
FAILING_STARTS = 3
"""After this many failed starts in a row, and no slot alive, waiting callers are told."""
DESTROY_S = 10.0


@dataclass(eq=False)
class PooledSlot:
    """A slot with what the pool knows about it."""

    slot: Slot
    born: float
    tenant: str | None = None
    """The only tenant it may serve; the first to use it."""
    rested: float = 0.0
    """When it became idle."""


@dataclass(eq=False)
class _Waiter:
    tenant: str
    since: float
    future: asyncio.Future[PooledSlot] = field(repr=False)


class SlotPool:
    """Keeps `minimum` slots alive and grows to `maximum` on demand; of slots long unused, `spare` stay.

    Slots never move between tenants: an idle slot of another tenant is replaced rather than handed over.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        settings: ServiceSettings,
        metrics: Metrics,
        *,
        minimum: int,
        maximum: int,
        spare: int = 0,
    ) -> None:
        self.name = name
        self.backend = backend
        self.settings = settings
        self.metrics = metrics
        self.minimum, self.maximum, self.spare = minimum, maximum, spare
        self.free: list[PooledSlot] = []
        self.busy: set[PooledSlot] = set()
        self.starting = 0
        self.failures = 0
        """Failed starts in a row."""
        self.last_failure = ""
        self._waiters: deque[_Waiter] = deque()
        self._starts = asyncio.Semaphore(settings.parallel_starts)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    @property
    def _closed(self) -> bool:
        return self._closing.is_set()

    @property
    def alive(self) -> int:
        """Slots that can run programs, or do."""
        return len(self.free) + len(self.busy)

    async def start(self) -> None:
        """Fill the pool; returns when the first slot is ready. Raises SlotError if none can be started."""
        if self.minimum == 0:
            return
        self._top_up()
        deadline = asyncio.get_running_loop().time() + self.settings.slot_start_timeout_s
        while not self.alive:
            if self.failures >= FAILING_STARTS or asyncio.get_running_loop().time() > deadline:
                raise SlotError(f"no slot could be started: {self.last_failure or 'timed out'}")
            await asyncio.sleep(0.01)

    async def acquire(self, tenant: str, timeout_s: float) -> PooledSlot:
        """A slot of this tenant's own. Raises QueueTimeout, NotReady, Overloaded."""
        if self._closed:
            raise NotReady("the service is shutting down")
        if not self._waiters and (pooled := self._take_free(tenant)) is not None:
            return pooled
        if self.maximum == 0:
            raise Overloaded("this service keeps no such slots", retry_after_s=30.0)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(tenant, loop.time(), loop.create_future())
        self._waiters.append(waiter)
        self._make_room(tenant)
        self._top_up()
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter.future
        except TimeoutError:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                self.release(waiter.future.result())  # the slot arrived in the moment the time was up
            raise QueueTimeout(f"no slot was ready within {timeout_s:g} s; nothing was run") from None
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                self.release(waiter.future.result())  # the slot arrived in the moment the caller left
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def release(self, pooled: PooledSlot, *, broken: str = "") -> None:
        """Give a slot back; `broken` says why it must be destroyed instead of being used again."""
        self.busy.discard(pooled)
        reason = broken or self._worn_out(pooled)
        if self._closed:
            reason = reason or "shutdown"
        if reason:
            self._retire(pooled, reason)
        elif not self._hand_over(pooled):
            self._rest(pooled)
        self._top_up()

    def sweep(self) -> None:
        """Replace idle slots that grew old or died."""
        unused_since = asyncio.get_running_loop().time() - self.settings.session_idle_s
        for pooled in list(self.free):
            reason = self._worn_out(pooled)
            if not reason and pooled.rested < unused_since and self.alive > max(self.minimum, self.spare):
                reason = "surplus"
            if reason:
                self.free.remove(pooled)
                self._retire(pooled, reason)
        self._top_up()

    async def stop(self) -> None:
        """Destroy every slot; bounded in time."""
        self._closing.set()
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_exception(NotReady("the service is shutting down"))
        self._waiters.clear()
        for pooled in [*self.free, *self.busy]:
            self._retire(pooled, "shutdown")
        self.free.clear()
        self.busy.clear()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=DESTROY_S)
            for task in late:
                task.cancel()

    def _take_free(self, tenant: str) -> PooledSlot | None:
        for index in range(len(self.free) - 1, -1, -1):  # the latest used has the warmest caches
            pooled = self.free[index]
            if pooled.slot.dirty:
                del self.free[index]
                self._retire(pooled, "dirty")
            elif pooled.tenant in (None, tenant):
                del self.free[index]
                return self._occupy(pooled, tenant)
        return None

    def _occupy(self, pooled: PooledSlot, tenant: str) -> PooledSlot:
        pooled.tenant = tenant
        self.busy.add(pooled)
        return pooled

    def _rest(self, pooled: PooledSlot) -> None:
        pooled.rested = asyncio.get_running_loop().time()
        self.free.append(pooled)

    def _hand_over(self, pooled: PooledSlot) -> bool:
        """Give the slot to a waiter; True if it was given (or replaced for one of another tenant)."""
        now = asyncio.get_running_loop().time()
        while self._waiters and self._waiters[0].future.done():
            self._waiters.popleft()
        if not self._waiters:
            return False
        head = self._waiters[0]
        chosen = head if pooled.tenant in (None, head.tenant) else None
        if chosen is None and now - head.since < TENANT_PATIENCE_S:
            chosen = next((w for w in self._waiters if w.tenant == pooled.tenant and not w.future.done()), None)
        if chosen is None:
            self._retire(pooled, "tenant")
            return True
        self._waiters.remove(chosen)
        chosen.future.set_result(self._occupy(pooled, chosen.tenant))
        return True

    def _make_room(self, tenant: str) -> None:
        """With no room to grow, replace one idle slot of another tenant."""
        if self.alive + self.starting >= self.maximum and self.free:
            self._retire(self.free.pop(0), "tenant")

    def _worn_out(self, pooled: PooledSlot) -> str:
        if pooled.slot.dirty:
            return "dirty"
        if pooled.slot.runs >= self.settings.recycle_runs:
            return "runs"
        if asyncio.get_running_loop().time() - pooled.born >= self.settings.recycle_s:
            return "age"
        return ""

    def _top_up(self) -> None:
        if self._closed:
            return
        demand = len(self.busy) + len(self._waiters)
        wanted = min(self.maximum, max(self.minimum, demand))
        while self.alive + self.starting < wanted:
            self.starting += 1
            self._spawn(self._start_one())

    async def _start_one(self) -> None:
        """Start one slot and hand it on; after a failure, pause before another try is allowed."""
        try:
            async with self._starts:
                if self.failures:
                    await self._back_off()
                if self._closed:
                    return
                async with asyncio.timeout(self.settings.slot_start_timeout_s):
                    slot = await self.backend.start_slot()
        except (SlotError, OSError, TimeoutError) as failure:
            self.failures += 1
            self.last_failure = str(failure) or type(failure).__name__
            self.metrics.start_failures.inc()
            log.error("slot start failed (%d in a row): %s", self.failures, self.last_failure)
            if self.failures >= FAILING_STARTS and not self.alive:
                self._tell_waiters()
            return
        else:
            self.failures = 0
            pooled = PooledSlot(slot, asyncio.get_running_loop().time())
            if self._closed:
                self._retire(pooled, "shutdown")
            elif not self._hand_over(pooled):
                self._rest(pooled)
        finally:
            self.starting -= 1
            self._top_up()

    async def _back_off(self) -> None:
        pause = min(30.0, self.settings.restart_backoff_s * 2 ** (self.failures - 1))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause * random.uniform(0.75, 1.25)):
                await self._closing.wait()

    def _tell_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_exception(
                    NotReady("no slot is alive and new ones fail to start; the pool keeps trying", retry_after_s=5.0)
                )
        self._waiters.clear()

    def _retire(self, pooled: PooledSlot, reason: str) -> None:
        self.metrics.recycles.labels(reason).inc()
        self._spawn(self._destroy(pooled.slot))

    async def _destroy(self, slot: Slot) -> None:
        try:
            async with asyncio.timeout(DESTROY_S):
                await slot.destroy()
        except (SlotError, OSError, TimeoutError) as failure:
            log.error("a slot could not be destroyed: %s", failure or type(failure).__name__)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
