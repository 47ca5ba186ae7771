"""The Docker engine, asked from threads: only while slots are made and taken away, never while a program runs.

Every call has a deadline, and there are never more of them at once than slots may start in parallel, plus as many
removals: engines answer late or not at all under a crowd (docker/docker-py#3409, moby/moby#30311).
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from sandbox.backends.base import SlotError
from sandbox.backends.docker_settings import DockerSettings

if TYPE_CHECKING:
    from docker import APIClient

SOCKET = "unix:///var/run/docker.sock"
BUILD = "build it with deploy/runner/build.sh (or deploy/runner/build.sh --debian where no registry can be reached)"
T = TypeVar("T")


class EngineError(SlotError):
    """The engine refused, failed or did not answer."""


class Engine:
    """Calls to one engine."""

    def __init__(self, settings: DockerSettings) -> None:
        self.settings = settings
        self.host = settings.host or os.environ.get("DOCKER_HOST") or SOCKET
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._own = threading.local()
        self._driver = ""

    async def call(self, work: Callable[[APIClient], T], *, removal: bool = False) -> T:
        """`work(client)` on a thread. Raises EngineError."""
        name = "remove" if removal else "make"
        if name not in self._threads:
            self._threads[name] = ThreadPoolExecutor(self.settings.parallel_starts, f"docker-{name}")
        return await asyncio.get_running_loop().run_in_executor(self._threads[name], self._guarded, work)

    async def cgroup_driver(self) -> str:
        """How the engine makes control groups: `cgroupfs` or `systemd`. Raises EngineError."""
        if not self._driver:
            self._driver = str((await self.call(lambda client: client.info())).get("CgroupDriver", ""))
        return self._driver

    def _guarded(self, work: Callable[[APIClient], T]) -> T:
        client = self._client()
        from docker import errors
        from requests import RequestException

        try:
            try:
                return work(client)
            finally:
                client.close()  # its pool keeps connections that it never uses again, some with every slot
        except errors.ImageNotFound as error:
            raise EngineError(f"the image {self.settings.image!r} is not there: {BUILD}") from error
        except errors.APIError as error:
            raise EngineError(f"the Docker engine refuses: {_plain(error.explanation or error)}") from error
        except (errors.DockerException, RequestException, OSError) as error:
            raise EngineError(f"the Docker engine at {self.host} does not answer: {_plain(error)}") from error

    def _client(self) -> APIClient:
        """This thread's own client. Raises EngineError in words that say what to do."""
        if not hasattr(self._own, "client"):
            try:
                from docker import APIClient, errors
            except ImportError as error:
                raise EngineError("the Docker SDK is not installed: pip install 'agent-rl[docker]'") from error
            path = self._socket_path()
            if not os.path.exists(path):
                raise EngineError(
                    f"there is no Docker engine at {path}: install one (package `docker.io`) and start it"
                )
            if not os.access(path, os.R_OK | os.W_OK):
                raise EngineError(f"this user may not use the Docker engine at {path}: add it to the group `docker`")
            try:
                self._own.client = APIClient(base_url=self.host, timeout=self.settings.call_s, version="auto")
            except errors.DockerException as error:
                raise EngineError(
                    f"no Docker engine answers at {path} ({_plain(error)}): start it (`dockerd`, or "
                    "`systemctl start docker`)"
                ) from error
        return self._own.client

    def _socket_path(self) -> str:
        if not self.host.startswith("unix://"):
            raise EngineError(
                f"the Docker engine at {self.host!r} is not on a Unix socket: slots must end with this process, "
                "which only a local engine notices at once; run the sandbox service on the engine's machine"
            )
        return self.host.removeprefix("unix://")


def attach(client: APIClient, container: str) -> socket.socket:
    """The container's standard streams as one connection; its end closes the container's input."""
    stream = client.attach_socket(container, {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    try:
        raw = getattr(stream, "_sock", stream).dup()
    finally:
        stream._response.close()  # our copy of the descriptor keeps the connection
    raw.setblocking(False)
    return raw


def _plain(error: object) -> str:
    """One line of an error that may be pages of nested exceptions."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]}..."
