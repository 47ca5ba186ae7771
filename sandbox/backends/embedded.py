"""Slots without namespaces: Landlock, seccomp and hard limits (`landlock`, T1), or limits alone (`unsafe`, T0)."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sandbox.backends.base import Probe, SlotError, Tier
from sandbox.backends.canary import try_out
from sandbox.backends.cgroup import make_cgroup
from sandbox.backends.config import slot_config
from sandbox.backends.interpreter import (
    DEFAULT_PACKAGES,
    INSIDE,
    SYSTEM,
    TOP,
    interpreter_folders,
    supervisor_command,
)
from sandbox.backends.supervised import SupervisedSlot, unique_name

MACHINE_FACTS = ("/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu")


PREFIX = "agent-rl-sandbox-"


def _sweep() -> None:
    """Delete the folders of owners that were killed before they could; others' are passed over."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        owner = folder.name.removeprefix(PREFIX).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and folder.stat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)


class LandlockBackend:
    """No user namespace needed: files by Landlock, network and system calls by seccomp, the rest by limits.

    Weaker than namespaces, by nature: no `/dev/shm` (so no `multiprocessing` locks, queues or pools), no metadata
    calls by path (`os.chmod`, `shutil.copy`), sizes of files limited one by one (RLIMIT_FSIZE) and the work
    directory by looking now and then; existence of host files can be learnt (`os.path.exists`).
    """

    name = "landlock"
    tier = Tier.T1
    confined = True

    def __init__(
        self,
        packages: Sequence[str] = (),
        cpus: float | None = 1.0,
        cgroups: bool = True,
        warm: Sequence[str] = DEFAULT_PACKAGES,
    ) -> None:
        self.packages = (*warm, *packages)
        self.cpus, self.cgroups = cpus, cgroups

    async def probe(self) -> Probe:
        remedy = "landlock needs Linux 5.13 or newer with Landlock enabled (`lsm=...,landlock`), x86_64 or aarch64"
        return await try_out(self, self.tier, remedy if self.confined else "")

    async def start_slot(self, *, bare: bool = False) -> SupervisedSlot:
        group = make_cgroup(unique_name(), self.cpus) if self.cgroups else None
        if self.confined and os.getuid() == 0 and not (group and "pids_max" in group.descriptors):
            raise SlotError(
                "the process limit (RLIMIT_NPROC) does not bind root: run as an ordinary user, or where a "
                "control group with `pids` and `memory` can be made"
            )
        await asyncio.to_thread(_sweep)
        folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
        workdir, temporary = f"{folder}/sandbox", f"{folder}/tmp"
        os.mkdir(workdir, 0o700)
        os.mkdir(temporary, 0o700)
        config = slot_config(
            () if bare else self.packages,
            workdir=workdir,
            temporary=temporary,
            writable=[workdir, temporary],
            readable=[*SYSTEM, *TOP, *interpreter_folders(), *MACHINE_FACTS],
            namespaces=False,
            group=group,
            landlock=self.confined,
            seccomp=self.confined,
        )

        async def release() -> None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            if group:
                await group.remove()

        try:
            command = [*supervisor_command(str(INSIDE)), config]
            opened = group.all_descriptors() if group else []
            return await SupervisedSlot.start(command, self.name, self.tier, release, opened)
        finally:
            if group:
                group.close()


class UnsafeBackend(LandlockBackend):
    """Resource limits only: a program can read what this user can read and reach the network. Never chosen by
    `auto`; for machines without Landlock, where the programs are trusted."""

    name = "unsafe"
    tier = Tier.T0
    confined = False
