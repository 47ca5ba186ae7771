"""Programs that attack their own boundary, to learn what it holds rather than to assume it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sandbox.backends.base import Backend, Probe, Slot, SlotError, Tier
from sandbox.backends.interpreter import environment
from sandbox.schemas import ExecuteRequest, Limits, Status

CANARY_LIMITS = Limits(wall_s=40, cpu_s=10, memory_mb=256, processes=32)

ATTACKS = """
import ctypes, json, os, socket, sys
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

held["host_environment_hidden"] = set(os.environ) <= set(ALLOWED) | {"LC_CTYPE"} and all(
    refused(lambda p=p: environment_of(p)) for p in (1, os.getppid(), HOST_PID))
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


async def _attack(slot: Slot) -> tuple[dict[str, bool], str]:
    """Let the programs attack `slot`. Returns what held, and what went wrong. Raises SlotError."""
    folder = Path.home() if os.access(Path.home(), os.W_OK) else None
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".sandbox-canary-") as file, _listener() as port:
        file.write("secret")
        file.flush()
        facts = {
            "PORT": port,
            "SECRET_FILE": file.name,
            "HOST_PID": os.getpid(),
            "ALLOWED": sorted(environment("", "")),
        }
        header = "".join(f"{name} = {value!r}\n" for name, value in facts.items())
        result = await slot.run(ExecuteRequest(code=ATTACKS, prelude=header, limits=CANARY_LIMITS))
    if result.status is not Status.OK:
        return {"runs": False}, f"the canary ended as {result.status}: {result.stderr[-500:]}"
    checks = {"runs": True} | json.loads(result.stdout)
    tight = CANARY_LIMITS.model_copy(update={"cpu_s": 0.5})
    checks["cpu_limited"] = (await slot.run(ExecuteRequest(code=SPIN, limits=tight))).status is Status.CPU_TIMEOUT
    tight = CANARY_LIMITS.model_copy(update={"wall_s": 1.0})
    bomb = await slot.run(ExecuteRequest(code=BOMB, limits=tight))
    after = await slot.run(ExecuteRequest(code="print(6*7)", limits=CANARY_LIMITS)) if not slot.dirty else None
    checks["fork_bomb_stopped"] = bomb.status is not Status.OK and (after is None or after.stdout == "42\n")
    return checks, ""


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
        slot = await backend.start_slot(bare=True)
        try:
            details = {name: str(value) for name, value in slot.facts().items()}
            wanted = min(wanted, slot.tier)
            checks, complaint = await _attack(slot)
        finally:
            await slot.destroy()
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
