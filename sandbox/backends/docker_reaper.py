"""Whose a container is, and which of them nobody owns any more.

Everything is in labels, given when the container is made: a crash at any later moment leaves nothing unnamed. A
process id alone is used again; with the machine's boot, the pid namespace and the start time it is not.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.backends.docker_settings import DockerSettings

if TYPE_CHECKING:
    from docker import APIClient

log = logging.getLogger("sandbox")

MARK, OWNER, EXPIRES = "agent-rl.sandbox", "agent-rl.sandbox.owner", "agent-rl.sandbox.expires"


@dataclass(frozen=True)
class Owner:
    """A process, named for as long as the machine keeps its disk."""

    boot: str
    namespace: str
    """Its pid namespace: the same number means another process in another one."""
    pid: int
    started: str
    """Clock ticks from boot to its start."""

    @classmethod
    def of(cls, pid: int) -> Owner | None:
        """The process `pid` of our own pid namespace; None if there is none."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return cls(boot, os.readlink("/proc/self/ns/pid"), pid, fields[19])
        except OSError:
            return None

    def __str__(self) -> str:
        return f"{self.boot} {self.namespace} {self.pid} {self.started}"

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """The inverse of `str`; None for anything else."""
        parts = text.split(" ")
        if len(parts) != 4 or not parts[2].isdigit():
            return None
        return cls(parts[0], parts[1], int(parts[2]), parts[3])


def slot_labels(settings: DockerSettings) -> dict[str, str]:
    """Labels of a container that this process makes now."""
    return {MARK: "1", OWNER: str(Owner.of(os.getpid())), EXPIRES: str(int(time.time()) + settings.life_s)}


def abandoned(labels: Mapping[str, str], now: float) -> str:
    """Why a slot's container has no owner any more; empty if it may have one.

    An owner in another pid namespace (a service in a container of its own) cannot be looked up: its containers
    end with its connection, or when they expire.
    """
    try:
        expires = int(labels.get(EXPIRES, ""))
    except ValueError:
        return "it does not say when it expires"
    if expires < now:
        return "it has expired"
    owner = Owner.parse(labels.get(OWNER, ""))
    if owner is None:
        return "it does not say whose it is"
    us = Owner.of(os.getpid())
    if us is None:
        return ""
    if owner.boot != us.boot:
        return "its owner ended with an earlier boot"
    if owner.namespace == us.namespace and Owner.of(owner.pid) != owner:
        return "its owner is gone"
    return ""


def remove(client: APIClient, container: str) -> None:
    """End and remove a container, whatever state it is in."""
    from docker.errors import APIError, NotFound

    try:
        client.remove_container(container, force=True)
    except NotFound:
        return
    except APIError as error:
        if error.response is None or error.response.status_code != 409:  # 409: its removal is under way
            raise


def reap(client: APIClient) -> int:
    """Remove every slot that nobody owns. Returns how many."""
    from docker.errors import DockerException

    removed = 0
    for found in client.containers(all=True, filters={"label": f"{MARK}=1"}):
        reason = abandoned(found.get("Labels") or {}, time.time())
        if not reason:
            continue
        log.warning("removing the container %s of an earlier service: %s", found["Id"][:12], reason)
        try:
            remove(client, found["Id"])
            removed += 1
        except DockerException as error:
            log.error("the container %s cannot be removed: %s", found["Id"][:12], error)
    return removed
