"""Synchronous client: the asynchronous one on a loop of its own in a thread, safe to share between threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from sandbox.client import SandboxClient, SandboxSession
from sandbox.schemas import BatchItem, ExecuteRequest, ExecuteResult, Readiness, SessionInfo, SessionRequest

Answer = TypeVar("Answer")


class SyncSandboxClient:
    """As :class:`sandbox.client.SandboxClient`, with the same arguments, for code without an event loop."""

    def __init__(self, url: str, token: str | None = None, **options: Any) -> None:
        self._client = SandboxClient(url, token, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; idempotent."""
        if self._loop.is_closed():
            return
        self._wait(self._client.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()

    def execute(self, request: ExecuteRequest | str, *, deadline: float | None = None) -> ExecuteResult:
        """Run one program; see :meth:`SandboxClient.execute`."""
        return self._wait(lambda: self._client.execute(request, deadline=deadline))

    def execute_batch(self, requests: list[ExecuteRequest | str], *, deadline: float | None = None) -> list[BatchItem]:
        """Run several programs by one request."""
        return self._wait(lambda: self._client.execute_batch(requests, deadline=deadline))

    def session(self, request: SessionRequest | None = None, *, deadline: float | None = None) -> SyncSandboxSession:
        """Open a session; use it as `with client.session() as session`."""
        return SyncSandboxSession(self, self._wait(lambda: self._client.session(request, deadline=deadline)))

    def sessions(self) -> list[SessionInfo]:
        """This token's open sessions."""
        return self._wait(self._client.sessions)

    def ready(self) -> Readiness:
        """State of the service."""
        return self._wait(self._client.ready)

    def _wait(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result()  # every call has a deadline of its own inside
        except BaseException:
            future.cancel()
            raise


class SyncSandboxSession:
    """As :class:`sandbox.client.SandboxSession`."""

    def __init__(self, client: SyncSandboxClient, session: SandboxSession) -> None:
        self._client = client
        self._session = session

    @property
    def id(self) -> str:
        """The session's id."""
        return self._session.id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def execute(self, request: ExecuteRequest | str, *, deadline: float | None = None) -> ExecuteResult:
        """Run one turn."""
        return self._client._wait(lambda: self._session.execute(request, deadline=deadline))

    def interrupt(self) -> None:
        """Interrupt the running turn."""
        self._client._wait(self._session.interrupt)

    def reset(self) -> bool:
        """Start again with a fresh interpreter; False if the session is lost."""
        return self._client._wait(self._session.reset)

    def close(self) -> None:
        """End the session."""
        self._client._wait(self._session.close)
