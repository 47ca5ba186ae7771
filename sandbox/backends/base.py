"""The contract of an isolation tier: how a slot is started, asked, reset and destroyed.

A slot is one boundary (a container, a bubblewrap namespace, a Landlock domain) with our supervisor inside.
The service owns slots and decides who may use them; a slot runs one program at a time and holds at most
one session. Everything inside a slot is enforced by the supervisor; the host is the second line: a slot
that does not answer within a run's limit plus grace is destroyed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from sandbox.schemas import ExecuteRequest, ExecuteResult, Limits


class Tier(IntEnum):
    """How strong a boundary is; higher is stronger."""

    T0 = 0
    """Resource limits only: against accidents, not against malice."""
    T1 = 1
    """No user namespaces: Landlock, seccomp, hard resource limits."""
    T2 = 2
    """Namespaces (user, mount, pid, network, ipc, uts), seccomp, hard resource limits; no cgroup."""
    T3 = 3
    """T2 or a hardened container, with cgroup limits over the whole run."""
    T4 = 4
    """A kernel of its own: gVisor or Kata."""


@dataclass(frozen=True)
class Probe:
    """What a tier did when it was tried on this machine."""

    backend: str
    tier: Tier | None
    """The tier reached; None if it cannot be used here."""
    checks: dict[str, bool] = field(default_factory=dict)
    """Each canary (`network_blocked`, `host_files_hidden`, `memory_limited` ...) and whether it held."""
    reason: str = ""
    """Why it cannot be used or which checks failed, in plain words, and what to install or change."""
    details: dict[str, str] = field(default_factory=dict)


class SlotError(Exception):
    """The slot failed (not the program in it). The service destroys the slot and answers `sandbox_error`."""


class Slot(Protocol):
    """One boundary with a warm interpreter. Not safe for concurrent use, but for `interrupt`."""

    tier: Tier
    runs: int
    """Programs run so far."""
    dirty: bool
    """Must be destroyed rather than used again (out of memory, failed reset, lost contact)."""

    def facts(self) -> dict[str, Any]:
        """What the warm interpreter is: versions, memory, packages that could not be imported."""
        ...

    async def run(self, request: ExecuteRequest) -> ExecuteResult:
        """Run one program in a fresh fork, then reset the slot. Raises SlotError."""
        ...

    async def open_session(
        self, limits_memory_mb: int, *, limits: Limits | None = None, checkpoint: bool = True
    ) -> None:
        """Fork the interpreter that will hold the session's state.

        Its memory, processes, open files, file size, stack, disk and inodes are fixed here (`limits`, the
        defaults if None); time and output limits are each turn's own. With `checkpoint` a turn that is killed
        leaves the state before it (`rolled_back`) where no thread or process of an earlier turn is alive.
        Files are not rolled back.
        """
        ...

    async def run_in_session(self, request: ExecuteRequest) -> ExecuteResult:
        """Run one turn of the open session; between turns its processes are stopped."""
        ...

    async def interrupt(self) -> None:
        """Interrupt the running turn or program as Ctrl-C would; it is killed if it does not end soon."""
        ...

    async def cancel(self) -> None:
        """Kill the running program now; `run` then returns status `cancelled`."""
        ...

    async def close_session(self) -> None:
        """End the session and reset the slot."""
        ...

    async def destroy(self) -> None:
        """Kill everything in the boundary and wait until it is gone; idempotent, bounded in time."""
        ...


class Backend(Protocol):
    """One way of isolating."""

    name: str
    tier: Tier
    """The most it can reach."""

    async def probe(self) -> Probe:
        """Try it: start a slot and let canary programs attack it."""
        ...

    async def start_slot(self, *, bare: bool = False) -> Slot:
        """Start one boundary with a warm zygote inside (`bare`: without packages, for the canaries).

        Raises SlotError.
        """
        ...
