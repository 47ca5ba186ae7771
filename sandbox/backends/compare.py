"""What each isolation tier guarantees on this machine, measured side by side.

Beside the canaries, which decide the tier, small programs find out what a tier does differently without being
weaker for it: whether a full disk is an error or the end, whether processes may share memory, and the like.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.backends.base import Backend, Probe, Slot, SlotError
from sandbox.backends.canary import CANARY_LIMITS
from sandbox.schemas import ExecuteRequest, ExecuteResult, Status

CHECKS = {
    "network_blocked": "no network, loopback and the host's own services included",
    "host_files_hidden": "the host's files cannot be read",
    "host_files_unwritable": "the host's files cannot be changed",
    "host_environment_hidden": "no environment variable of the host, of any process",
    "host_processes_hidden": "processes outside cannot be seen or signalled",
    "supervisor_protected": "what watches the program cannot be signalled or read",
    "unshare_refused": "no namespaces of its own",
    "mount_refused": "nothing can be mounted",
    "ptrace_refused": "no tracing of processes",
    "io_uring_refused": "no io_uring",
    "no_new_privileges": "set-uid programs gain nothing",
    "no_capabilities": "no capability",
    "cpu_limited": "CPU time of all its processes is limited",
    "memory_limited": "memory of one process is limited",
    "family_memory_limited": "memory of all its processes together is limited",
    "container_memory_limited": "and by the kernel too, should the supervisor fail",
    "fork_bomb_stopped": "a fork bomb ends, and the slot goes on",
}
"""Every canary, in words."""


@dataclass(frozen=True)
class Trait:
    """Something a program can find out. Its last line of output is what it found."""

    name: str
    words: str
    code: str
    kept: bool = False
    """Whether it must be false here for the guarantee in `words` to hold."""


TRAITS = (
    Trait("disk_full_is_enospc", "a full disk is an error the program sees, not its end",
          "import errno\ntry:\n  for i in range(99): open(f'f{i}', 'wb').write(bytes(1 << 20))\n"
          "except OSError as e: print(e.errno == errno.ENOSPC)"),
    Trait("process_limit_is_eagain", "one process too many is an error the program sees",
          "import errno, os, time\ntry:\n  for _ in range(200):\n    if os.fork() == 0: time.sleep(9); os._exit(0)\n"
          "except OSError as e: print(e.errno == errno.EAGAIN)"),
    Trait("pools_work", "multiprocessing pools, locks and shared memory work",
          "import multiprocessing\nwith multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, 2]) == [1, 2])"),
    Trait("metadata_can_change", "file modes and times can be changed by path",
          "import os\nopen('f', 'w').close(); os.chmod('f', 0o600); os.utime('f'); print(True)"),
    Trait("host_names_hidden", "not even the existence of a host file can be learnt",
          "import os\nprint(os.path.exists(SECRET_FILE))", kept=True),
    Trait("host_name_hidden", "the host's name cannot be learnt",
          "import os, socket\nprint(HOST in (os.uname().nodename, socket.gethostname()))", kept=True),
    Trait("own_kernel", "system calls meet another kernel than the host's",
          "import os\nprint((os.uname().release, os.uname().version) == KERNEL)", kept=True),
)  # fmt: skip


@dataclass
class Column:
    """One backend's results: check or trait to whether it holds; None where it could not be tried."""

    backend: str
    probe: Probe
    held: dict[str, bool | None] = field(default_factory=dict)


async def compare(backends: Sequence[Backend]) -> list[Column]:
    """Probe every backend, and let the traits' programs run in those that can be used."""
    columns = []
    for backend in backends:
        probe = await backend.probe()
        column = Column(backend.name, probe, {name: probe.checks.get(name) for name in CHECKS})
        if probe.tier is not None:
            await _traits(backend, column)
        columns.append(column)
    return columns


async def _traits(backend: Backend, column: Column) -> None:
    folder = Path.home() if os.access(Path.home(), os.W_OK) else None
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".sandbox-canary-") as file:
        name = platform.uname()
        facts = {"SECRET_FILE": file.name, "HOST": name.node, "KERNEL": (name.release, name.version)}
        prelude = "".join(f"{key} = {value!r}\n" for key, value in facts.items())
        slot: Slot | None = None
        for trait in TRAITS:
            try:
                slot = slot or await backend.start_slot(bare=True)
                request = ExecuteRequest(code=trait.code, prelude=prelude, limits=CANARY_LIMITS)
                column.held[trait.name] = _found(trait, await slot.run(request))
            except SlotError:
                column.held[trait.name] = None
            if slot is not None and slot.dirty:
                await slot.destroy()
                slot = None
        if slot is not None:
            await slot.destroy()


def _found(trait: Trait, result: ExecuteResult) -> bool:
    said = result.stdout.strip().rpartition("\n")[2]
    if trait.kept:
        return said == "False"
    return result.status is Status.OK and said == "True"


def table(columns: Sequence[Column]) -> str:
    """The results as text: a row for each guarantee, a column for each backend."""
    rows = [("", [column.backend for column in columns])]
    rows.append(("tier reached", [c.probe.tier.name if c.probe.tier is not None else "none" for c in columns]))
    for name, words in (*CHECKS.items(), *((trait.name, trait.words) for trait in TRAITS)):
        rows.append((f"{name:27s}{words}", [_word(column.held.get(name)) for column in columns]))
    width = max(len(left) for left, _ in rows) + 2
    lines = [left.ljust(width) + "".join(cell.ljust(10) for cell in cells).rstrip() for left, cells in rows]
    for column in columns:
        if column.probe.reason:
            lines.append(f"{column.backend}: {column.probe.reason}")
    return "\n".join(lines)


def _word(held: bool | None) -> str:
    return {True: "yes", False: "NO", None: "-"}[held]
