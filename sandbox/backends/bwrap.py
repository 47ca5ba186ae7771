"""Bubblewrap: namespaces (user, mount, pid, network, ipc, uts), a root of a few read-only binds, no host home.

Tier T3 where a control group can be made for each slot, T2 otherwise.

The layout is flat: the supervisor is PID 1, the warm interpreter its child, a run the interpreter's fork in
the same namespaces; after a run everything is killed and whatever tmpfs was written to is mounted anew. Pid and
mount namespaces of each run's own were measured against it (numpy and sympy warm, medians of interleaved rounds
on two busy cores): 3.7 against 3.2 ms of CPU a run and 21 against 13 ms of wall time, since the kernel waits
for grace periods as it takes namespaces down, and a program that were their PID 1 would ignore the signals it
sends itself (`os.abort`), so that a second fork would be due. Remounting all tmpfs each time costs 0.1 ms.
What namespaces of its own would add is had otherwise: no process forks while it is killed (`pids.max` set to 0,
or as a last resort one `kill(-1)` of PID 1), and Landlock and seccomp keep signals from the interpreter.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

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
    placed,
    supervisor_command,
)
from sandbox.backends.supervised import SupervisedSlot, unique_name

MOUNT = "/opt/sandbox"
PASSWD = "root:x:0:0:root:/:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/sandbox:/usr/sbin/nologin\n"
GROUP = "root:x:0:\nnogroup:x:65534:\n"


def bwrap_command(program: str, passwd: int, group: int) -> list[str]:
    """The boundary, up to and including `--`. `passwd`, `group`: descriptors of those files' contents."""
    command = [
        program, "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
        "--unshare-cgroup-try", "--disable-userns", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox",
        "--new-session", "--die-with-parent", "--as-pid-1", "--clearenv", "--setenv", "LANG", "C.UTF-8",
        # the supervisor mounts the tmpfs of each run; the interpreter gives up every capability
        "--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN",
    ]  # fmt: skip
    for path in SYSTEM:
        command += ["--ro-bind-try", path, path]
    for path in TOP:
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            command += ["--ro-bind", path, path]
    for path in interpreter_folders():
        command += ["--ro-bind", path, placed(path)]
    command += ["--ro-bind", str(INSIDE), MOUNT]
    command += ["--ro-bind-data", str(passwd), "/etc/passwd", "--ro-bind-data", str(group), "/etc/group"]
    command += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--dir",
        "/tmp",
        "--dir",
        "/sandbox",
        "--symlink",
        "/tmp",
        "/var/tmp",
    ]
    command += ["--chdir", "/", "--remount-ro", "/dev", "--remount-ro", "/", "--"]
    return command


class BwrapBackend:
    """See the module."""

    name = "bwrap"
    tier = Tier.T3

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
        remedy = (
            "bwrap needs the package `bubblewrap` (0.8 or newer) and user namespaces "
            "(on Ubuntu 23.10 and later an AppArmor profile for bwrap or "
            "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`; in a container, a seccomp profile that allows "
            "them); T3 also needs a control group this user may write, e.g. "
            "`systemd-run --user --scope -p Delegate=yes`"
        )
        return await try_out(self, Tier.T3, remedy)

    async def start_slot(self, *, bare: bool = False) -> SupervisedSlot:
        program = shutil.which("bwrap")
        if program is None:
            raise SlotError("bubblewrap is not installed (package `bubblewrap`)")
        group = make_cgroup(unique_name(), self.cpus) if self.cgroups else None
        tier = Tier.T3 if group and "pids_max" in group.descriptors else Tier.T2
        config = slot_config(
            () if bare else self.packages,
            workdir="/sandbox",
            temporary="/tmp",
            writable=["/sandbox", "/tmp", "/dev/shm"],
            readable=["/"],
            namespaces=True,
            group=group,
            python=placed(sys.executable),
        )
        passwd, groups = _memory_file(PASSWD), _memory_file(GROUP)
        opened = [passwd, groups, *(group.all_descriptors() if group else [])]

        async def release() -> None:
            if group:
                await group.remove()

        try:
            command = [
                *bwrap_command(program, passwd, groups),
                *supervisor_command(MOUNT, placed(sys.executable)),
                config,
            ]
            return await SupervisedSlot.start(command, self.name, tier, release, opened)
        finally:
            os.close(passwd)
            os.close(groups)
            if group:
                group.close()


def _memory_file(text: str) -> int:
    descriptor = os.memfd_create("data", os.MFD_CLOEXEC)
    os.write(descriptor, text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
