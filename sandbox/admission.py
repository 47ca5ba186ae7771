"""Who runs next: a bounded queue that is fair over tenants, and within a tenant over clients.

A permit stands for a core's worth of running user code. Stateless runs and session turns take one each, so
that sessions, which own slots of their own, cannot oversubscribe the machine. Waiting is bounded in number
(beyond it `Overloaded`) and in time (beyond it `QueueTimeout`), and never counts as run time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from sandbox.errors import Overloaded, QueueTimeout


class FairGate:
    """`permits` holders at a time; waiters are served round-robin over tenants, within a tenant round-robin over
    clients (a name that callers choose), and within a client in the order of their coming."""

    def __init__(self, permits: int, capacity: int) -> None:
        self.permits = permits
        self.capacity = capacity
        self.free = permits
        self.waiting = 0
        self._tenants: OrderedDict[str, OrderedDict[str, deque[asyncio.Future[None]]]] = OrderedDict()
        self._hold_s = 0.1
        """Moving average of how long a permit is held: the base of `Retry-After`."""

    def estimated_wait_s(self) -> float:
        """How long a newcomer should stay away when the queue is full."""
        return min(30.0, max(0.05, self._hold_s * (self.waiting + 1) / self.permits / 2))

    async def enter(self, tenant: str, client: str, timeout_s: float) -> None:
        """Take a permit. Raises Overloaded (queue full), QueueTimeout."""
        if self.free > 0 and self.waiting == 0:
            self.free -= 1
            return
        queue = self._tenants.get(tenant, {}).get(client)
        # One greedy client may fill the queue; another must still find a place in it.
        bound = self.capacity if queue else 2 * self.capacity
        if self.waiting >= bound:
            raise Overloaded(
                f"{self.waiting} runs are waiting for {self.permits} slots; try again later",
                retry_after_s=self.estimated_wait_s(),
            )
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._tenants.setdefault(tenant, OrderedDict()).setdefault(client, deque()).append(place)
        self.waiting += 1
        timer = loop.call_later(timeout_s, self._expire, tenant, client, place, timeout_s)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._grant()  # the permit arrived in the moment the caller left
            else:
                self._forget(tenant, client, place)
            raise
        finally:
            timer.cancel()

    def leave(self, held_s: float) -> None:
        """Give the permit back after `held_s` seconds."""
        self._hold_s += 0.05 * (held_s - self._hold_s)
        self._grant()

    def _grant(self) -> None:
        while self._tenants:
            tenant, clients = self._tenants.popitem(last=False)
            client, queue = clients.popitem(last=False)
            place = queue.popleft()
            self.waiting -= 1
            if queue:
                clients[client] = queue  # to the end: the others come first
            if clients:
                self._tenants[tenant] = clients
            if not place.done():
                place.set_result(None)
                return
        self.free += 1

    def _expire(self, tenant: str, client: str, place: asyncio.Future[None], timeout_s: float) -> None:
        if not place.done():
            self._forget(tenant, client, place)
            place.set_exception(QueueTimeout(f"no slot became free within {timeout_s:g} s; nothing was run"))

    def _forget(self, tenant: str, client: str, place: asyncio.Future[None]) -> None:
        clients = self._tenants.get(tenant, OrderedDict())
        queue = clients.get(client)
        if queue is None or place not in queue:
            return
        queue.remove(place)
        self.waiting -= 1
        if not queue:
            del clients[client]
        if not clients:
            del self._tenants[tenant]
