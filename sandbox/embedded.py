"""The service as a child of this process: started with it, restarted when it dies, gone when it goes.

The child gets its settings and a random token through a pipe (never through arguments or environment), shares
a listening socket that this process made, so that its address survives restarts, and ends when the pipe
closes, which the kernel does even for an owner that was killed. It runs in a session of its own: Ctrl-C in
the terminal reaches the owner alone.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import SecretStr

from sandbox.client import SandboxClient, SandboxUnavailableError
from sandbox.settings import EmbeddedSettings, new_token
from sandbox.sync_client import SyncSandboxClient

log = logging.getLogger("sandbox")

PASSED_ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "XDG_RUNTIME_DIR",
    "PYTHONHOME",
    "DOCKER_HOST",
)
"""All that the service sees of our environment: nothing secret is there to leak."""
FIRST_BACKOFF_S = 0.2


class EmbeddedSandbox:
    """Owns a sandbox service.

    `async with EmbeddedSandbox() as client` gives a :class:`SandboxClient`, `with` a :class:`SyncSandboxClient`.
    Several clients, in several processes, may use `url` and `token`.
    """

    def __init__(self, settings: EmbeddedSettings | None = None, **client_options: Any) -> None:
        self.settings = settings or EmbeddedSettings()
        self.token = new_token()
        self.url = ""
        self.tier = ""
        self.backend = ""
        self.slots = 0
        self.queue = 0
        self.restarts = 0
        self._client_options = client_options
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._failed: str | None = "the embedded sandbox has not been started"
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._lock = threading.Lock()
        self._client: SandboxClient | SyncSandboxClient | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the service, while it lives."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> EmbeddedSandbox:
        """Start the service and wait until it is ready. Raises SandboxUnavailableError with the reason."""
        self._launch()
        self._await_first()
        return self

    async def start_async(self) -> EmbeddedSandbox:
        """As :meth:`start`, without blocking the loop for the length of the start."""
        self._launch()
        try:
            await asyncio.to_thread(self._await_first)
        except asyncio.CancelledError:
            await asyncio.to_thread(self.stop)
            raise
        return self

    def stop(self) -> None:
        """End the service and wait until it is gone; idempotent, bounded in time."""
        atexit.unregister(self.stop)
        self._stopping.set()
        self._failed = self._failed or "the embedded sandbox was stopped"
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            self._end(process)
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(timeout=self.settings.stop_timeout_s)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def client(self, **options: Any) -> SandboxClient:
        """A new asynchronous client of this service."""
        return SandboxClient(self.url, self.token, **self._options(options))

    def sync_client(self, **options: Any) -> SyncSandboxClient:
        """A new synchronous client of this service."""
        return SyncSandboxClient(self.url, self.token, **self._options(options))

    async def __aenter__(self) -> SandboxClient:
        await self.start_async()
        self._client = self.client()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self._client, SandboxClient):
            await self._client.close()
        await asyncio.to_thread(self.stop)

    def __enter__(self) -> SyncSandboxClient:
        self.start()
        self._client = self.sync_client()
        return self._client

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self._client, SyncSandboxClient):
            self._client.close()
        self.stop()

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        # Enough in flight to keep every slot busy, and never so much that the queue answers 429.
        in_flight = {"max_in_flight": max(2, min(2 * self.slots + 2, self.slots + self.queue))}
        return {**in_flight, **self._client_options, **options, "why_down": lambda: self._failed}

    def _launch(self) -> None:
        if self._socket is not None:
            raise RuntimeError("this embedded sandbox was started already")
        self._stopping.clear()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        atexit.register(self.stop)
        self._spawn()

    def _spawn(self) -> None:
        """Start the child and send it its settings."""
        assert self._socket is not None
        listen_fd = self._socket.fileno()
        command = [sys.executable, "-P", "-m", "sandbox", "serve-owned", "--listen-fd", str(listen_fd)]
        if threading.current_thread() is threading.main_thread():
            command.append("--die-with-thread")
        environment = {name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ}
        environment["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(listen_fd,),
            start_new_session=True,
            env=environment,
        )
        with self._lock:
            self._process = process
        service = self.settings.service.model_dump(mode="json", exclude_unset=True, exclude={"tokens", "host", "port"})
        service["tokens"] = [self.token, *(_plain(token) for token in self.settings.service.tokens)]
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a child that died at once is reported by its exit status
            process.stdin.write(json.dumps(service).encode() + b"\n")
            process.stdin.flush()

    def _await_first(self) -> None:
        try:
            process = self._process
            assert process is not None
            self._await_ready(process)
        except SandboxUnavailableError as failure:
            self._failed = str(failure)
            self.stop()
            raise
        self._failed = None
        log.info("sandbox: isolation %s, tier %s, %d slots at %s", self.backend, self.tier, self.slots, self.url)
        self._watcher = threading.Thread(target=self._watch, name="sandbox-owner", daemon=True)
        self._watcher.start()

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Read the child's one line. Raises SandboxUnavailableError."""
        assert process.stdout is not None
        deadline = time.monotonic() + self.settings.start_timeout_s
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if self._stopping.is_set():
                raise SandboxUnavailableError("the embedded sandbox was stopped")
            if left <= 0:
                raise SandboxUnavailableError(
                    f"the sandbox service was not ready after {self.settings.start_timeout_s:g} s"
                )
            if not select.select([process.stdout], [], [], min(left, 0.2))[0]:
                continue
            part = os.read(process.stdout.fileno(), 65536)
            if not part:
                status = process.wait(timeout=self.settings.stop_timeout_s)
                raise SandboxUnavailableError(f"the sandbox service ended during its start (exit status {status})")
            line += part
        message = json.loads(line)
        if "error" in message:
            raise SandboxUnavailableError(f"the sandbox did not start: {message['error']}")
        self.backend, self.tier = message["backend"], message["tier"]
        self.slots, self.queue = message["slots"], message["queue"]

    def _watch(self) -> None:
        """Restart the service when it dies, with back-off, a bounded number of times."""
        deaths: deque[float] = deque()
        while True:
            process = self._process
            if process is None or self._stopping.is_set():
                return
            status = process.wait()
            if self._stopping.is_set():
                return
            now = time.monotonic()
            deaths.append(now)
            while deaths and now - deaths[0] > self.settings.restart_window_s:
                deaths.popleft()
            if len(deaths) > self.settings.restarts:
                self._give_up(f"the sandbox service died {len(deaths)} times (exit status {status}); not started again")
                return
            pause = min(5.0, FIRST_BACKOFF_S * 2 ** (len(deaths) - 1))
            log.error("the sandbox service died (exit status %d); starting it again in %.1f s", status, pause)
            if self._stopping.wait(pause):
                return
            self._restart()

    def _restart(self) -> None:
        try:
            self._spawn()
            process = self._process
            if process is not None:
                self._await_ready(process)
                self.restarts += 1
                log.warning("the sandbox service is back (isolation %s, tier %s)", self.backend, self.tier)
        except (SandboxUnavailableError, OSError) as failure:
            log.error("restart failed: %s", failure)
            process = self._process
            if process is not None:
                self._end(process)  # counted as one more death by the watcher

    def _give_up(self, reason: str) -> None:
        log.critical("%s", reason)
        self._failed = reason
        if self._socket is not None:
            self._socket.close()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Close the child's input, wait, then kill."""
        with contextlib.suppress(BrokenPipeError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(timeout=self.settings.stop_timeout_s)
        except subprocess.TimeoutExpired:
            log.error("the sandbox service did not end in time; killing it")
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=self.settings.stop_timeout_s)
        if process.stdout is not None:
            process.stdout.close()


def _plain(token: SecretStr) -> str:
    return token.get_secret_value()
