"""The Python tool of an episode: programs go to the sandbox, outcomes come back, our failures are told apart."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from agent_rl.tir.settings import ToolSettings
from agent_rl.types import InfrastructureError, ToolOutcome, ToolStatus
from sandbox.client import SandboxClient, SandboxRejectedError, SandboxSession, SandboxUnavailableError
from sandbox.schemas import ExecuteRequest, ExecuteResult, Limits, SessionRequest

FINAL_ANSWER_PRELUDE = 'def final_answer(value):\n    print("\\\\boxed{" + str(value) + "}")\n'
"""Defines SimpleTIR's `final_answer` in the program's namespace; it is not part of the model's context."""

_OURS = frozenset({ToolStatus.SANDBOX_ERROR, ToolStatus.SESSION_LOST, ToolStatus.CANCELLED})


class PythonTool(Protocol):
    """Runs the programs of one episode, in order."""

    async def run(self, code: str, *, deadline: float) -> ToolOutcome:
        """Run one program.

        Args:
            deadline: seconds on the running loop's clock.

        Raises:
            InfrastructureError: the sandbox failed for reasons of its own, also after retries.
        """
        ...

    async def close(self) -> None:
        """Give back what the episode held; never raises."""
        ...


def outcome_from(result: ExecuteResult, retries: int) -> ToolOutcome:
    """The part of the sandbox's result that an episode keeps."""
    return ToolOutcome(
        status=ToolStatus(result.status.value),
        stdout=result.stdout,
        stderr=result.stderr,
        exit_code=result.exit_code,
        signal=result.signal,
        stdout_truncated=result.stdout_truncated,
        stderr_truncated=result.stderr_truncated,
        wall_ms=result.wall_ms,
        cpu_ms=result.cpu_ms,
        queue_ms=result.queue_ms,
        state=None if result.state is None else result.state.value,
        tier=result.tier,
        retries=retries,
    )


class SandboxTool:
    """A `PythonTool` over a sandbox client; stateless, or one session for the whole episode.

    A stateless program that met a failing sandbox is sent again, after a growing pause. A session that is
    lost cannot be: its variables are gone, and an episode that went on would be one that no sandbox played.
    """

    def __init__(self, client: SandboxClient, settings: ToolSettings, *, seed: int | None = None):
        self._client = client
        self._settings = settings
        self._seed = seed
        self._session: SandboxSession | None = None

    def _request(self, code: str) -> ExecuteRequest:
        return ExecuteRequest(
            code=code,
            prelude=FINAL_ANSWER_PRELUDE if self._settings.final_answer else "",
            limits=Limits(wall_s=self._settings.wall_s, cpu_s=self._settings.cpu_s, memory_mb=self._settings.memory_mb),
            seed=self._seed,
        )

    async def run(self, code: str, *, deadline: float) -> ToolOutcome:
        loop = asyncio.get_running_loop()
        for attempt in range(self._settings.retries + 1):
            try:
                async with asyncio.timeout_at(deadline):
                    result = await self._send(code, deadline - loop.time())
            except SandboxRejectedError as error:
                raise InfrastructureError("sandbox", str(error), retryable=False) from error
            except SandboxUnavailableError as error:
                failure = str(error)
            else:
                outcome = outcome_from(result, attempt)
                if outcome.status not in _OURS:
                    return outcome
                failure = "; ".join(result.notes) or outcome.status.value
            if self._settings.session:
                break
            await asyncio.sleep(min(0.1 * 2**attempt, 5.0, max(deadline - loop.time(), 0.0)))
        raise InfrastructureError("sandbox", failure)

    async def _send(self, code: str, seconds: float) -> ExecuteResult:
        if not self._settings.session:
            return await self._client.execute(self._request(code), deadline=seconds)
        if self._session is None:
            request = SessionRequest(memory_mb=self._settings.memory_mb)
            self._session = await self._client.session(request, deadline=seconds)
        return await self._session.execute(self._request(code), deadline=seconds)

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            with contextlib.suppress(SandboxUnavailableError):  # the service forgets idle sessions by itself
                await session.close()
