"""Run the service in this process: uvicorn on one loop, our own signal handling, an owner to die with.

The owner protocol of an embedded service: the owner writes one JSON line of settings to standard input and
keeps it open; the service writes one JSON line to standard output when it is ready or has failed. End of
input, or the owner's death, ends the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn

from sandbox.api import direct
from sandbox.service import SandboxService
from sandbox.settings import ServiceSettings

log = logging.getLogger("sandbox")

PR_SET_PDEATHSIG = 1
START_FAILED = 3
"""Exit status when no slot could be started."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the order of shutdown is ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class Owner:
    """The process this service belongs to."""

    pid: int
    pidfd: int | None


def read_owner(*, die_with_thread: bool) -> tuple[Owner, ServiceSettings]:
    """Read the owner's settings line from standard input and tie our life to it."""
    owner = Owner(os.getppid(), None)
    if sys.platform == "linux":
        if die_with_thread:  # the signal follows the owner's thread: only asked for if that is its main one
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with contextlib.suppress(OSError):
            owner.pidfd = os.pidfd_open(owner.pid)
    line = b""
    while not line.endswith(b"\n"):  # unbuffered: nothing may be read beyond the line
        byte = os.read(0, 1 << 16)
        if not byte:
            raise SystemExit("the owner closed standard input before it sent settings")
        line += byte
    if os.getppid() != owner.pid:
        raise SystemExit("the owner died during start")
    return owner, ServiceSettings.model_validate_json(line)


def listener(settings: ServiceSettings) -> socket.socket:
    """A listening socket at the configured address."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
    except OSError as taken:
        raise SystemExit(f"cannot listen on {settings.host}:{settings.port}: {taken.strerror}") from None
    sock.listen(2048)
    return sock


async def serve(settings: ServiceSettings, sock: socket.socket, owner: Owner | None = None) -> int:
    """Serve until told to stop; returns the exit status."""
    service = SandboxService(settings)
    config = uvicorn.Config(
        direct(service),
        log_level=settings.log_level,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, int(settings.drain_s)),
        backlog=2048,
    )
    server = _Server(config)
    shutdown = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, shutdown.set)
    if owner is not None:
        _follow(owner, loop, shutdown)
    serving = asyncio.ensure_future(server.serve([sock]))
    starting = asyncio.ensure_future(service.start())
    stopping = asyncio.ensure_future(shutdown.wait())
    status = 0
    try:
        await asyncio.wait((starting, stopping, serving), return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and (failure := starting.exception()) is not None:
            _announce(owner, {"error": str(failure) or type(failure).__name__})
            log.debug("start failed", exc_info=failure)
            status = START_FAILED
        elif starting.done():
            _announce(owner, _ready(service, sock))
            await asyncio.wait((stopping, serving), return_when=asyncio.FIRST_COMPLETED)
        if status == 0 and service.state == "ready":
            await service.drain()
    finally:
        server.should_exit = True
        starting.cancel()
        await asyncio.wait((serving,), timeout=settings.drain_s + 2)
        await service.stop()
    return status


def _ready(service: SandboxService, sock: socket.socket) -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "host": sock.getsockname()[0],
        "port": sock.getsockname()[1],
        "backend": service.backend.name,
        "tier": service.tier,
        "slots": service.settings.slot_count,
        "queue": service.gate.capacity,
    }


def _announce(owner: Owner | None, message: dict[str, object]) -> None:
    """Tell whoever started us, on standard output (JSON) or in words."""
    if owner is not None:
        with contextlib.suppress(BrokenPipeError):
            os.write(1, json.dumps(message).encode() + b"\n")
    elif "error" in message:
        print(f"The sandbox did not start: {message['error']}", file=sys.stderr, flush=True)
    else:
        words = "sandbox ready on http://{host}:{port} (isolation: {backend}, tier {tier}; {slots} slots)"
        print(words.format(**message), flush=True)


def _follow(owner: Owner, loop: asyncio.AbstractEventLoop, shutdown: asyncio.Event) -> None:
    """Shut down when the owner closes our input or dies."""

    def input_ended() -> None:
        if os.read(0, 4096) == b"":
            loop.remove_reader(0)
            shutdown.set()

    def owner_died() -> None:
        loop.remove_reader(owner.pidfd)
        shutdown.set()
        os.kill(os.getpid(), signal.SIGKILL)  # the owner is gone: nobody waits for a graceful end

    os.set_blocking(0, False)
    loop.add_reader(0, input_ended)
    if owner.pidfd is not None:
        loop.add_reader(owner.pidfd, owner_died)


def run(settings: ServiceSettings, sock: socket.socket | None = None, owner: Owner | None = None) -> int:
    """Serve from synchronous code; uses uvloop where it is installed."""
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="%(asctime)s sandbox %(levelname)s %(message)s",
    )
    sock = sock or listener(settings)
    try:
        from uvloop import new_event_loop
    except ImportError:
        from asyncio import new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(serve(settings, sock, owner))
