"""What a run uses: its processes, and its control group through descriptors that the host opened."""

from __future__ import annotations

import contextlib
import os
from typing import Any


def descendants(root: int) -> list[int]:
    """Every living process beneath `root`, parents before children."""
    found: list[int] = []
    queue = [root]
    while queue:
        pid = queue.pop(0)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as children:
                    queue.extend(new := [int(child) for child in children.read().split()])
                    found.extend(new)
    return found


def tasks(pid: int) -> int:
    """Threads of a process; 0 if it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def usage(root: int, with_memory: bool) -> dict[str, float]:
    """CPU seconds, private and shared-memory bytes, and number of tasks of every process beneath `root`."""
    tick = os.sysconf("SC_CLK_TCK")
    total = {"cpu_s": 0.0, "memory": 0.0, "tasks": 0.0}
    for pid in descendants(root):
        with contextlib.suppress(OSError, IndexError, ValueError):
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            total["cpu_s"] += sum(map(int, fields[11:15])) / tick
            total["tasks"] += int(fields[17])
            if with_memory:
                with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                    for line in file:
                        if line.startswith((b"Private_Dirty", b"Private_Clean", b"Pss_Shmem")):
                            total["memory"] += int(line.split()[1]) << 10
    return total


def disk_usage(folder: str) -> tuple[int, int]:
    """(bytes, files) beneath `folder`, as allocated, links not followed."""
    size = count = 0
    queue = [folder]
    while queue:
        with contextlib.suppress(OSError):
            for entry in os.scandir(queue.pop()):
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    queue.append(entry.path)
                else:
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
    return size, count


class Cgroup:
    """Counters and limits of the slot's control group, version 1 or 2."""

    def __init__(self, descriptors: dict[str, Any]) -> None:
        self.descriptors = descriptors
        self.base = 0
        self.armed = (0, 0)
        self.cpu_before = self.oom_before = 0.0

    def has(self, name: str) -> bool:
        return name in self.descriptors

    def _read(self, name: str) -> str:
        return os.pread(self.descriptors[name], 4096, 0).decode()

    def _write(self, name: str, value: int) -> None:
        os.pwrite(self.descriptors[name], str(value).encode(), 0)

    def _field(self, name: str, field: str) -> int:
        for line in self._read(name).splitlines():
            key, _, value = line.partition(" ")
            if key == field:
                return int(value)
        return 0

    def enter(self) -> None:
        """Move the calling process (the future zygote) in; its children are born there."""
        for descriptor in self.descriptors["procs"]:
            os.write(descriptor, b"0")

    def set_base(self) -> None:
        """What the warm interpreter itself occupies is added to every limit."""
        self.base = int(self._read("memory_current"))

    def arm(self, memory: int, processes: int) -> None:
        """Limits of the coming run; its counters start here."""
        if self.armed != (memory, processes):
            with contextlib.suppress(OSError):  # busy: below what a session holds already; the old limit stays
                self._write("memory_max", self.base + memory)
            if self.has("pids_max"):
                self._write("pids_max", processes + 1)  # and the zygote
            self.armed = (memory, processes)
        self.oom_before += self.oom_kills()
        self.cpu_before += self.cpu_s() or 0.0
        if self.has("memory_peak_reset"):
            self._write("memory_peak", 0)

    def forbid_forks(self) -> None:
        """So that the killer cannot be outrun."""
        if self.has("pids_max"):
            self._write("pids_max", 0)
            self.armed = (0, 0)

    def oom_kills(self) -> int:
        """Processes killed for memory since the run was armed."""
        return int(self._field("memory_events", "oom_kill") - self.oom_before)

    def cpu_s(self) -> float | None:
        """CPU seconds since the run was armed; None without that controller."""
        if self.has("cpu_ns"):
            return int(self._read("cpu_ns")) / 1e9 - self.cpu_before
        if self.has("cpu_stat"):
            return self._field("cpu_stat", "usage_usec") / 1e6 - self.cpu_before
        return None

    def peak(self) -> int:
        """Most memory above the warm interpreter's, bytes; 0 where the kernel does not keep it per run."""
        if self.has("memory_peak_reset"):
            return max(0, int(self._read("memory_peak")) - self.base)
        return 0
