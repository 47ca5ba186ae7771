"""Programs that attack their own boundary, to learn what it holds rather than to assume it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sandbox.backends.base import Backend, Probe, Slot, SlotError, Tier
from sandbox.backends.interpreter import environment
from sandbox.schemas import ExecuteRequest, ExecuteResult, Limits, Status

CANARY_LIMITS = Limits(wall_s=40, cpu_s=10, memory_mb=256, processes=32)

ATTACKS = """
import ctypes, hashlib, json, os, socket, sys
held = {}
libc = ctypes.CDLL(None, use_errno=True)

def refused(action):
    try:
        action()
    except OSError:
        return True
    return False

def connect(family, kind, address):
    with socket.socket(family, kind) as s:
        s.settimeout(0.5)
        s.connect(address)
        s.send(b"x")

held["network_blocked"] = all(refused(lambda a=a: connect(*a)) for a in (
    (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", PORT)),
    (socket.AF_INET, socket.SOCK_DGRAM, ("8.8.8.8", 53)),
))
held["host_files_hidden"] = all(refused(lambda p=p: open(p).read()) for p in (SECRET_FILE, "/etc/shadow"))
held["host_files_unwritable"] = all(refused(action) for action in (
    lambda: open(SECRET_FILE, "a"), lambda: os.truncate(SECRET_FILE, 0), lambda: os.chmod(SECRET_FILE, 0o600),
    lambda: open(os.path.join(os.path.dirname(json.__file__), "canary"), "w"),
))

def environment_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()

def tells_nothing(pid):
    try:
        entries = environment_of(pid).split(b"\\0")
    except OSError:
        return True
    return not any(hashlib.sha256(SALT + entry).hexdigest() in HOST_VARIABLES for entry in entries if entry)

def others():
    try:
        names = os.listdir("/proc")
    except OSError:
        names = []  # Landlock shows no list, but a number can be guessed
    return {1, os.getppid(), HOST_PID} | {int(name) for name in names if name.isdigit()} - {os.getpid()}

held["host_environment_hidden"] = set(os.environ) <= set(ALLOWED) | {"LC_CTYPE"} and all(map(tells_nothing, others()))
held["host_processes_hidden"] = refused(lambda: os.kill(HOST_PID, 0)) and refused(lambda: environment_of(HOST_PID))
held["supervisor_protected"] = refused(lambda: os.kill(os.getppid(), 0)) and refused(
    lambda: open(f"/proc/{os.getppid()}/mem", "rb"))

def syscall(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")

def unshare():
    if libc.unshare(0x10000000) < 0:
        raise OSError(ctypes.get_errno(), "refused")

def mount():
    if libc.mount(b"none", os.getcwd().encode(), b"tmpfs", 0, None) < 0:
        raise OSError(ctypes.get_errno(), "refused")

def ptrace():
    pid = os.fork()
    if pid == 0:
        os._exit(0 if libc.ptrace(0, 0, 0, 0) < 0 else 1)
    if os.waitpid(pid, 0)[1]:
        return
    raise OSError("refused")

held["unshare_refused"] = refused(unshare)
held["mount_refused"] = refused(mount)
held["ptrace_refused"] = refused(ptrace)
held["io_uring_refused"] = refused(lambda: syscall(425, 1, ctypes.create_string_buffer(256)))
held["no_new_privileges"] = libc.prctl(39, 0, 0, 0, 0) == 1
capabilities = ctypes.create_string_buffer(24)
held["no_capabilities"] = libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), capabilities) == 0 and not any(
    capabilities.raw)
print(json.dumps(held))
"""

MEMORY = "hoard = []\nwhile True: hoard.append(bytearray(1 << 20))"
FAMILY = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        hoard = bytearray(120 << 20)
        for i in range(0, len(hoard), 4096): hoard[i] = 1
        time.sleep(30)
        os._exit(0)
time.sleep(30)
"""
SPIN = "while True: pass"
BOMB = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"

REQUIRED: dict[Tier, tuple[str, ...]] = {
    Tier.T0: ("runs", "cpu_limited"),
    Tier.T1: ("runs", "cpu_limited", "memory_limited", "network_blocked", "host_files_hidden", "host_files_unwritable",
              "host_environment_hidden", "supervisor_protected", "unshare_refused", "mount_refused", "ptrace_refused",
              "no_new_privileges", "no_capabilities", "fork_bomb_stopped"),
    Tier.T2: ("host_processes_hidden",),
    Tier.T3: ("family_memory_limited",),
}  # fmt: skip
"""What each tier must hold beyond those beneath it."""


def required(tier: Tier) -> list[str]:
    """Every check that `tier` must pass."""
    return [name for level, names in REQUIRED.items() if level <= tier for name in names]


class _Canary:
    """A slot to attack, replaced when it is spent."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.slot: Slot | None = None

    async def fresh(self) -> Slot:
        """The slot, usable. Raises SlotError."""
        if self.slot is not None and self.slot.dirty:
            await self.close()
        if self.slot is None:
            self.slot = await self.backend.start_slot(bare=True)
        return self.slot

    async def run(self, code: str, prelude: str = "", **limits: float) -> ExecuteResult:
        request = ExecuteRequest(code=code, prelude=prelude, limits=CANARY_LIMITS.model_copy(update=limits))
        return await (await self.fresh()).run(request)

    async def close(self) -> None:
        if self.slot is not None:
            await self.slot.destroy()
        self.slot = None


async def _attack(canary: _Canary) -> tuple[dict[str, bool], str]:
    """Let the programs attack. Returns what held, and what went wrong. Raises SlotError."""
    folder = Path.home() if os.access(Path.home(), os.W_OK) else None
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".sandbox-canary-") as file, _listener() as port:
        file.write("secret")
        file.flush()
        facts = {
            "PORT": port,
            "SECRET_FILE": file.name,
            "HOST_PID": os.getpid(),
            "ALLOWED": sorted(environment("", "")),
            "SALT": (salt := os.urandom(16)),
            "HOST_VARIABLES": _digests(salt),
        }
        result = await canary.run(ATTACKS, "".join(f"{name} = {value!r}\n" for name, value in facts.items()))
    if result.status is not Status.OK:
        return {"runs": False}, f"the canary ended as {result.status}: {result.stderr[-500:]}"
    checks = {"runs": True} | json.loads(result.stdout)
    checks["cpu_limited"] = (await canary.run(SPIN, cpu_s=0.5)).status is Status.CPU_TIMEOUT
    try:
        bombed = (await canary.run(BOMB, wall_s=1.0)).status is Status.OK
    except SlotError:
        if canary.backend.tier < Tier.T4:  # a kernel of its own may go down with its programs: the next one is fresh
            raise
        bombed = False
        await canary.close()
    checks["fork_bomb_stopped"] = not bombed and (await canary.run("print(6*7)")).stdout == "42\n"
    return checks, ""


def _digests(salt: bytes) -> list[str]:
    """Of every variable of ours that no program should see, so that one can recognise it but not learn it."""
    harmless = environment("", "").keys()
    entries = [
        name + b"=" + value for name, value in os.environb.items() if name.decode(errors="replace") not in harmless
    ]
    return [hashlib.sha256(salt + entry).hexdigest() for entry in entries]


@contextlib.contextmanager
def _listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def _hoard(backend: Backend, code: str) -> bool:
    """Whether a program that takes more memory than it may is stopped for it (in a slot of its own)."""
    slot = await backend.start_slot(bare=True)
    try:
        result = await slot.run(ExecuteRequest(code=code, limits=CANARY_LIMITS))
    finally:
        await slot.destroy()
    return result.status is Status.OOM or (result.error is not None and result.error.type == "MemoryError")


async def hoards_held(backend: Backend, beyond_mb: int) -> bool:
    """Whether a program is stopped at the boundary's own memory limit though its request allows `beyond_mb`."""
    slot = await backend.start_slot(bare=True)
    try:
        limits = CANARY_LIMITS.model_copy(update={"memory_mb": beyond_mb})
        result = await slot.run(ExecuteRequest(code=MEMORY, limits=limits))
    finally:
        await slot.destroy()
    return result.status is Status.OOM and result.max_rss_mb < beyond_mb


async def try_out(backend: Backend, wanted: Tier, remedy: str) -> Probe:
    """Start slots of `backend` and let the canaries attack them; the tier is what they prove, `wanted` at most."""
    checks: dict[str, bool] = {}
    complaint = ""
    details: dict[str, str] = {}
    try:
        canary = _Canary(backend)
        try:
            slot = await canary.fresh()
            details = {name: str(value) for name, value in slot.facts().items()}
            wanted = min(wanted, slot.tier)
            checks, complaint = await _attack(canary)
        finally:
            await canary.close()
        if checks["runs"]:
            checks["memory_limited"] = await _hoard(backend, MEMORY)
            checks["family_memory_limited"] = await _hoard(backend, FAMILY)
    except (SlotError, OSError) as error:
        return Probe(backend.name, None, checks, f"{error}. {remedy}", details)
    tier = next((t for t in sorted(Tier, reverse=True) if t <= wanted and _holds(t, wanted, checks)), None)
    failed = [name for name in required(wanted) if not checks.get(name, False)]
    reason = complaint or (f"did not hold: {', '.join(failed)}. {remedy}" if failed else "")
    return Probe(backend.name, tier, checks, reason, details)


def _holds(tier: Tier, wanted: Tier, checks: dict[str, bool]) -> bool:
    return tier in REQUIRED and all(checks.get(name, False) for name in required(tier))
