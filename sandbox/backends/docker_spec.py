"""What a slot's container is: every restriction in one place, as the engine's API takes it.

Source of the names: Docker Engine API, `POST /containers/create`.
"""

from __future__ import annotations

import random
from typing import Any

from sandbox.backends.docker_settings import DockerSettings

NAMES = "/run/sandbox"
"""Where the supervisor writes the passwd and group that the image's /etc points at."""
WRITABLE = ("/sandbox", "/tmp", "/dev/shm")
SPARE_PROCESSES = 8
"""Supervisor, warm interpreter, and what a killed run has not yet given back."""

HIDDEN = ("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
          "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/block", "/sys/bus",
          "/sys/class", "/sys/dev", "/sys/devices", "/sys/firmware", "/sys/hypervisor", "/sys/kernel", "/sys/module",
          "/sys/power", "/dev/mqueue")  # fmt: skip
"""What engines hide by default; of /sys all but the control group; and the message queues, where programs of one
slot would find what earlier ones left."""
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def draw_uid(settings: DockerSettings) -> int:
    """A user that no other slot is likely to have."""
    return settings.first_uid + random.SystemRandom().randrange(settings.uids)


def memory_bytes(settings: DockerSettings) -> int:
    """The container's hard limit."""
    return (settings.memory_mb + settings.warm_mb) << 20


def container_spec(
    settings: DockerSettings,
    labels: dict[str, str],
    supervisor: str,
    uid: int,
    cpus: float | None,
    driver: str = "systemd",
) -> dict[str, Any]:
    """The body of the request that makes a slot's container.

    `supervisor`: its configuration (no secret). `driver`: how the engine makes control groups.
    """
    parent = settings.cgroup_parent
    if parent is None:
        parent = "/" if driver == "cgroupfs" else ""
    owned = f"rw,nosuid,nodev,mode=0700,uid={uid},gid={uid}"
    sized = f"{owned},size={settings.disk_mb << 20},nr_inodes={settings.inodes}"
    security = ["no-new-privileges:true"]
    if settings.seccomp is not None:
        security.append(f"seccomp={settings.seccomp.read_text()}")
    host: dict[str, Any] = {
        "AutoRemove": True,
        "NetworkMode": "none",
        "IpcMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": security,
        "Privileged": False,
        "MaskedPaths": list(HIDDEN),
        "ReadonlyPaths": list(READ_ONLY),
        "Memory": memory_bytes(settings),
        "MemorySwap": memory_bytes(settings),
        "PidsLimit": settings.processes + SPARE_PROCESSES,
        "NanoCpus": int((cpus or 0) * 1e9),
        "CgroupParent": parent,
        "Ulimits": [
            {"Name": name, "Soft": value, "Hard": value}
            for name, value in (("core", 0), ("memlock", 0), ("msgqueue", 0), ("nofile", 4096), ("sigpending", 1024))
        ],
        "Tmpfs": {
            # compiled extensions must load from the work directory; shared memory holds no code
            "/sandbox": f"{sized},exec",
            "/tmp": f"{sized},exec",
            "/dev/shm": f"{sized},noexec",
            NAMES: f"rw,nosuid,nodev,noexec,mode=0755,uid={uid},gid={uid},size=16384,nr_inodes=4",
        },
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "Init": False,
    }
    if settings.runtime:
        host["Runtime"] = settings.runtime
    return {
        "Image": settings.image,
        "Cmd": [supervisor],
        "User": f"{uid}:{uid}",
        "Hostname": "sandbox",
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"],
        "Labels": labels,
        "WorkingDir": "/",
        "NetworkDisabled": True,
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "StopTimeout": 1,
        "HostConfig": host,
    }
