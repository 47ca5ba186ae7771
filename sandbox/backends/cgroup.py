"""A control group per slot, where this user may make one: version 1 hierarchies or the version 2 tree.

Found by doing: a group is made, limited and removed. Sources: the kernel's
`Documentation/admin-guide/cgroup-v1/` and `Documentation/admin-guide/cgroup-v2.rst`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

PREFIX = "agent-rl-sandbox-"
"""Slots' groups lie side by side: beneath a common parent all of them together would weigh as one process."""
PERIOD_US = 100_000


def _sweep(base: Path) -> None:
    """Remove the empty groups of owners that were killed before they could (rmdir refuses any other)."""
    for folder in base.glob(f"{PREFIX}slot-*"):
        owner = folder.name.removeprefix(f"{PREFIX}slot-").split("-")[0]
        if not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _mounts() -> list[tuple[str, str, set[str]]]:
    """(type, mount point, options) of every cgroup mount."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            found.append((kind, left.split()[4], set(options.split(","))))
    return found


def _own_paths() -> dict[str, str]:
    """Controller (or "" for version 2) to this process's path in its tree."""
    paths = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            paths[name] = path
    return paths


@dataclass
class CgroupFiles:
    """One slot's group: its directories, and the open files that the supervisor works with."""

    version: int
    folders: list[Path]
    descriptors: dict[str, int | list[int]] = field(default_factory=dict)

    def all_descriptors(self) -> list[int]:
        flat: list[int] = []
        for value in self.descriptors.values():
            flat.extend(value if isinstance(value, list) else [value])
        return sorted(set(flat))

    def close(self) -> None:
        """Close our copies (the supervisor has its own)."""
        for descriptor in self.all_descriptors():
            os.close(descriptor)
        self.descriptors = {}

    def pids(self) -> list[int]:
        """Processes still in the group."""
        found: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in (folder / "cgroup.procs").read_text().split()}
        return sorted(found)

    async def remove(self, limit_s: float = 3.0) -> None:
        """Kill what is left in the group and remove it. Raises OSError if it cannot be removed in time."""
        deadline = time.monotonic() + limit_s
        while True:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                for folder in self.folders:
                    with contextlib.suppress(FileNotFoundError):
                        folder.rmdir()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.01)


def make_cgroup(name: str, cpus: float | None = 1.0) -> CgroupFiles | None:
    """A group with memory and process counting for one slot; None where this process may not make one."""
    for make in (_make_v1, _make_v2):
        with contextlib.suppress(OSError):
            group = make(name, cpus)
            if group is not None:
                return group
    return None


def _make_v1(name: str, cpus: float | None) -> CgroupFiles | None:
    own = _own_paths()
    hierarchies: dict[str, Path] = {}
    for kind, point, options in _mounts():
        if kind == "cgroup":
            for controller in ("memory", "pids", "cpu", "cpuacct"):
                if controller in options and controller not in hierarchies:
                    inside = Path(point + own.get(controller, "/"))
                    hierarchies[controller] = inside if inside.is_dir() else Path(point)
    if "memory" not in hierarchies:
        return None
    group = CgroupFiles(1, [])
    folders: dict[str, Path] = {}
    try:
        for controller, base in hierarchies.items():
            folder = base / f"{PREFIX}{name}"
            _sweep(base)
            try:
                if folder not in group.folders:
                    folder.mkdir()
            except OSError:
                if controller == "memory":
                    raise
                continue
            folders[controller] = folder
            if folder not in group.folders:
                group.folders.append(folder)
        with contextlib.suppress(OSError):
            (folders["memory"] / "memory.swappiness").write_text("0")
        if cpus and "cpu" in folders:
            (folders["cpu"] / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folders["cpu"] / "cpu.cfs_quota_us").write_text(str(int(cpus * PERIOD_US)))
        memory = folders["memory"]
        wanted = {
            "memory_current": (memory / "memory.usage_in_bytes", os.O_RDONLY),
            "memory_max": (memory / "memory.limit_in_bytes", os.O_RDWR),
            "memory_events": (memory / "memory.oom_control", os.O_RDONLY),
            "memory_peak": (memory / "memory.max_usage_in_bytes", os.O_RDWR),
            "memory_peak_reset": (memory / "memory.max_usage_in_bytes", os.O_RDONLY),
        }
        if "pids" in folders:
            wanted["pids_max"] = (folders["pids"] / "pids.max", os.O_RDWR)
        if "cpuacct" in folders:
            wanted["cpu_ns"] = (folders["cpuacct"] / "cpuacct.usage", os.O_RDONLY)
        _open(group, wanted)
    except BaseException:
        _undo(group)
        raise
    return group


def _make_v2(name: str, cpus: float | None) -> CgroupFiles | None:
    point = next((Path(p) for kind, p, _ in _mounts() if kind == "cgroup2"), None)
    if point is None:
        return None
    own = point / _own_paths().get("", "/").lstrip("/")
    for base in (own, *own.parents):
        if not base.is_relative_to(point):
            break
        if "memory" not in (base / "cgroup.controllers").read_text().split():
            continue
        with contextlib.suppress(OSError):
            return _make_v2_in(base, name, cpus)
    return None


def _enable(folder: Path) -> None:
    """Let children of `folder` have the controllers.

    A group with processes of its own may not; where those are this process alone it moves to a leaf.
    """
    present = set((folder / "cgroup.controllers").read_text().split())
    wanted = [c for c in ("memory", "pids", "cpu") if c in present]
    order = " ".join(f"+{c}" for c in wanted)
    try:
        (folder / "cgroup.subtree_control").write_text(order)
    except OSError:
        if set((folder / "cgroup.procs").read_text().split()) != {str(os.getpid())}:
            raise
        leaf = folder / f"{PREFIX}host"
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text("0")
        (folder / "cgroup.subtree_control").write_text(order)


def _make_v2_in(base: Path, name: str, cpus: float | None) -> CgroupFiles:
    group = CgroupFiles(2, [])
    try:
        _enable(base)
        _sweep(base)
        folder = base / f"{PREFIX}{name}"
        folder.mkdir()
        group.folders.append(folder)
        for limit, value in (("memory.swap.max", "0"), ("cpu.max", f"{int((cpus or 0) * PERIOD_US)} {PERIOD_US}")):
            if (folder / limit).exists() and (cpus or limit != "cpu.max"):
                (folder / limit).write_text(value)
        wanted = {
            "memory_current": (folder / "memory.current", os.O_RDONLY),
            "memory_max": (folder / "memory.max", os.O_RDWR),
            "memory_events": (folder / "memory.events", os.O_RDONLY),
        }
        if (folder / "pids.max").exists():
            wanted["pids_max"] = (folder / "pids.max", os.O_RDWR)
        if (folder / "cpu.stat").exists():
            wanted["cpu_stat"] = (folder / "cpu.stat", os.O_RDONLY)
        _open(group, wanted)
    except BaseException:
        _undo(group)
        raise
    return group


def _open(group: CgroupFiles, wanted: dict[str, tuple[Path, int]]) -> None:
    for key, (path, flags) in wanted.items():
        group.descriptors[key] = os.open(path, flags | os.O_CLOEXEC)
    group.descriptors["procs"] = [os.open(f / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for f in group.folders]


def _undo(group: CgroupFiles) -> None:
    group.close()
    for folder in group.folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
