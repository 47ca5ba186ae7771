"""A slot as the host sees it: a process that speaks frames, whatever boundary it is in."""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
import json
import os
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sandbox.backends.base import SlotError, Tier
from sandbox.schemas import ErrorInfo, ExecuteRequest, ExecuteResult, Limits, SessionState, Status

FRAME = struct.Struct("!II")
GRACE_S = 20.0
"""Beyond a run's limit, for set-up, kill and reset; a slot silent for longer is lost."""
STOP_S = 3.0


class SupervisedSlot:
    """`Slot` over the supervisor's frames. See `sandbox.backends.base.Slot`."""

    def __init__(
        self, process: asyncio.subprocess.Process, backend: str, tier: Tier, release: Callable[[], Awaitable[None]]
    ) -> None:
        self.runs = 0
        self.dirty = False
        self.backend, self.tier = backend, tier
        self.ready: dict[str, Any] = {}
        self._process, self._release = process, release
        self._session: Limits | None = None
        self._checkpoint = False
        self._busy = False
        self._destroyed = False
        self._complaints = bytearray()
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        backend: str,
        tier: Tier,
        release: Callable[[], Awaitable[None]],
        descriptors: Sequence[int] = (),
        start_s: float = 60.0,
    ) -> SupervisedSlot:
        """Start `command` (a supervisor, inside its boundary) and wait until it is warm. Raises SlotError."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                cwd="/",
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError as error:
            await release()
            raise SlotError(f"{backend}: cannot start {command[0]}: {error}") from error
        slot = cls(process, backend, tier, release)
        await slot.warm(start_s)
        return slot

    async def warm(self, start_s: float) -> None:
        """Wait until the supervisor says that it is ready; the slot is destroyed if it is not. Raises SlotError."""
        try:
            header, _ = await asyncio.wait_for(self._receive(), start_s)
            self.ready = header["ready"]
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError, KeyError) as error:
            await self.destroy()
            said = self.complaints().strip().splitlines() or [type(error).__name__]
            raise SlotError(f"{self.backend}: the slot did not start: {said[-1]}") from error
        except BaseException:
            await self.destroy()
            raise

    @property
    def pid(self) -> int:
        """Process id, on the host, of the boundary's first process."""
        return self._process.pid

    def facts(self) -> dict[str, Any]:
        """What the warm interpreter is: Python and package versions, memory, packages that failed to import."""
        ready = self.ready
        return {
            "python": ready["python"],
            "packages": " ".join(f"{name} {version}" for name, version in ready["versions"].items()),
            "not_imported": "; ".join(f"{name}: {why}" for name, why in ready["failures"].items()),
            "warm_mb": ready["memory"]["VmRSS"] >> 20,
            "tier": self.tier.name,
        }

    def complaints(self) -> str:
        """The end of what the boundary wrote to its stderr."""
        return self._complaints.decode(errors="replace").strip()

    async def run(self, request: ExecuteRequest) -> ExecuteResult:
        return await self._execute("run", request)

    async def open_session(
        self, limits_memory_mb: int, *, limits: Limits | None = None, checkpoint: bool = True
    ) -> None:
        self._session = (limits or Limits()).model_copy(update={"memory_mb": limits_memory_mb})
        self._checkpoint = checkpoint
        await self._ask({"do": "open", "limits": self._session.model_dump()}, b"", GRACE_S)

    async def run_in_session(self, request: ExecuteRequest) -> ExecuteResult:
        if self._session is None:
            raise RuntimeError("no session is open in this slot")
        return await self._execute("turn", request)

    async def close_session(self) -> None:
        if self._session is None:
            return
        self._session = None
        answer, _ = await self._ask({"do": "close"}, b"", GRACE_S)
        self.dirty |= answer["dirty"]

    async def interrupt(self) -> None:
        await self._interject("interrupt")

    async def cancel(self) -> None:
        await self._interject("cancel")

    async def destroy(self) -> None:
        self.dirty = True
        if self._destroyed:
            return
        self._destroyed = True
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()  # the supervisor takes everything with it
            try:
                await asyncio.wait_for(self._process.wait(), STOP_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), STOP_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._listener), 0.5)
        finally:
            self._listener.cancel()
            await self._release()

    # --- frames ---

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(4096):
            self._complaints += piece
            del self._complaints[:-8192]

    async def _receive(self) -> tuple[dict[str, Any], bytes]:
        assert self._process.stdout is not None
        head, body = FRAME.unpack(await self._process.stdout.readexactly(FRAME.size))
        raw = await self._process.stdout.readexactly(head + body)
        return json.loads(raw[:head]), raw[head:]

    async def _send(self, header: dict[str, Any], body: bytes = b"") -> None:
        assert self._process.stdin is not None
        raw = json.dumps(header).encode()
        self._process.stdin.write(b"".join((FRAME.pack(len(raw), len(body)), raw, body)))
        await self._process.stdin.drain()

    async def _interject(self, what: str) -> None:
        if self._busy:
            with contextlib.suppress(ConnectionError):
                await self._send({"do": what})

    async def _ask(self, header: dict[str, Any], body: bytes, limit_s: float) -> tuple[dict[str, Any], bytes]:
        """One order and its answer. A slot that fails or stays silent is dirty: SlotError."""
        if self.dirty:
            raise SlotError(f"{self.backend}: the slot is spent")
        if self._busy:
            raise RuntimeError("a slot runs one program at a time")
        self._busy = True

        async def exchange() -> tuple[dict[str, Any], bytes]:
            await self._send(header, body)
            return await self._receive()

        task = asyncio.create_task(exchange())
        try:
            return await asyncio.wait_for(asyncio.shield(task), limit_s)
        except asyncio.CancelledError:
            # the caller left: the program is killed, and the slot stays in step with its supervisor
            await self._interject("cancel")
            done, _ = await asyncio.wait([task], timeout=STOP_S + 6)
            self.dirty |= not done or task.exception() is not None
            raise
        except TimeoutError:
            self.dirty = True
            raise SlotError(f"{self.backend}: no answer within {limit_s:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            self.dirty = True
            await asyncio.sleep(0)
            raise SlotError(f"{self.backend}: the slot ended: {self.complaints() or type(error).__name__}") from error
        finally:
            if not task.done():
                task.cancel()
            self._busy = False

    # --- results ---

    async def _execute(self, order: str, request: ExecuteRequest) -> ExecuteResult:
        limits = request.limits.model_dump()
        if self._session is not None:  # what was fixed when it was opened
            limits |= self._session.model_dump(include={"memory_mb", "processes", "disk_mb", "inodes"})
        header = {"do": order, "limits": limits, "fetch": request.fetch_files, "checkpoint": self._checkpoint}
        body = {
            "code": request.code, "stdin": request.stdin, "prelude": request.prelude, "files": request.files,
            "seed": request.seed, "show_result": request.show_result,
        }  # fmt: skip
        self.runs += 1
        answer, raw = await self._ask(header, json.dumps(body).encode(), request.limits.wall_s + GRACE_S)
        if answer.get("lost"):
            self._session = None
            return ExecuteResult(
                status=Status.SESSION_LOST,
                state=SessionState.LOST,
                request_id=request.request_id,
                notes=["the session's process died between turns"],
                backend=self.backend,
                tier=self.tier.name,
            )
        self.dirty |= answer["dirty"]
        return self._result(request, answer, raw)

    def _result(self, request: ExecuteRequest, answer: dict[str, Any], raw: bytes) -> ExecuteResult:
        parts: list[bytes] = []
        position = 0
        for size in [*answer["sizes"], *(size for _, size in answer["files"])]:
            parts.append(raw[position : position + size])
            position += size
        out_total, err_total = answer["totals"]
        outcome = answer["outcome"]
        status = Status(answer["status"])
        error = outcome.get("error") if status in (Status.ERROR, Status.SYNTAX_ERROR, Status.TIMEOUT) else None
        return ExecuteResult(
            status=status,
            exit_code=answer["exit_code"],
            signal=answer["signal"],
            stdout=joined(parts[0], parts[1], out_total),
            stderr=joined(parts[2], parts[3], err_total),
            stdout_truncated=len(parts[0]) + len(parts[1]) < out_total,
            stderr_truncated=len(parts[2]) + len(parts[3]) < err_total,
            stdout_bytes=out_total,
            stderr_bytes=err_total,
            result=text_or_none(outcome.get("result")) if status is Status.OK else None,
            error=error_info(error),
            wall_ms=answer["wall_ms"],
            cpu_ms=answer["cpu_ms"],
            max_rss_mb=answer["max_rss_mb"],
            state=SessionState(answer["state"]) if answer.get("state") else None,
            workdir_reset=outcome.get("workdir_reset") is True,
            threads_alive=int(answer.get("threads_alive") or 0),
            files={
                name: base64.b64encode(part).decode()
                for (name, _), part in zip(answer["files"], parts[4:], strict=True)
            },
            file_errors=answer["file_errors"],
            notes=answer["notes"],
            retryable=status is Status.SANDBOX_ERROR,
            request_id=request.request_id,
            backend=self.backend,
            tier=self.tier.name,
        )


def joined(head: bytes, tail: bytes, total: int) -> str:
    """Text of a stream: head and tail cut on character boundaries, and how much is missing between them."""
    if not tail:
        return head.decode("utf-8", "replace")
    start = codecs.getincrementaldecoder("utf-8")("replace").decode(head, final=False)
    # bytes that continue a character whose beginning was dropped; no character has more than three
    skip = next((i for i, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), len(tail) if len(tail) < 4 else 0)
    missing = total - len(head) - len(tail)
    return f"{start}\n[... {missing} bytes omitted ...]\n{tail[skip:].decode('utf-8', 'replace')}"


def text_or_none(value: Any) -> str | None:
    """The program's own report may hold anything: only text passes, surrogates replaced."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else None


def error_info(error: Any) -> ErrorInfo | None:
    """The exception as the program's process described it; None if it described nothing usable."""
    if not isinstance(error, dict):
        return None
    fields = {name: text_or_none(error.get(name)) for name in ("type", "message", "traceback")}
    if any(value is None for value in fields.values()):
        return None
    return ErrorInfo(**fields)


async def no_release() -> None:
    """Nothing to give back."""


def unique_name() -> str:
    """A name for a slot's folder or control group."""
    return f"slot-{os.getpid()}-{time.monotonic_ns():x}"
