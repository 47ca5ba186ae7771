"""What a slot's supervisor is told when it starts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from sandbox.backends.cgroup import CgroupFiles
from sandbox.backends.interpreter import environment, zygote_command

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts")
WARM_S = 50.0


def slot_config(
    packages: Sequence[str],
    *,
    workdir: str,
    temporary: str,
    writable: Sequence[str],
    readable: Sequence[str],
    namespaces: bool,
    group: CgroupFiles | None,
    python: str = sys.executable,
    landlock: bool = True,
    seccomp: bool = True,
    container: dict[str, Any] | None = None,
) -> str:
    """The supervisor's configuration as JSON.

    `writable` directories are emptied between runs (as tmpfs mounted anew if `namespaces`). `landlock` is used
    where the kernel has it; `python` is the interpreter's path as the boundary shows it. `container`: the
    supervisor is the first process of a container that was set up by others, and writes names of users to
    `names` and ends after `life_s`. No secret belongs in here: programs can read it.
    """
    return json.dumps(
        {
            "packages": list(dict.fromkeys(packages)),
            "python": zygote_command(python),
            "environment": environment(workdir, temporary, python),
            "workdir": workdir,
            "writable": list(writable),
            "readable": list(readable),
            "devices": list(DEVICES),
            "namespaces": namespaces,
            "mounts": namespaces and container is None,
            "landlock": landlock,
            "seccomp": seccomp,
            "cgroup": group.descriptors if group else None,
            "warm_s": WARM_S,
            **({"container": True} | container if container else {}),
        }
    )
