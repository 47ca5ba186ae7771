"""Kernel calls that confine a process: capabilities, seccomp, Landlock, mounts. Linux, ctypes only.

Sources: seccomp(2), landlock(7), capabilities(7), mount_namespaces(7); `linux/seccomp.h`,
`linux/landlock.h`, `asm/unistd.h`. The filter refuses by name what a program has no business calling
and leaves the rest to namespaces, Landlock and resource limits.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence

libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_REC, MS_PRIVATE, MNT_DETACH = 2, 4, 32, 1 << 14, 1 << 18, 2
CLONE_NEWNS = 0x00020000
CLONE_ANY_NS = 0x7E020080
"""Namespace flags of clone(2): NEWNS, NEWTIME, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, argument: int = 0) -> None:
    """prctl(2) with one argument. Raises OSError."""
    _check(libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0), f"prctl({option})")


def unshare_mounts() -> None:
    """A mount namespace of our own, so that its tmpfs may be remade."""
    _check(libc.unshare(CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    _check(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "make / private")


def mount_tmpfs(path: str, size_bytes: int, inodes: int, remount: bool = False) -> None:
    """A sized tmpfs on `path`, or new sizes for the one that is there."""
    flags = MS_NOSUID | MS_NODEV | (MS_REMOUNT if remount else 0)
    options = f"size={size_bytes},nr_inodes={inodes}" + ("" if remount else ",mode=1777")
    _check(
        libc.mount(b"tmpfs", path.encode(), b"tmpfs", ctypes.c_ulong(flags), options.encode()),
        f"mount tmpfs on {path}",
    )


def unmount(path: str) -> None:
    """Detach the file system on `path`."""
    _check(libc.umount2(path.encode(), MNT_DETACH), f"unmount {path}")


def drop_capabilities() -> None:
    """Give up every capability, for this process and whatever it executes."""
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break  # past the last one the kernel knows, or not ours to drop: the set below is emptied anyway
    header = struct.pack("=Ii", 0x20080522, 0)
    _check(libc.capset(header, struct.pack("=6I", *[0] * 6)), "capset")


# --- seccomp -------------------------------------------------------------------------------------------------

SYSCALLS: dict[str, tuple[int, int]] = {
    # name: (x86_64, aarch64); -1 where the architecture has none
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "syslog": (103, 116), "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, -1),
    "ioperm": (173, -1), "modify_ldt": (154, -1), "personality": (135, 92), "mlock": (149, 228), "mlock2": (325, 284),
    "mlockall": (151, 230), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "semget": (64, 190), "semop": (65, 193), "semtimedop": (220, 192), "semctl": (66, 191), "msgget": (68, 186),
    "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "fanotify_init": (300, 262), "lookup_dcookie": (212, 18), "vhangup": (153, 58), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "uselib": (134, -1), "ustat": (136, -1), "sysfs": (139, -1), "_sysctl": (156, -1),
    "vmsplice": (278, 75),
    # answered otherwise than by a plain refusal, or refused only where paths are all that separates us
    "clone": (56, 220), "clone3": (435, 435), "socket": (41, 198), "ioctl": (16, 29), "kill": (62, 129),
    "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "chmod": (90, -1), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1),
    "lchown": (94, -1), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "truncate": (76, 45),
    "prlimit64": (302, 261), "setpriority": (141, 140), "ioprio_set": (251, 30),
}  # fmt: skip
SPECIAL = ("clone", "clone3", "socket", "ioctl", "kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
           "pidfd_open", "prlimit64", "setpriority", "ioprio_set")  # fmt: skip
METADATA = ("chmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchownat", "setxattr", "lsetxattr", "removexattr",
            "lremovexattr", "utime", "utimes", "futimesat", "truncate")  # fmt: skip
"""By path; Landlock does not rule these, so they are refused where the host's files are in sight."""

_ARCH = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06


def filter_program(
    protected: Sequence[int], path_rules_only: bool, own_pid_only: bool = False, machine: str = ""
) -> bytes:
    """A BPF program (`struct sock_filter[]`) for seccomp.

    `protected`: pids that may not be signalled (nor everything at once by kill(-1)). `path_rules_only`: the
    host's file system and network are in sight, so metadata calls by path and every new socket are refused;
    otherwise only AF_UNIX sockets may be made. `own_pid_only`: no process but the caller's own may be signalled.
    Raises OSError on an architecture it does not know.
    """
    machine = machine or platform.machine()
    if machine not in _ARCH:
        raise OSError(errno.ENOSYS, f"no system-call table for {machine} (x86_64 and aarch64 are known)")
    arch, column = _ARCH[machine]
    code: list[tuple[int, int, int, int]] = []

    def emit(op: int, k: int, jt: int = 0, jf: int = 0) -> None:
        code.append((op, jt, jf, k & 0xFFFFFFFF))

    def number(name: str) -> int:
        return SYSCALLS[name][column]

    def argument(index: int) -> int:
        return 16 + 8 * index  # offset of the low half in struct seccomp_data

    refuse = _ERRNO | errno.EPERM
    emit(_LOAD, 4)
    emit(_JEQ, arch, 1, 0)
    emit(_RET, _KILL)
    emit(_LOAD, 0)
    if machine == "x86_64":
        emit(_JGE, 0x40000000, 0, 1)  # the x32 numbers
        emit(_RET, _ERRNO | errno.ENOSYS)
    plain = [n for n in SYSCALLS if n not in SPECIAL and (path_rules_only or n not in METADATA)]
    for name in plain:
        if number(name) >= 0:
            emit(_JEQ, number(name), 0, 1)
            emit(_RET, refuse)
    # glibc falls back to clone(2), whose flags a filter can read
    emit(_JEQ, number("clone3"), 0, 1)
    emit(_RET, _ERRNO | errno.ENOSYS)
    emit(_JEQ, number("clone"), 0, 3)
    emit(_LOAD, argument(0))
    emit(_JSET, CLONE_ANY_NS, 0, 1)
    emit(_RET, refuse)
    emit(_LOAD, 0)
    emit(_JEQ, number("socket"), 0, 4 if not path_rules_only else 1)
    if path_rules_only:
        emit(_RET, refuse)
    else:
        emit(_LOAD, argument(0))
        emit(_JEQ, 1, 1, 0)
        emit(_RET, refuse)
        emit(_LOAD, 0)
    emit(_JEQ, number("ioctl"), 0, 5)
    emit(_LOAD, argument(1))
    emit(_JEQ, 0x5412, 1, 0)  # TIOCSTI
    emit(_JEQ, 0x541C, 0, 1)  # TIOCLINUX
    emit(_RET, refuse)
    emit(_LOAD, 0)
    signalled = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open")
    others = ("prlimit64", "setpriority", "ioprio_set")
    for name in (*signalled, *others):
        # the pid is argument 0, but for these two
        where = argument(1) if name in ("setpriority", "ioprio_set") else argument(0)
        if own_pid_only and name in signalled:
            owned = name in ("kill", "tgkill", "pidfd_open")
            allowed = [os.getpid(), *([0] if name == "kill" else [])] if owned else []
            emit(_JEQ, number(name), 0, len(allowed) + 3)
            emit(_LOAD, where)
            for i, pid in enumerate(allowed):
                emit(_JEQ, pid, len(allowed) - i, 0)
            emit(_RET, refuse)
            emit(_RET, _ALLOW)
            continue
        banned = [*protected, *(-pid for pid in protected), -1]
        emit(_JEQ, number(name), 0, len(banned) + 3)
        emit(_LOAD, where)
        for i, pid in enumerate(banned):
            emit(_JEQ, pid, len(banned) - i, 0)
        emit(_RET, _ALLOW)
        emit(_RET, refuse)
    emit(_RET, _ALLOW)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def install_filter(program: bytes) -> None:
    """Put `program` on this process for good (needs no_new_privs). Raises OSError."""
    buffer = ctypes.create_string_buffer(program, len(program))
    sock_fprog = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    _check(libc.prctl(22, ctypes.c_ulong(2), sock_fprog, 0, 0), "prctl(PR_SET_SECCOMP)")


# --- Landlock ------------------------------------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR


def landlock_abi() -> int:
    """Version of Landlock here; 0 where there is none."""
    return max(0, libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def _handled(abi: int) -> int:
    """Every access to files that this version can rule."""
    return (1 << (13 + (abi >= 2) + (abi >= 3) + (abi >= 5))) - 1


def landlock_ruleset(readable: Sequence[str], writable: Sequence[str], devices: Sequence[str] = ()) -> int:
    """A rule set that allows reading and executing beneath `readable`, everything beneath `writable`.

    `devices` may be read and written. Paths that do not exist are passed over. TCP, abstract Unix sockets and
    signals beyond the domain are refused where the kernel can. Returns a file descriptor. Raises OSError.
    """
    abi = landlock_abi()
    if not abi:
        raise OSError(errno.ENOSYS, "the kernel has no Landlock")
    handled = _handled(abi)
    attributes = struct.pack("=QQQ", handled, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _check(libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0), "landlock_create_ruleset")
    # the right to make device nodes (bits 6 and 11) is given nowhere
    everything = handled & ~(1 << 6 | 1 << 11)
    groups = ((readable, READ), (writable, everything), (devices, READ_FILE | WRITE_FILE | 1 << 15))
    for paths, rights in groups:
        for path in paths:
            try:
                target = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            mask = handled & (rights if os.path.isdir(path) else rights & _FILE_RIGHTS)
            rule = struct.pack("=Qi", mask, target)
            try:
                _check(libc.syscall(_ADD_RULE, ruleset, 1, rule, 0), f"landlock_add_rule({path})")
            finally:
                os.close(target)
    return ruleset


def landlock_restrict(ruleset: int) -> None:
    """Enter a new domain under `ruleset` (needs no_new_privs). Raises OSError."""
    _check(libc.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
