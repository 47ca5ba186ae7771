"""What a run uses: its processes, and its control group through descriptors that the host opened."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

LISTED = os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
"""Whether the kernel lists a process's children (gVisor does not)."""


SHARES_KNOWN = os.path.exists("/proc/self/smaps_rollup")
"""Whether the kernel tells what processes share (gVisor does not)."""


def children_by_parent() -> dict[int, list[int]]:
    """Every process's children, found by asking each process for its parent."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, IndexError):
            if name.isdigit():
                found.setdefault(int(_fields(int(name))[1]), []).append(int(name))
    return found


def descendants(root: int, enough: int = 1 << 30) -> list[int]:
    """Every living process beneath `root`, parents before children; little more than `enough` of them."""
    found: list[int] = []
    if not LISTED:
        table, queue = children_by_parent(), [root]
        while queue:
            queue.extend(new := table.get(queue.pop(0), []))
            found.extend(new)
        return found
    queue = [root]
    while queue and len(found) <= enough:
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


def tasks_of_user(uid: int) -> int:
    """Threads of every process of a user."""
    total = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                total += tasks(int(name))
    return total


def _anonymous(pid: int) -> int:
    """Bytes of resident memory that no file holds; where that is not told apart (gVisor), all of it."""
    with open(f"/proc/{pid}/status", "rb") as file:
        sizes = {line.partition(b":")[0]: line for line in file if line.startswith((b"Rss", b"VmRSS"))}
    names = (b"RssAnon", b"RssShmem") if b"RssAnon" in sizes else (b"VmRSS",)
    return sum(int(sizes[name].split()[1]) << 10 for name in names if name in sizes)


def _fields(pid: int) -> list[bytes]:
    """Fields of /proc/<pid>/stat from the third (state) on."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def usage(root: int, enough: int = 1 << 30) -> dict[str, int | float]:
    """CPU seconds, tasks, and about how many bytes all processes beneath `root` use.

    Bytes: resident anonymous and shared memory, less what a fork of `root` (an address space with the same start
    of its stack) shares with it. Pages that forks share among themselves are counted for each, so this is
    at times too much: `memory` tells exactly. Counting ends at more than `enough` tasks.
    """
    tick = os.sysconf("SC_CLK_TCK")
    total: dict[str, int | float] = {"cpu_s": 0.0, "bytes": 0, "tasks": 0}
    with contextlib.suppress(OSError):
        stack, shared = _fields(root)[25], _anonymous(root)
        for pid in descendants(root, enough):
            if total["tasks"] > enough:
                break
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = _fields(pid)
                total["cpu_s"] += sum(map(int, fields[11:15])) / tick
                total["tasks"] += int(fields[17])
                total["bytes"] += max(0, _anonymous(pid) - (shared if fields[25] == stack else 0))
    return total


def memory(root: int, budget_s: float = 0.05) -> int:
    """Bytes of private and (its share of) shared memory of the processes beneath `root`.

    Exact but slow (the kernel walks every page), hence the budget: what it does not reach is not counted.
    """
    if not SHARES_KNOWN:
        return int(usage(root)["bytes"])
    total = 0
    stop = time.monotonic() + budget_s
    for pid in descendants(root):
        if time.monotonic() > stop:
            break
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith((b"Private_Dirty", b"Private_Clean", b"Pss_Shmem")):
                    total += int(line.split()[1]) << 10
    return total


def disk_usage(folder: str, mounted: bool = False) -> tuple[int, int]:
    """(bytes, files) beneath `folder`, as allocated, links not followed; `mounted`: a file system of its own."""
    if mounted:
        found = os.statvfs(folder)
        return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree
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

    def bounds_tasks(self) -> bool:
        """Whether more processes than a run may have are refused as they are made."""
        return self.has("pids_max")

    def over(self, allowed: int) -> bool:
        """Whether the run holds more than `allowed` bytes though nothing kills it for that: never, the group would."""
        return False

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
