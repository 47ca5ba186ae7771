"""The seccomp program decides as meant, by an interpreter of classic BPF."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.inside.confine import METADATA, SPECIAL, SYSCALLS, filter_program

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}


def decide(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """What the kernel would answer (struct seccomp_data: nr, arch, instruction pointer, six arguments)."""
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=iIQ6Q", number, arch, 0, *(value & (1 << 64) - 1 for value in values))
    accumulator = position = 0
    while True:
        code, jump_true, jump_false, k = struct.unpack_from("=HBBI", program, position * 8)
        position += 1
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, k)[0]
        elif code == 0x06:
            return k
        else:
            held = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
            position += jump_true if held else jump_false


def number(name: str, machine: str) -> int:
    return SYSCALLS[name][COLUMN[machine]]


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize("paths", [True, False])
def test_every_listed_call_is_refused(machine: str, paths: bool) -> None:
    program = filter_program([7, 1], paths, machine=machine)
    for name in SYSCALLS:
        if name in SPECIAL or number(name, machine) < 0:
            continue
        expected = ALLOW if name in METADATA and not paths else EPERM
        assert decide(program, ARCHITECTURES[machine], number(name, machine)) == expected, name


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_sockets_clones_and_signals_depend_on_their_arguments(machine: str) -> None:
    arch = ARCHITECTURES[machine]
    spaced, sighted = (filter_program([7, 1], paths, machine=machine) for paths in (False, True))

    def call(program: bytes, name: str, *arguments: int) -> int:
        return decide(program, arch, number(name, machine), *arguments)

    assert [call(spaced, "socket", family) for family in (1, 2, 10, 16, 38, 40)] == [ALLOW, *[EPERM] * 5]
    assert call(sighted, "socket", 1) == EPERM
    assert call(spaced, "clone3") == ENOSYS
    assert call(spaced, "clone", 17) == ALLOW and call(spaced, "clone", 0x3D0F00) == ALLOW
    assert all(call(spaced, "clone", 17 | flag) == EPERM for flag in (0x20000, 0x10000000, 0x20000000, 0x40000000))
    for pid in (7, 1, -7, -1):
        assert call(spaced, "kill", pid, 9) == EPERM
    assert call(spaced, "kill", 8, 9) == ALLOW and call(spaced, "kill", 0, 9) == ALLOW
    assert call(spaced, "tgkill", 7, 7, 9) == EPERM and call(spaced, "tgkill", 8, 8, 6) == ALLOW
    assert call(spaced, "pidfd_open", 7) == EPERM and call(spaced, "prlimit64", 1) == EPERM
    assert call(spaced, "setpriority", 0, 7) == EPERM and call(spaced, "setpriority", 0, 0) == ALLOW
    assert call(spaced, "ioctl", 0, 0x5412) == EPERM and call(spaced, "ioctl", 0, 0x5401) == ALLOW


def test_where_landlock_cannot_scope_signals_the_filter_allows_only_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: 4321)
    program = filter_program([7], True, own_pid_only=True, machine="x86_64")

    def call(name: str, *arguments: int) -> int:
        return decide(program, ARCHITECTURES["x86_64"], number(name, "x86_64"), *arguments)

    assert call("kill", 4321, 15) == ALLOW and call("kill", 0, 15) == ALLOW and call("tgkill", 4321, 1, 6) == ALLOW
    assert {call("kill", pid) for pid in (1, 5, -1, -5)} == {EPERM}
    assert call("tkill", 4321) == EPERM and call("tgkill", 1, 1, 9) == EPERM and call("pidfd_open", 5) == EPERM


@settings(deadline=None)
@given(st.integers(0, 700))
def test_foreign_architectures_are_killed_and_x32_is_unknown(call: int) -> None:
    program = filter_program([7], False, machine="x86_64")
    assert decide(program, 0x40000003, call) == KILL  # i386
    assert decide(program, ARCHITECTURES["x86_64"], 0x40000000 | call) == ENOSYS
    known = {numbers[0] for numbers in SYSCALLS.values()}
    if call not in known:
        assert decide(program, ARCHITECTURES["x86_64"], call) == ALLOW


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(OSError, match="riscv64"):
        filter_program([7], False, machine="riscv64")
