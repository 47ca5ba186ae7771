"""A named request runs once: repeats join the running one or get its stored result."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sandbox.errors import Conflict
from sandbox.schemas import ExecuteRequest, ExecuteResult, Status

MAX_ENTRIES = 10_000

Result = TypeVar("Result")
Key = tuple[str, ...]


@dataclass(eq=False)
class _Entry(Generic[Result]):
    digest: int
    task: asyncio.Task[Result] = field(repr=False)
    waiters: int = 0
    size: int = 0
    done_at: float | None = None


class OnceOnly(Generic[Result]):
    """Results by (tenant, place, request id), bounded in age, number and bytes.

    Args:
        keep_s: how long a result is kept.
        max_bytes: bound on what all kept results weigh.
        weigh: bytes of a result; None for one that must not be kept (a failure of ours, to be tried again).
    """

    def __init__(self, keep_s: float, max_bytes: int, weigh: Callable[[Result], int | None]) -> None:
        self.keep_s, self.max_bytes, self.weigh = keep_s, max_bytes, weigh
        self.bytes = 0
        self._running: dict[Key, _Entry[Result]] = {}
        self._kept: OrderedDict[Key, _Entry[Result]] = OrderedDict()

    async def run(
        self,
        key: Key,
        digest: int,
        work: Callable[[], Awaitable[Result]],
        *,
        abandoned: Callable[[], None] | None = None,
        on_hit: Callable[[], None] = lambda: None,
    ) -> Result:
        """Run `work` unless this key has run. Raises Conflict if the key was another request's.

        If every caller goes away, `abandoned` is called and the work ends by itself, its result waiting for a
        repeat; without it the work is cancelled and forgotten.
        """
        self._expire()
        entry = self._running.get(key) or self._kept.get(key)
        if entry is None:
            entry = _Entry(digest, asyncio.ensure_future(work()))  # type: ignore[arg-type]
            self._running[key] = entry
            entry.task.add_done_callback(lambda _: self._settle(key, entry))
        elif entry.digest != digest:
            raise Conflict(f"request_id {key[-1]!r} was used for a different request")
        else:
            on_hit()
        entry.waiters += 1
        try:
            return await asyncio.shield(entry.task)
        finally:
            entry.waiters -= 1
            if entry.waiters == 0 and not entry.task.done():
                if abandoned is not None:
                    abandoned()
                else:
                    self._running.pop(key, None)  # a repeat starts afresh: the killed run left nothing behind
                    entry.task.cancel()

    async def cancel(self) -> None:
        """Cancel what still runs."""
        tasks = [entry.task for entry in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _settle(self, key: Key, entry: _Entry[Result]) -> None:
        if self._running.get(key) is not entry:
            return
        del self._running[key]
        if entry.task.cancelled() or entry.task.exception() is not None:
            return
        size = self.weigh(entry.task.result())
        if size is not None:
            entry.size, entry.done_at = size, asyncio.get_running_loop().time()
            self._kept[key] = entry
            self.bytes += size
            self._expire()

    def _expire(self) -> None:
        """Forget the oldest results until age, number and bytes are within bounds."""
        horizon = asyncio.get_running_loop().time() - self.keep_s
        while self._kept:
            oldest = next(iter(self._kept.values()))
            assert oldest.done_at is not None
            if oldest.done_at > horizon and self.bytes <= self.max_bytes and len(self._kept) <= MAX_ENTRIES:
                return
            self._kept.popitem(last=False)
            self.bytes -= oldest.size


def weigh(result: ExecuteResult) -> int | None:
    """Bytes a kept result takes, roughly; None for one that a repeat should try again."""
    if result.retryable or result.status == Status.CANCELLED:
        return None
    return 2000 + len(result.stdout) + len(result.stderr) + sum(map(len, result.files.values()))


def fingerprint(request: ExecuteRequest) -> int:
    """Tells whether a repeated request id names the same request."""
    return hash(request.model_dump_json(exclude={"request_id", "queue_timeout_s"}))
