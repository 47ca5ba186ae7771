"""Sessions: an interpreter each, in a slot of its own, with a contract about what it remembers.

Every turn says what became of the state (`kept`, `reset`, `rolled_back`, `lost`); a session that is gone answers
410 with the reason, never a silent fresh interpreter. Turns of one session are served one after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass, field

from sandbox.backends.base import SlotError
from sandbox.errors import NotReady, Overloaded, QueueTimeout, SessionGone, SessionUnknown
from sandbox.schemas import SessionInfo, SessionState
from sandbox.settings import ServiceSettings
from sandbox.slots import PooledSlot, SlotPool
from sandbox.tenants import SessionIds

log = logging.getLogger("sandbox")

REMEMBERED_ENDS = 10_000
"""Ended sessions whose reason is still known."""


@dataclass(eq=False)
class Session:
    """One session. `turn` is held by the running turn; `lost` says why it ended, "" while it lives."""

    id: str
    tenant: str
    pooled: PooledSlot
    memory_mb: int
    idle_s: float
    life_s: float
    opened: float
    used: float
    notes: list[str] = field(default_factory=list)
    state: SessionState = SessionState.KEPT
    turns: int = 0
    busy: bool = False
    waiting: int = 0
    lost: str = ""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    def expiry(self, now: float) -> str:
        """Why the session is over by time; "" if it is not."""
        if now - self.opened >= self.life_s:
            return f"the session reached its greatest age ({self.life_s:g} s)"
        if not self.busy and not self.waiting and now - self.used >= self.idle_s:
            return f"the session was idle for {self.idle_s:g} s"
        return ""


class SessionTable:
    """Open sessions: found by id and tenant, evicted when room is needed, ended by age and idleness."""

    def __init__(self, settings: ServiceSettings, pool: SlotPool) -> None:
        self.settings = settings
        self.pool = pool
        self.ids = SessionIds(settings)
        self.open: OrderedDict[str, Session] = OrderedDict()
        """Least recently used first."""
        self.opening = 0
        self._ends: OrderedDict[str, str] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def find(self, session_id: str, tenant: str) -> Session:
        """The tenant's session. Raises SessionUnknown, SessionGone."""
        session = self.open.get(session_id)
        if session is not None and session.tenant == tenant:
            if reason := session.expiry(self._now()):
                self.end(session, "life" if "age" in reason else "idle", reason)
            else:
                return session
        if self.ids.ours(session_id, tenant):
            raise SessionGone(self._ends.get(session_id, "the session is gone; the service was started again since"))
        raise SessionUnknown("no such session")

    def of(self, tenant: str) -> list[Session]:
        """The tenant's sessions."""
        return [session for session in self.open.values() if session.tenant == tenant]

    async def create(self, tenant: str, memory_mb: int, idle_s: float, life_s: float) -> Session:
        """Open a session. Raises Overloaded (no room), NotReady (no slot could be started)."""
        self._make_room(tenant)
        self.opening += 1
        try:
            pooled = await self.pool.acquire(tenant, self.settings.queue_timeout_s)
            await self._open_in(pooled, memory_mb)
        finally:
            self.opening -= 1
        now = self._now()
        session = Session(self.ids.new(tenant), tenant, pooled, memory_mb, idle_s, life_s, now, now)
        self.open[session.id] = session
        return session

    async def take_turn(self, session: Session, timeout_s: float) -> None:
        """Wait until the session is free and occupy it. Raises Overloaded, QueueTimeout, SessionGone."""
        if session.waiting >= self.settings.session_turns_waiting:
            raise Overloaded(f"{session.waiting} turns of this session are waiting already", retry_after_s=0.5)
        session.waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await session.turn.acquire()
        except TimeoutError:
            raise QueueTimeout(f"the session was busy for {timeout_s:g} s; nothing was run") from None
        finally:
            session.waiting -= 1
        if session.lost:
            session.turn.release()
            raise SessionGone(session.lost)
        session.busy = True

    def end_turn(self, session: Session) -> None:
        """Free the session for its next turn."""
        session.busy = False
        session.used = self._now()
        session.turn.release()
        if session.id in self.open:
            self.open.move_to_end(session.id)

    async def reset(self, session: Session) -> None:
        """Replace the interpreter by a fresh one, killing a running turn. Raises SessionGone if that fails."""
        if session.busy:
            await self._kill_turn(session)
        await self.take_turn(session, self.settings.host_grace_s * 2)
        try:
            async with asyncio.timeout(self.settings.slot_start_timeout_s):
                await session.pooled.slot.close_session()
                if session.pooled.slot.dirty:
                    raise SlotError("the slot could not be reset")
                await session.pooled.slot.open_session(session.memory_mb)
            session.state = SessionState.RESET
        except (SlotError, OSError, EOFError, TimeoutError) as broken:
            log.warning("a session could not be reset: %s", broken or type(broken).__name__)
            reason = "the session could not be reset"
            self.end(session, "reset_failed", reason, broken="reset_failed")
            raise SessionGone(reason) from None
        finally:
            self.end_turn(session)

    def end(self, session: Session, kind: str, reason: str, *, broken: str = "") -> None:
        """End a session now; its slot is cleaned and given back in the background."""
        if session.lost:
            return
        session.lost = reason
        self.open.pop(session.id, None)
        self._ends[session.id] = reason
        while len(self._ends) > REMEMBERED_ENDS:
            self._ends.popitem(last=False)
        self.pool.metrics.sessions_lost.labels(kind).inc()
        task = asyncio.get_running_loop().create_task(self._close(session, broken))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def sweep(self) -> None:
        """End what is over by time."""
        now = self._now()
        for session in list(self.open.values()):
            if not session.busy and (reason := session.expiry(now)):
                self.end(session, "life" if "age" in reason else "idle", reason)

    async def stop(self) -> None:
        """End every session; bounded in time."""
        for session in list(self.open.values()):
            self.end(session, "shutdown", "the service was stopped", broken="shutdown")
        if self._closing:
            await asyncio.wait(self._closing, timeout=self.settings.host_grace_s * 2)

    def _make_room(self, tenant: str) -> None:
        if len(self.open) + self.opening < self.pool.maximum:
            return
        now = self._now()
        idle = [
            session
            for session in self.open.values()
            if not session.busy and not session.waiting and now - session.used >= self.settings.evict_idle_s
        ]
        # Least recently used first, and one's own before another tenant's.
        victim = next((session for session in idle if session.tenant == tenant), idle[0] if idle else None)
        if victim is None:
            raise Overloaded(
                f"all {self.pool.maximum} sessions are in use; close some, or try again later", retry_after_s=1.0
            )
        self.end(victim, "evicted", "the session was evicted to make room for another")

    async def _open_in(self, pooled: PooledSlot, memory_mb: int) -> None:
        try:
            async with asyncio.timeout(self.settings.slot_start_timeout_s):
                await pooled.slot.open_session(memory_mb)
        except (SlotError, OSError, EOFError, TimeoutError) as broken:
            log.warning("a session could not be opened: %s", broken or type(broken).__name__)
            self.pool.release(pooled, broken="open_failed")
            raise NotReady("the session could not be opened; try again", retry_after_s=0.5) from None
        except BaseException:
            self.pool.release(pooled, broken="abandoned")
            raise

    async def _kill_turn(self, session: Session) -> None:
        try:
            async with asyncio.timeout(self.settings.host_grace_s):
                await session.pooled.slot.cancel()
        except (SlotError, OSError, EOFError, TimeoutError) as broken:
            log.warning("a turn could not be cancelled: %s", broken or type(broken).__name__)

    async def _close(self, session: Session, broken: str) -> None:
        slot = session.pooled.slot
        try:
            if not broken and not slot.dirty:
                if session.busy:
                    await self._kill_turn(session)
                async with asyncio.timeout(2 * self.settings.host_grace_s):
                    async with session.turn:  # the killed turn ends first
                        await slot.close_session()
        except (SlotError, OSError, EOFError, TimeoutError) as failed:
            log.warning("a session's slot could not be cleaned: %s", failed or type(failed).__name__)
            broken = "close_failed"
        finally:
            self.pool.release(session.pooled, broken=broken)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def info(self, session: Session) -> SessionInfo:
        """The session as its owner sees it."""
        now = self._now()
        idle = 0.0 if session.busy else now - session.used
        return SessionInfo(
            session_id=session.id,
            state=session.state,
            busy=session.busy,
            turns=session.turns,
            age_s=now - session.opened,
            idle_s=idle,
            expires_in_s=max(0.0, min(session.idle_s - idle, session.life_s - (now - session.opened))),
            memory_mb=session.memory_mb,
            notes=session.notes,
        )
