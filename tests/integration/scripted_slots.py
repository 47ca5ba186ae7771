"""A backend whose slots fail on command, for faults that a real slot cannot be made to have on cue.

A program is a script of words: `say TEXT`, `sleep SECONDS`, `hang` (never answers, not even to cancel), `die`
(the slot breaks), `bug` (the backend raises what it may not).
"""

from __future__ import annotations

import asyncio

from sandbox.backends.base import Probe, SlotError, Tier
from sandbox.schemas import ExecuteRequest, ExecuteResult, SessionState, Status


class ScriptedSlot:
    def __init__(self, backend: ScriptedBackend) -> None:
        self.backend = backend
        self.runs = 0
        self.dirty = False
        self.destroyed = False
        self.in_session = False
        self.memory: list[str] = []
        self._ended = asyncio.Event()
        self._interrupted = asyncio.Event()
        self.busy = False

    async def run(self, request: ExecuteRequest) -> ExecuteResult:
        assert not self.busy, "two programs at once in one slot"
        assert not self.destroyed, "a destroyed slot was used"
        self.busy = True
        self.runs += 1
        self.backend.running += 1
        self.backend.most_running = max(self.backend.most_running, self.backend.running)
        self.backend.programs.append(request.code)
        self._ended.clear()
        self._interrupted.clear()
        said: list[str] = []
        try:
            for line in request.code.split("\n"):
                word, _, rest = line.partition(" ")
                if word == "say":
                    said.append(rest)
                elif word == "sleep":
                    status = await self._sleep(float(rest))
                    if status is not None:
                        return ExecuteResult(status=status, stdout="\n".join(said), state=self._state())
                elif word == "hang":
                    await asyncio.sleep(3600)
                elif word == "die":
                    self.dirty = True
                    raise SlotError("told to die")
                elif word == "bug":
                    raise ZeroDivisionError("a secret of the service")
                elif word == "keep":
                    self.memory.append(rest)
                elif word == "recall":
                    said.extend(self.memory)
        finally:
            self.busy = False
            self.backend.running -= 1
        return ExecuteResult(
            status=Status.OK, exit_code=0, stdout="\n".join(said), wall_ms=1.0, cpu_ms=1.0, state=self._state()
        )

    def _state(self) -> SessionState | None:
        return SessionState.KEPT if self.in_session else None

    async def _sleep(self, seconds: float) -> Status | None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._ended, self._interrupted)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._ended.is_set():
            return Status.CANCELLED
        return Status.ERROR if self._interrupted.is_set() else None

    async def open_session(self, limits_memory_mb: int) -> None:
        assert not self.in_session
        self.in_session = True
        self.memory = []

    async def run_in_session(self, request: ExecuteRequest) -> ExecuteResult:
        assert self.in_session
        return await self.run(request)

    async def interrupt(self) -> None:
        self._interrupted.set()

    async def cancel(self) -> None:
        self._ended.set()
        self.backend.cancels += 1

    async def close_session(self) -> None:
        assert self.in_session
        self.in_session = False

    async def destroy(self) -> None:
        if not self.destroyed:
            self.destroyed = True
            self.backend.alive -= 1


class ScriptedBackend:
    """Makes scripted slots; `fail_starts` of the next starts fail."""

    name = "scripted"

    def __init__(self) -> None:
        self.alive = 0
        self.starts = 0
        self.fail_starts = 0
        self.start_times: list[float] = []
        self.programs: list[str] = []
        self.running = 0
        self.most_running = 0
        self.cancels = 0
        self.slots: list[ScriptedSlot] = []

    async def probe(self) -> Probe:
        return Probe(self.name, Tier.T0, {"scripted": True})

    async def start_slot(self) -> ScriptedSlot:
        self.start_times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.005)
        if self.fail_starts > 0:
            self.fail_starts -= 1
            raise SlotError("told not to start")
        self.starts += 1
        self.alive += 1
        slot = ScriptedSlot(self)
        self.slots.append(slot)
        return slot
