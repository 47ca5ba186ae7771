"""A service on a real socket in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvicorn

from sandbox.api import direct
from sandbox.backends.base import Backend
from sandbox.client import SandboxClient
from sandbox.embedded import EmbeddedSandbox
from sandbox.service import SandboxService, running
from sandbox.settings import ServiceSettings

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Served:
    service: SandboxService
    url: str
    http: httpx.AsyncClient

    def client(self, **options: Any) -> SandboxClient:
        return SandboxClient(self.url, **options)

    async def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return await self.http.post(path, json=body, **options)


@contextlib.asynccontextmanager
async def on_socket(service: SandboxService) -> AsyncIterator[str]:
    """Serve over HTTP on a free port."""
    sock = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(direct(service), log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    serving = asyncio.ensure_future(server.serve([sock]))
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, 10)


@contextlib.asynccontextmanager
async def serving(backend: Backend, **settings: Any) -> AsyncIterator[Served]:
    """A service over `backend` with an HTTP client."""
    async with (
        running(ServiceSettings(**{"slots": 2, "host_grace_s": 0.5, **settings}), backend) as service,
        on_socket(service) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        yield Served(service, url, http)


async def eventually(condition: Any, seconds: float = 5.0) -> None:
    """Wait until `condition()` holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@functools.cache
def shared_sandbox() -> EmbeddedSandbox:
    """One real service for all tests of this run; it ends with the interpreter. Its owner has a secret."""
    os.environ["CANARY_API_KEY"] = "canary-7f3a"
    return EmbeddedSandbox().start()


def family_of(pid: int) -> list[psutil.Process]:
    """A process and all its descendants."""
    head = psutil.Process(pid)
    return [head, *head.children(recursive=True)]


def still_alive(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that have not ended within `seconds`."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
