"""Slots in hardened containers: tier T3 with the engine's default runtime, T4 with a kernel of their own.

One container is one slot, with our supervisor as its first process: the same files as in every other tier, baked
into the image. The engine makes containers and takes them away; a program costs it no call: orders and answers
travel over the container's attached streams. The end of that connection, however the service dies, ends the
supervisor's input, with it the first process, with it the container, which the engine then removes.

A container has no privilege to give its own control group other limits for each run. So the container's limits
are the most that any run may have, a run's process limit is a resource limit of a user that only this slot has,
and its memory and CPU limits are held by the supervisor, which reads the group's counters every 50 ms.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sandbox.backends.base import Probe, SlotError, Tier
from sandbox.backends.canary import hoards_held, try_out
from sandbox.backends.config import slot_config
from sandbox.backends.docker_engine import BUILD, Engine, EngineError, attach
from sandbox.backends.docker_reaper import reap, remove, slot_labels
from sandbox.backends.docker_settings import DockerSettings
from sandbox.backends.docker_spec import NAMES, WRITABLE, container_spec, draw_uid
from sandbox.backends.docker_stream import ContainerProcess
from sandbox.backends.interpreter import DEFAULT_PACKAGES, source_digest
from sandbox.backends.supervised import SupervisedSlot
from sandbox.schemas import ExecuteRequest, ExecuteResult, Limits

if TYPE_CHECKING:
    from docker import APIClient

log = logging.getLogger("sandbox")

REAP_S = 60.0
PYTHON = "/usr/local/bin/python3"
"""First folder of the programs' PATH; the supervisor starts whatever interpreter the image has."""
OWN_KERNEL = ("runsc", "kata")
CANARY_MB = 256
"""Hard limit of the container in which the engine's memory limit is tried."""


class DockerSlot(SupervisedSlot):
    """A slot whose limits cannot exceed its container's."""

    settings: DockerSettings

    async def run(self, request: ExecuteRequest) -> ExecuteResult:
        ready, notes = within(request, self.settings)
        result = await super().run(ready)
        result.notes[:0] = notes
        return result

    async def open_session(
        self, limits_memory_mb: int, *, limits: Limits | None = None, checkpoint: bool = True
    ) -> None:
        held, _ = clamped((limits or Limits()).model_copy(update={"memory_mb": limits_memory_mb}), self.settings)
        await super().open_session(held.memory_mb, limits=held, checkpoint=checkpoint)


class DockerBackend:
    """See the module."""

    name = "docker"

    def __init__(
        self,
        packages: Sequence[str] = (),
        cpus: float | None = 1.0,
        cgroups: bool = True,
        warm: Sequence[str] = DEFAULT_PACKAGES,
        settings: DockerSettings | None = None,
    ) -> None:
        self.packages = (*warm, *packages)
        self.cpus = cpus
        self.settings = settings or DockerSettings()
        self.engine = Engine(self.settings)
        self.tier = Tier.T4 if self.settings.runtime.startswith(OWN_KERNEL) else Tier.T3
        self._starts = asyncio.Semaphore(self.settings.parallel_starts)
        self._reaped = float("-inf")
        self._stuck: set[str] = set()
        """Containers that could not be removed; tried again with every sweep."""

    async def probe(self) -> Probe:
        """As every tier, and whether the engine's own memory limit binds: without it this is T2."""
        remedy = f"docker needs an engine that this user may use, the extra `docker`, and the image ({BUILD})"
        found = await try_out(self, self.tier, remedy)
        if found.tier is None or found.tier < Tier.T3:
            return found
        tight = DockerBackend(
            cpus=self.cpus, settings=self.settings.model_copy(update={"memory_mb": CANARY_MB, "warm_mb": 32})
        )
        checks = found.checks | {"container_memory_limited": await hoards_held(tight, beyond_mb=4 * CANARY_MB)}
        if checks["container_memory_limited"]:
            return Probe(found.backend, found.tier, checks, found.reason, found.details)
        reason = "the engine does not limit memory (see `docker info`: no memory limit support)"
        return Probe(found.backend, Tier.T2, checks, f"{found.reason} {reason}".strip(), found.details)

    async def start_slot(self, *, bare: bool = False) -> SupervisedSlot:
        async with self._starts:
            await self._sweep()
            return await self._start(bare)

    async def _start(self, bare: bool) -> SupervisedSlot:
        uid = draw_uid(self.settings)
        config = slot_config(
            () if bare else self.packages,
            workdir="/sandbox",
            temporary="/tmp",
            writable=WRITABLE,
            readable=["/"],
            namespaces=True,
            group=None,
            python=PYTHON,
            container={"names": NAMES, "life_s": self.settings.life_s},
        )
        driver = await self.engine.cgroup_driver()
        spec = container_spec(self.settings, slot_labels(self.settings), config, uid, self.cpus, driver)
        name = f"agent-rl-slot-{random.SystemRandom().getrandbits(64):016x}"

        async def release() -> None:
            process.abandon()
            await self._remove(name)

        def kill() -> None:
            self._killing = asyncio.ensure_future(self._remove(name))

        process = ContainerProcess(kill)
        try:
            stream = await self.engine.call(lambda client: make(client, name, spec))
            await asyncio.get_running_loop().create_unix_connection(lambda: process, sock=stream)
            process.pid = await self.engine.call(lambda client: begin(client, name))
        except BaseException:
            await asyncio.shield(release())
            raise
        slot = DockerSlot(process, self.name, self.tier, release)  # type: ignore[arg-type]
        slot.settings = self.settings

        def ended() -> None:
            slot.dirty = True

        process.on_end = ended
        await slot.warm(self.settings.call_s + 40)
        if slot.ready.get("inside") != source_digest():
            await slot.destroy()
            raise SlotError(
                f"the image {self.settings.image!r} holds another version of the supervisor than this package: {BUILD}"
            )
        return slot

    async def _remove(self, name: str) -> None:
        """Remove a container; what fails is tried again later."""
        try:
            await self.engine.call(lambda client: remove(client, name), removal=True)
            self._stuck.discard(name)
        except EngineError as error:
            self._stuck.add(name)
            log.error("the container %s is not removed yet: %s", name, error)

    async def _sweep(self) -> None:
        """Now and then, remove what services that died left, and what could not be removed before."""
        now = time.monotonic()
        if now < self._reaped + REAP_S:
            return
        self._reaped = now
        await self.engine.call(reap, removal=True)
        for name in list(self._stuck):
            await self._remove(name)


def make(client: APIClient, name: str, spec: dict[str, Any]) -> socket.socket:
    """Create the container and attach to it: before its start, so that nothing it says is missed."""
    client.create_container_from_config(spec, name)
    return attach(client, name)


def begin(client: APIClient, name: str) -> int:
    """Start the container; the process id of its first process."""
    client.start(name)
    return client.inspect_container(name)["State"]["Pid"]


def clamped(limits: Limits, settings: DockerSettings) -> tuple[Limits, list[str]]:
    """`limits` as far as the container allows, and a note for each that it does not."""
    most = {name: getattr(settings, name) for name in ("memory_mb", "processes", "disk_mb", "inodes")}
    over = {name: value for name, value in most.items() if getattr(limits, name) > value}
    notes = [f"{name}: {value} is the most that a container of this service has" for name, value in over.items()]
    return limits.model_copy(update=over), notes


def within(request: ExecuteRequest, settings: DockerSettings) -> tuple[ExecuteRequest, list[str]]:
    """The request with limits that its container can hold."""
    limits, notes = clamped(request.limits, settings)
    return (request.model_copy(update={"limits": limits}), notes) if notes else (request, notes)
