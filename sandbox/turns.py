"""What can be done with sessions: open, run a turn, interrupt, reset, end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from sandbox.backends.base import SlotError
from sandbox.errors import SessionGone
from sandbox.idempotency import OnceOnly
from sandbox.schemas import ExecuteRequest, ExecuteResult, SessionInfo, SessionRequest, SessionState, Status
from sandbox.sessions import Session, SessionTable
from sandbox.slots import PooledSlot

if TYPE_CHECKING:
    from sandbox.service import Caller, SandboxService

SESSION_INFO_BYTES = 500


class SessionService:
    """Sessions over a service's admission. Callers see only their own tenant's sessions."""

    def __init__(self, service: SandboxService, table: SessionTable) -> None:
        self.service = service
        self.table = table
        settings = service.settings
        self._opened: OnceOnly[str] = OnceOnly(
            settings.idempotency_s, settings.idempotency_bytes, lambda _: SESSION_INFO_BYTES
        )
        service.metrics.sessions.set_function(lambda: len(table.open))

    async def stop(self) -> None:
        """End every session."""
        await self._opened.cancel()
        await self.table.stop()

    async def create(self, request: SessionRequest, caller: Caller) -> SessionInfo:
        """Open a session; a repeated request id gets the first one's. Raises Overloaded, NotReady, QueueTimeout."""
        self.service.admit()
        if request.request_id is None:
            return self.info(self.table.find(await self._create(request, caller), caller.tenant))
        session_id = await self._opened.run(
            (caller.tenant, request.request_id),
            hash(request.model_dump_json(exclude={"request_id"})),
            lambda: self._create(request, caller),
            abandoned=lambda: None,
            on_hit=self.service.metrics.idempotent_hits.inc,
        )
        return self.info(self.table.find(session_id, caller.tenant))

    async def _create(self, request: SessionRequest, caller: Caller) -> str:
        settings = self.service.settings
        notes = []
        memory = request.memory_mb
        if "memory_mb" not in request.model_fields_set:
            memory = settings.default_limits.memory_mb
        elif memory > settings.max_limits.memory_mb:
            memory = settings.max_limits.memory_mb
            notes.append(f"memory_mb: {request.memory_mb} is above the maximum; {memory} was used")
        times = {}
        for name in ("idle_s", "life_s"):
            asked, most = getattr(request, name), getattr(settings, f"session_{name}")
            times[name] = most if asked is None else min(asked, most)
            if asked is not None and asked > most:
                notes.append(f"{name}: {asked:g} is above the maximum; {most:g} was used")
        session = await self.table.create(caller.tenant, memory, times["idle_s"], times["life_s"])
        session.notes = notes
        return session.id

    async def execute(self, session_id: str, request: ExecuteRequest, caller: Caller) -> ExecuteResult:
        """Run one turn. Raises SessionUnknown, SessionGone and the refusals of admission."""
        self.service.admit()
        session = self.table.find(session_id, caller.tenant)
        ready, notes, digest = await self.service.inspect(request, session=True)
        if ready.limits.memory_mb != session.memory_mb:
            if "memory_mb" in request.limits.model_fields_set:
                notes.append(f"limits.memory_mb: a session keeps the {session.memory_mb} MiB it was opened with")
            limits = ready.limits.model_copy(update={"memory_mb": session.memory_mb})
            ready = ready.model_copy(update={"limits": limits})

        async def work() -> ExecuteResult:
            result = await self._turn(session, ready, caller)
            result.notes[:0] = notes
            return result

        def abandoned() -> None:
            if self.service.settings.session_disconnect == "interrupt" and session.busy:
                self.service.spawn(self._interrupt(session))

        name = request.request_id or secrets.token_hex(16)
        return await self.service.once.run(
            (caller.tenant, session_id, name),
            digest,
            work,
            abandoned=abandoned,
            on_hit=self.service.metrics.idempotent_hits.inc,
        )

    async def _turn(self, session: Session, request: ExecuteRequest, caller: Caller) -> ExecuteResult:
        service, loop = self.service, asyncio.get_running_loop()
        arrived = loop.time()
        most = service.settings.queue_timeout_s
        patience = min(request.queue_timeout_s or most, most)
        await self.table.take_turn(session, patience)
        try:
            await service.gate.enter(caller.tenant, caller.client, max(0.001, patience - (loop.time() - arrived)))
            started = loop.time()
            try:
                if session.lost:
                    raise SessionGone(session.lost)
                slot = session.pooled.slot
                lose = self._loser(session)
                result = await service.on_slot(session.pooled, slot.run_in_session(request), request.limits, lose)
                self._conclude(session, result)
            finally:
                service.gate.leave(loop.time() - started)
            return service.finish(result, request, started - arrived, loop.time() - started)
        finally:
            self.table.end_turn(session)

    def _loser(self, session: Session) -> Callable[[PooledSlot, str], None]:
        def done(_: PooledSlot, broken: str) -> None:
            if broken:
                self.table.end(session, broken, "the session's slot failed", broken=broken)

        return done

    def _conclude(self, session: Session, result: ExecuteResult) -> None:
        """Say what became of the state, and end the session if it is gone."""
        result.session_id = session.id
        result.new_session = session.turns == 0
        session.turns += 1
        if session.lost:
            result.state, result.retryable = SessionState.LOST, False
            if result.status == Status.SANDBOX_ERROR:
                result.notes.append("the turn may have had effects; the session is lost")
            return
        result.state = result.state or SessionState.KEPT
        if result.state == SessionState.LOST or session.pooled.slot.dirty:
            result.state = SessionState.LOST
            self.table.end(session, "died", "the session's process died in a turn", broken="dirty")
        session.state = result.state

    async def interrupt(self, session_id: str, caller: Caller) -> SessionInfo:
        """Interrupt the running turn as Ctrl-C would; nothing happens if none runs."""
        session = self.table.find(session_id, caller.tenant)
        if session.busy:
            await self._interrupt(session)
        return self.info(session)

    async def _interrupt(self, session: Session) -> None:
        try:
            async with asyncio.timeout(self.service.settings.host_grace_s):
                await session.pooled.slot.interrupt()
        except (SlotError, OSError, EOFError, TimeoutError) as failed:
            reason = "the session's slot did not take the interrupt"
            self.table.end(session, "interrupt_failed", reason, broken="interrupt_failed")
            raise SessionGone(f"{reason}: {failed or type(failed).__name__}") from None

    async def reset(self, session_id: str, caller: Caller) -> SessionInfo:
        """A fresh interpreter under the same id, a running turn killed."""
        self.service.admit()
        session = self.table.find(session_id, caller.tenant)
        await self.table.reset(session)
        return self.info(session)

    def end(self, session_id: str, caller: Caller) -> None:
        """End the session; its slot is cleaned in the background."""
        self.table.end(self.table.find(session_id, caller.tenant), "deleted", "the session was deleted")

    def list(self, caller: Caller) -> list[SessionInfo]:
        """The caller's open sessions, least recently used first."""
        return [self.info(session) for session in self.table.of(caller.tenant)]

    def info(self, session: Session) -> SessionInfo:
        """The session as its owner sees it."""
        info = self.table.info(session)
        if self.service.backend is not None:
            info.backend, info.tier = self.service.backend.name, self.service.tier
        return info
