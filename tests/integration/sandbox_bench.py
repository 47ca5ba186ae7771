"""A slot with a neighbour, driven from synchronous tests, and what must hold after every program."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import psutil
import pytest

from sandbox.backends.base import Backend, Slot
from sandbox.backends.bwrap import BwrapBackend
from sandbox.backends.docker import DockerBackend
from sandbox.backends.embedded import LandlockBackend
from sandbox.inside import confine
from sandbox.schemas import ExecuteRequest, ExecuteResult, Limits, Status
from tests.integration.docker_kit import require_runner

WALL_S = 1.5
LIMITS = Limits(wall_s=WALL_S, cpu_s=1.0, memory_mb=256, processes=32)
AFTER = """
import os, tempfile
print(6*7)
print([sorted(set(os.listdir(p)) - {'main.py'}) for p in (os.getcwd(), tempfile.gettempdir(), '/dev/shm')
       if os.access(p, os.W_OK) and (p != '/dev/shm' or os.path.isdir('/sandbox'))])
"""
WARM = ("numpy",)
TIGHT = ("bwrap", "bwrap-no-cgroup", "docker")
CONFINED = (*TIGHT, "landlock")
FACTORIES: dict[str, Callable[[], Backend]] = {
    "bwrap": lambda: BwrapBackend(warm=WARM),
    "bwrap-no-cgroup": lambda: BwrapBackend(warm=WARM, cgroups=False),
    "docker": lambda: DockerBackend(warm=WARM),
    "landlock": lambda: LandlockBackend(warm=WARM),
}


class Bench:
    """One backend, a slot of it and a neighbour, on an event loop of their own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.namespaces = name in TIGHT
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.backend: Any = FACTORIES[name]()
        self.slot: Any = self.call(self.backend.start_slot())
        self.neighbour: Any = self.call(self.backend.start_slot())
        self.bare_run()
        self.base = self.census()

    def start(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.start(work).result(timeout=120)

    def close(self) -> None:
        self.call(self.slot.destroy())
        self.call(self.neighbour.destroy())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()

    def fresh_slot(self) -> Slot:
        return self.call(self.backend.start_slot())

    # --- one program and what must hold after it ---

    def run(self, code: str, *expected: Status, limits: Limits = LIMITS, **fields: Any) -> ExecuteResult:
        """Run `code` beside a neighbour; check its status (any of `expected`) and every invariant."""
        beside = self.start(
            self.neighbour.run(ExecuteRequest(code="import time; time.sleep(0.05); print(6*7)", limits=LIMITS))
        )
        began = time.monotonic()
        result = self.call(self.slot.run(ExecuteRequest(code=code, limits=limits, **fields)))
        took = time.monotonic() - began
        assert result.status in (expected or (Status.OK,)), result
        assert took < limits.wall_s + 5, f"answered after {took:.1f} s"
        assert result.model_dump_json()
        neighbour = beside.result(timeout=60)
        assert (neighbour.status, neighbour.stdout) == (Status.OK, "42\n"), neighbour
        self.check()
        return result

    def bare_run(self) -> None:
        after = self.call(self.slot.run(ExecuteRequest(code=AFTER, limits=Limits(wall_s=20, cpu_s=10))))
        first, *rest = after.stdout.splitlines()
        assert (after.status, first) == (Status.OK, "42"), after
        assert set("".join(rest)) <= set("[], "), f"files are left: {rest}"

    def check(self) -> None:
        """The slot (a new one if it says it is spent) runs the next program and nothing of the last is left."""
        if self.slot.dirty:
            self.call(self.slot.destroy())
            self.slot = self.fresh_slot()
        self.bare_run()
        deadline = time.monotonic() + 2
        while (now := self.census()) != self.base and time.monotonic() < deadline:
            time.sleep(0.01)
        assert now == self.base

    def census(self) -> list[tuple[str, int, int]]:
        """(kind, threads, descriptors) of every process of the slot, as the host sees them."""
        first = psutil.Process(self.slot.pid)
        return sorted((p.name(), p.num_threads(), p.num_fds()) for p in [first, *first.children(recursive=True)])


def benches(*names: str) -> Any:
    """A module-scoped fixture with a bench for each of `names`."""

    @pytest.fixture(scope="module", params=names or CONFINED)
    def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
        if request.param == "docker":
            require_runner(request)
        elif request.param != "landlock":
            request.getfixturevalue("requires_bwrap")
        elif not confine.landlock_abi():
            pytest.skip("the kernel has no Landlock")
        made = Bench(request.param)
        yield made
        made.close()

    return bench
