"""Asynchronous client: connection reuse, back-pressure waited out, retries that never run anything twice.

Every request carries a `request_id`, so a repeat after a broken connection joins the first run or gets its
stored result. A 429 is back-pressure: it is waited out within the caller's deadline and not counted as a
failure. Outcomes of programs are results; only an unreachable or overloaded service raises.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from types import TracebackType
from typing import Self

import aiohttp
from pydantic import ValidationError

from sandbox.schemas import (
    BatchAnswer,
    BatchItem,
    BatchRequest,
    ErrorAnswer,
    ErrorBody,
    ExecuteRequest,
    ExecuteResult,
    Readiness,
    SessionInfo,
    SessionList,
    SessionRequest,
    SessionState,
    Status,
)

CONNECTION_FAILURES = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError)
FIRST_BACKOFF_S = 0.05
DEFAULT_SLACK_S = 60.0
"""Beyond the wall limit, time for queueing, retries and a restart when the caller names no deadline."""


class SandboxClientError(Exception):
    """Base of what the client raises."""

    retryable = False


class SandboxUnavailableError(SandboxClientError):
    """The service could not be reached, stayed overloaded, or did not answer before the deadline."""

    retryable = True


class SandboxRejectedError(SandboxClientError):
    """The service refused the request: bad fields, wrong token, too large. Trying again cannot help."""

    def __init__(self, status: int, error: ErrorBody) -> None:
        super().__init__(f"HTTP {status} {error.code}: {error.message}")
        self.status = status
        self.error = error


class _Gone(Exception):
    """HTTP 410."""

    def __init__(self, error: ErrorBody) -> None:
        super().__init__(error.message)
        self.error = error


class SandboxClient:
    """A client of one service, for one event loop at a time.

    Args:
        url: `http://host:port` of the service.
        token: bearer token, where the service asks for one.
        max_in_flight: requests at a time; more wait here, within their deadlines, instead of in the service.
        attempts: tries of a request whose connection broke or whose service was not ready.
        retry_sandbox_errors: repeats of a stateless run whose sandbox failed.
        client_id: names this client to the service's fair queue.
        why_down: says why the service is gone for good, if its owner knows; such calls fail at once.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        max_in_flight: int = 32,
        attempts: int = 4,
        retry_sandbox_errors: int = 1,
        client_id: str | None = None,
        why_down: Callable[[], str | None] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.max_in_flight = max_in_flight
        self.attempts = attempts
        self.retry_sandbox_errors = retry_sandbox_errors
        self._headers = {"content-type": "application/json", "x-client-id": client_id or secrets.token_hex(4)}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._why_down = why_down or (lambda: None)
        self._http: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Semaphore(max_in_flight)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None and self._loop is asyncio.get_running_loop():
            await self._http.close()
        self._http = self._loop = None

    async def execute(self, request: ExecuteRequest | str, *, deadline: float | None = None) -> ExecuteResult:
        """Run one program in a fresh interpreter.

        Args:
            request: the request, or just the source.
            deadline: seconds from now within which the answer must be here, queueing and retries included.

        Raises:
            SandboxUnavailableError: no answer from the service in time (retryable, the program is not to blame).
            SandboxRejectedError: the request itself is at fault.
        """
        named = _named(request)
        until = self._until(deadline, named.limits.wall_s)
        for left in range(self.retry_sandbox_errors, -1, -1):
            result = await self._run("/v1/execute", named, until)
            if left == 0 or not (result.status == Status.SANDBOX_ERROR and result.retryable):
                break
        return result

    async def execute_batch(
        self, requests: list[ExecuteRequest | str], *, deadline: float | None = None
    ) -> list[BatchItem]:
        """Run several programs by one request; outcomes in their order, each by itself."""
        batch = BatchRequest(requests=[_named(request) for request in requests])
        until = self._until(deadline, sum(request.limits.wall_s for request in batch.requests))
        body = batch.model_dump_json(exclude_unset=True).encode()
        return BatchAnswer.model_validate_json(await self._ask("POST", "/v1/execute/batch", body, until)).items

    async def session(self, request: SessionRequest | None = None, *, deadline: float | None = None) -> SandboxSession:
        """Open a session; use it as `async with await client.session() as session`."""
        asked = request or SessionRequest()
        if asked.request_id is None:
            asked = asked.model_copy(update={"request_id": secrets.token_hex(16)})
        body = asked.model_dump_json(exclude_unset=True).encode()
        answer = await self._ask("POST", "/v1/sessions", body, self._until(deadline, 0.0))
        return SandboxSession(self, SessionInfo.model_validate_json(answer))

    async def sessions(self, *, deadline: float | None = None) -> list[SessionInfo]:
        """This token's open sessions."""
        answer = await self._ask("GET", "/v1/sessions", None, self._until(deadline, 0.0))
        return SessionList.model_validate_json(answer).sessions

    async def ready(self, *, deadline: float = 10.0) -> Readiness:
        """State of the service: isolation tier, slots, queue. Also answers while it is not ready."""
        try:
            async with asyncio.timeout(deadline):
                async with self._connection().get(f"{self.url}/readyz", headers=self._headers) as answer:
                    return Readiness.model_validate_json(await answer.read())
        except (*CONNECTION_FAILURES, TimeoutError) as failure:
            raise SandboxUnavailableError(self._down(f"no answer from {self.url}: {failure!r}")) from failure

    async def _run(self, path: str, request: ExecuteRequest, until: float) -> ExecuteResult:
        body = request.model_dump_json(exclude_unset=True).encode()
        return ExecuteResult.model_validate_json(await self._ask("POST", path, body, until))

    async def _ask(self, method: str, path: str, body: bytes | None, until: float) -> bytes:
        """One request, repeated as far as that is safe and the deadline allows. Raises also _Gone."""
        loop = asyncio.get_running_loop()
        http = self._connection()
        last = "not sent"
        failures = 0
        try:
            async with asyncio.timeout_at(until), self._turn:
                while True:
                    if (reason := self._why_down()) is not None:
                        raise SandboxUnavailableError(reason)
                    try:
                        async with http.request(method, self.url + path, data=body, headers=self._headers) as answer:
                            content, status = await answer.read(), answer.status
                    except CONNECTION_FAILURES as failure:
                        last, pause = f"{type(failure).__name__}: {failure}", 0.0
                    else:
                        if status < 300:
                            return content
                        error = _error(status, content)
                        if status == 410:
                            raise _Gone(error)
                        if status not in (429, 500, 502, 503, 504):
                            raise SandboxRejectedError(status, error)
                        last, pause = f"HTTP {status} {error.code}: {error.message}", error.retry_after_s or 0.0
                        if status in (429, 503):
                            failures -= 1  # back-pressure or a restart: waited out, not a failure
                    failures += 1
                    if failures >= self.attempts:
                        raise SandboxUnavailableError(self._down(f"{self.attempts} tries failed; the last: {last}"))
                    pause = max(pause, FIRST_BACKOFF_S * 2**failures) * random.uniform(0.75, 1.25)
                    if loop.time() + pause >= until:
                        raise SandboxUnavailableError(
                            self._down(f"the deadline leaves no time for another try; {last}")
                        )
                    await asyncio.sleep(pause)
        except TimeoutError:
            raise SandboxUnavailableError(self._down(f"no answer before the deadline; last: {last}")) from None

    def _down(self, text: str) -> str:
        return self._why_down() or f"sandbox service {self.url}: {text}"

    def _until(self, deadline: float | None, wall_s: float) -> float:
        seconds = wall_s + DEFAULT_SLACK_S if deadline is None else deadline
        return asyncio.get_running_loop().time() + seconds

    def _connection(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("this SandboxClient is in use on another event loop; make one client a loop")
            self._turn = asyncio.Semaphore(self.max_in_flight)
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
            )
            self._loop = loop
        return self._http


class SandboxSession:
    """A session: an interpreter that remembers, as a notebook does, until it is closed or lost."""

    def __init__(self, client: SandboxClient, info: SessionInfo) -> None:
        self.client = client
        self.info = info

    @property
    def id(self) -> str:
        """The session's id; whoever has it and the token may use the session."""
        return self.info.session_id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def execute(self, request: ExecuteRequest | str, *, deadline: float | None = None) -> ExecuteResult:
        """Run one turn. A lost session is a result (`session_lost`), for the caller must know; see also `state`."""
        named = _named(request)
        try:
            return await self.client._run(
                f"/v1/sessions/{self.id}/execute", named, self.client._until(deadline, named.limits.wall_s)
            )
        except _Gone as gone:
            return ExecuteResult(
                status=Status.SESSION_LOST,
                state=SessionState.LOST,
                session_id=self.id,
                request_id=named.request_id,
                notes=[gone.error.message],
            )

    async def interrupt(self, *, deadline: float = 10.0) -> None:
        """Interrupt the running turn as Ctrl-C would. A lost session has nothing to interrupt."""
        await self._post("interrupt", deadline)

    async def reset(self, *, deadline: float = 30.0) -> bool:
        """Start again with a fresh interpreter; False if the session is lost."""
        return await self._post("reset", deadline)

    async def close(self, *, deadline: float = 10.0) -> None:
        """End the session; closing a lost one is no error."""
        try:
            await self.client._ask("DELETE", f"/v1/sessions/{self.id}", None, self.client._until(deadline, 0.0))
        except _Gone:
            return

    async def _post(self, verb: str, deadline: float) -> bool:
        try:
            await self.client._ask("POST", f"/v1/sessions/{self.id}/{verb}", b"", self.client._until(deadline, 0.0))
        except _Gone:
            return False
        return True


def _named(request: ExecuteRequest | str) -> ExecuteRequest:
    """The request with an id, so that a repeat is recognised."""
    if isinstance(request, str):
        return ExecuteRequest(code=request, request_id=secrets.token_hex(16))
    if request.request_id is None:
        return request.model_copy(update={"request_id": secrets.token_hex(16)})
    return request


def _error(status: int, content: bytes) -> ErrorBody:
    try:
        return ErrorAnswer.model_validate_json(content).error
    except ValidationError:
        return ErrorBody(code=f"http_{status}", message=content[:200].decode(errors="replace"))
