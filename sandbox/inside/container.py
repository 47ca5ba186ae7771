"""What the supervisor has to see to itself when it is PID 1 of a container that somebody else set up.

The container's control group cannot be written from inside: its own limits (memory, processes, CPU share) were
fixed when it was made, and a run's are held by resource limits and by looking. What can be read makes that exact:
the group's counters of memory, CPU time and processes killed for memory. Sources: the kernel's
`Documentation/admin-guide/cgroup-v1/` and `Documentation/admin-guide/cgroup-v2.rst`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any, NoReturn

from confine import landlock_abi
from meter import Cgroup

HERE = os.path.dirname(os.path.abspath(__file__))
GROUP = "/sys/fs/cgroup"
COUNTERS = {
    "memory_current": ("memory.current", "memory/memory.usage_in_bytes"),
    "memory_stat": ("memory.stat", "memory/memory.stat"),
    "memory_events": ("memory.events", "memory/memory.oom_control"),
    "cpu_stat": ("cpu.stat",),
    "cpu_ns": ("cpuacct/cpuacct.usage", "cpu,cpuacct/cpuacct.usage"),
}
"""Each counter's file below the group's directory: version 2, version 1."""
HELD = (("anon", "shmem"), ("total_rss", "total_shmem"))
"""Fields of memory.stat that a program answers for, by version: what it wrote, not what the kernel caches for it."""


class OwnGroup(Cgroup):
    """The container's control group, read only."""

    def __init__(self, descriptors: dict[str, Any]) -> None:
        super().__init__(descriptors)
        self.fields = HELD[0] if self._field("memory_stat", HELD[0][0]) else HELD[1]

    def enter(self) -> None:
        """Everything in the container is in it."""

    def held(self) -> int:
        """Bytes that processes and their files in memory occupy."""
        return sum(self._field("memory_stat", field) for field in self.fields)

    def set_base(self) -> None:
        self.base = self.held()

    def arm(self, memory: int, processes: int) -> None:
        self.oom_before += self.oom_kills()
        self.cpu_before += self.cpu_s() or 0.0

    def bounds_tasks(self) -> bool:
        """The container's user has no process elsewhere, so RLIMIT_NPROC counts this run's alone."""
        return True

    def over(self, allowed: int) -> bool:
        """Whether the run holds more than `allowed` bytes beyond the warm interpreter's."""
        return int(self._read("memory_current")) > self.base + allowed and self.held() > self.base + allowed


def own_group(root: str = GROUP) -> OwnGroup | None:
    """The control group as this container shows it; None where its counters cannot be read."""
    descriptors: dict[str, Any] = {}
    for name, places in COUNTERS.items():
        for place in places:
            with contextlib.suppress(OSError):
                descriptors[name] = os.open(os.path.join(root, place), os.O_RDONLY | os.O_CLOEXEC)
                break
    if {"memory_current", "memory_stat", "memory_events"} <= descriptors.keys():
        return OwnGroup(descriptors)
    for descriptor in descriptors.values():
        os.close(descriptor)
    return None


def source_digest() -> str:
    """Digest of the files beside this one, by which the host knows an image that is out of date."""
    import hashlib  # here, since only a container needs it

    digest = hashlib.sha256()
    for name in sorted(name for name in os.listdir(HERE) if name.endswith(".py")):
        with open(os.path.join(HERE, name), "rb") as file:
            content = file.read()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def names(uid: int) -> dict[str, str]:
    """`passwd` and `group`: every slot has a user of its own, so no image can hold them."""
    return {
        "passwd": f"root:x:0:0:root:/:/usr/sbin/nologin\nnobody:x:{uid}:{uid}:nobody:/sandbox:/usr/sbin/nologin\n",
        "group": f"root:x:0:\nnogroup:x:{uid}:\n",
    }


def write_names(folder: str) -> None:
    """Write what /etc/passwd and /etc/group of the image point at."""
    for name, text in names(os.getuid()).items():
        with open(os.path.join(folder, name), "w") as file:
            os.fchmod(file.fileno(), 0o444)
            file.write(text)


def names_intact(folder: str) -> bool:
    """Whether `folder` holds what was written and nothing else (programs run as its owner)."""
    wanted = names(os.getuid())
    if sorted(os.listdir(folder)) != sorted(wanted):
        return False
    for name, text in wanted.items():
        with open(os.path.join(folder, name)) as file:
            if file.read(len(text) + 1) != text:
                return False
    return True


def settle(config: dict[str, Any], ended: type[Exception]) -> None:
    """Complete `config` with what only the inside knows, and set this container's end; `ended` is raised then."""

    def expire(*_: object) -> NoReturn:
        raise ended

    config["python"][0] = sys.executable
    config["landlock"] = config["landlock"] and landlock_abi() > 0
    write_names(config["names"])
    signal.signal(signal.SIGALRM, expire)
    signal.alarm(config["life_s"])
