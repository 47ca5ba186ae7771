"""PID 1 of a slot: deadlines, pipes, kills, memory and output limits, reset. Standard library, one thread.

Speaks frames over stdin and stdout with the host: `!II` (lengths of header and body), a JSON header, raw
bytes. End of file on stdin means that the host has gone: the supervisor exits and, as the init of its
namespace or by the parent-death signal of the zygote, takes everything with it. It trusts nothing from a
program but bytes: how a run ended comes from wait4(2), clocks and counters.

Layout. The zygote is this process's child and the subreaper of whatever a run leaves, so that "no child
left" is an exact, cheap test that nothing of the run is alive.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import confine  # noqa: E402

sys.path.remove(HERE)

FRAME = struct.Struct("!II")
SETUP_S = 10.0
"""Longest time from fork to the program's first instruction."""
KILL_S = 3.0
"""Longest wait for a killed run to be gone."""
WATCH_S = 0.05
DRAIN_BYTES = 1 << 16
MAX_REPORT = 4 << 20
FETCH_BYTES, FETCH_FILES = 10 << 20, 100


class Capture:
    """What a stream wrote: head and tail up to `limit` bytes, the number of all."""

    def __init__(self, descriptor: int, limit: int, flood: int) -> None:
        self.descriptor, self.limit, self.flood = descriptor, limit, flood
        self.total = 0
        self.kept = bytearray()
        self.tail = bytearray()

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        room = self.limit - len(self.kept)
        if not self.tail and len(data) <= room:
            self.kept += data
            return
        if not self.tail and room > 0:
            self.kept += data[:room]
            data = data[room:]
        self.tail += data
        half = self.limit - self.limit // 2
        if len(self.tail) > half + (1 << 20):
            del self.tail[:-half]

    def read(self, everything: bool) -> bool:
        """Read what is there (at most one piece unless `everything`); False at the end of the stream."""
        while True:
            try:
                data = os.read(self.descriptor, DRAIN_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.feed(data)
            if not everything or self.flooded:
                return True

    @property
    def flooded(self) -> bool:
        return self.total > self.flood

    def parts(self) -> tuple[bytes, bytes]:
        """(head, tail); the tail is empty when nothing was dropped."""
        if self.total <= self.limit:
            return bytes(self.kept), b""
        half = self.limit // 2
        # the kept bytes beyond the head are older than the tail
        recent = (bytes(self.kept[half:]) + bytes(self.tail))[-(self.limit - half) :] if self.limit else b""
        return bytes(self.kept[:half]), recent


class Run:
    """One program, or one turn, in flight."""

    def __init__(self, limits: dict[str, Any], out: Capture, err: Capture, report: socket.socket) -> None:
        self.limits, self.out, self.err, self.report = limits, out, err, report
        self.begun: float | None = None
        self.compiled = False
        self.deadline = time.monotonic() + SETUP_S
        self.reason: str | None = None
        self.killed_at: float | None = None
        self.outcome: dict[str, Any] = {}
        self.exited: dict[str, Any] | None = None
        self.pid: int | None = None
        self.buffer = b""
        self.ended: float | None = None
        self.notes: list[str] = []

    def hear(self) -> None:
        """Lines of the program's own report; malformed ones are its own loss."""
        try:
            data = self.report.recv(DRAIN_BYTES)
        except (BlockingIOError, ConnectionResetError):
            return
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        if len(self.buffer) > MAX_REPORT:
            self.buffer = b""
        for line in lines:
            if line == b"started" and self.begun is None:
                self.begun = time.monotonic()
                self.deadline = self.begun + self.limits["wall_s"]
            elif line == b"compiled":
                self.compiled = True
            elif not self.outcome:
                with contextlib.suppress(ValueError):
                    outcome = json.loads(line)
                    if isinstance(outcome, dict):
                        self.outcome = outcome


class HostGone(Exception):
    """End of file from the host."""


class Supervisor:
    """The slot's loop."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.fresh = True
        self.cgroup = Cgroup(config["cgroup"]) if config.get("cgroup") else None
        self.sizes = (0, 0)

    # --- start ---

    def start(self) -> dict[str, Any]:
        """Own mounts, then the zygote; returns what it said when warm."""
        confine.prctl(confine.PR_SET_DUMPABLE, 0)
        confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 1)
        if self.config["mounts"]:
            confine.unshare_mounts()
            self.set_sizes(64 << 20, 4096, first=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.zygote = ours
        self.zygote_pid = os.fork()
        if self.zygote_pid == 0:
            try:
                self.become_zygote(theirs)
            finally:
                os._exit(127)
        theirs.close()
        ours.settimeout(self.config["warm_s"])
        raw, _, _, _ = socket.recv_fds(ours, 1 << 20, 8)
        if not raw:
            raise OSError("the warm interpreter ended while importing")
        ready = json.loads(raw)["ready"]
        self.base = ready["memory"]
        if self.cgroup:
            self.cgroup.set_base()
        return ready

    def become_zygote(self, control: socket.socket) -> None:
        if self.cgroup:
            self.cgroup.enter()
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.dup2(control.fileno(), 3)
        os.closerange(4, 4096)
        argv = [*self.config["python"], os.path.join(HERE, "zygote.py"), json.dumps(self.config)]
        os.execve(argv[0], argv, self.config["environment"])

    # --- frames ---

    def send(self, header: dict[str, Any], *bodies: bytes) -> None:
        raw = json.dumps(header).encode()
        data = memoryview(b"".join((FRAME.pack(len(raw), sum(map(len, bodies))), raw, *bodies)))
        while data:
            data = data[os.write(1, data) :]

    def receive(self) -> tuple[dict[str, Any], bytes]:
        head, body = FRAME.unpack(self._exactly(FRAME.size))
        header = json.loads(self._exactly(head))
        return header, self._exactly(body)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = os.read(0, count - len(data))
            if not piece:
                raise HostGone
            data = piece if not data and len(piece) == count else data + piece
        return data

    def serve(self) -> None:
        """One order at a time until the host goes."""
        while True:
            header, body = self.receive()
            if header["do"] == "run":
                self.run(header, body)
            # an interrupt or a cancellation that came too late asks for nothing

    # --- one run ---

    def run(self, header: dict[str, Any], body: bytes) -> None:
        limits = header["limits"]
        self.arm(limits)
        run = self.launch(limits, body)
        try:
            self.attend(run)
            files, errors, contents = self.fetch(header.get("fetch") or [])
            clean = self.reset()
        finally:
            os.close(run.out.descriptor)
            os.close(run.err.descriptor)
            run.report.close()
        self.answer(run, files, errors, contents, clean)

    def arm(self, limits: dict[str, Any]) -> None:
        """Set the limits that belong to the slot rather than to the process."""
        if self.cgroup:
            self.cgroup.arm(limits["memory_mb"] << 20, limits["processes"])
        if self.config["mounts"]:
            self.set_sizes(limits["disk_mb"] << 20, limits["inodes"])

    def launch(self, limits: dict[str, Any], body: bytes) -> Run:
        request = os.memfd_create("request")
        view = memoryview(body)
        while view:
            view = view[os.write(request, view) :]
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(out_read, False)
        os.set_blocking(err_read, False)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        message = {
            "do": "fork", "limits": limits, "fresh": self.fresh, "cgroup": bool(self.cgroup),
            "nproc": self.nproc(limits),
        }  # fmt: skip
        handed = [request, out_write, err_write, theirs.fileno()]
        socket.send_fds(self.zygote, [json.dumps(message).encode()], handed)
        self.fresh = False
        for descriptor in handed[:3]:
            os.close(descriptor)
        theirs.close()
        factor = limits["flood_factor"]
        captures = [
            Capture(descriptor, kept, max(kept, 4096) * factor)
            for descriptor, kept in ((out_read, limits["stdout_bytes"]), (err_read, limits["stderr_bytes"]))
        ]
        return Run(limits, *captures, ours)

    def nproc(self, limits: dict[str, Any]) -> int | None:
        """RLIMIT_NPROC counts the user's processes in the user namespace, ours among them."""
        if self.cgroup and self.cgroup.has("pids_max"):
            return None
        if self.config["mounts"]:
            return limits["processes"] + 4
        uid = os.getuid()
        mine = 0
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                    mine += len(os.listdir(f"/proc/{name}/task"))
        return mine + limits["processes"]

    def attend(self, run: Run) -> None:
        """Read, watch and kill until the run is gone."""
        poll = select.poll()
        streams = {run.out.descriptor: run.out, run.err.descriptor: run.err}
        for descriptor in (0, *streams, run.report.fileno(), self.zygote.fileno()):
            poll.register(descriptor, select.POLLIN)
        report = run.report.fileno()
        watch_at = time.monotonic() + WATCH_S
        while run.exited is None:
            now = time.monotonic()
            if run.killed_at is not None and now > run.killed_at + KILL_S:
                raise OSError("a killed run is still there")
            if run.reason is None and now >= run.deadline:
                self.kill(run, "timeout" if run.begun else "setup")
            if run.reason is None and now >= watch_at:
                self.watch(run)
                watch_at = time.monotonic() + WATCH_S
            wait = min(run.deadline, watch_at) if run.reason is None else now + 0.1
            for ready, event in poll.poll(max(0.0, wait - now) * 1000 + 0.5):
                if ready in streams:
                    if not streams[ready].read(False):
                        poll.unregister(ready)
                    elif streams[ready].flooded and run.reason is None:
                        self.kill(run, "output_limit")
                elif ready == report:
                    run.hear()
                    if event & select.POLLHUP:
                        poll.unregister(ready)
                elif ready == 0:
                    self.interject(run)
                else:
                    self.hear_zygote(run)
        run.ended = time.monotonic()
        run.hear()
        for capture in streams.values():
            capture.read(True)

    def hear_zygote(self, run: Run) -> None:
        raw, _, _, _ = socket.recv_fds(self.zygote, 65536, 4)
        if not raw:
            raise OSError("the warm interpreter is gone")
        message = json.loads(raw)
        if "pid" in message:
            run.pid = message["pid"]
        elif "exited" in message:
            run.exited = message

    def interject(self, run: Run) -> None:
        """The host spoke while a program runs."""
        header, _ = self.receive()
        if header["do"] == "cancel":
            self.kill(run, "cancelled")
        elif header["do"] == "interrupt" and run.pid and run.reason is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(run.pid, signal.SIGINT)
            run.notes.append("interrupted")
            run.deadline = min(run.deadline, time.monotonic() + 0.5)

    def kill(self, run: Run, reason: str) -> None:
        """Why first, then the deed."""
        if run.reason is None:
            run.reason, run.killed_at = reason, time.monotonic()
            if self.cgroup:
                self.cgroup.forbid_forks()
            self.zygote.send(json.dumps({"do": "kill"}).encode())

    def watch(self, run: Run) -> None:
        """Limits that only a look now and then can hold."""
        if self.cgroup:
            if self.cgroup.oom_kills() > 0:
                self.kill(run, "oom")
                return
            cpu = self.cgroup.cpu_s()
            if cpu is not None:
                if cpu > run.limits["cpu_s"]:
                    self.kill(run, "cpu_timeout")
                return
        usage = self.usage()
        if usage["cpu_s"] > run.limits["cpu_s"]:
            self.kill(run, "cpu_timeout")
        elif not self.cgroup and usage["memory"] > run.limits["memory_mb"] << 20:
            self.kill(run, "oom")
        elif usage["tasks"] > run.limits["processes"] + 8:
            run.notes.append(f"stopped at {usage['tasks']} processes and threads")
            self.kill(run, "killed")

    def usage(self) -> dict[str, float]:
        """CPU seconds, private bytes and number of tasks of every process of the run, from /proc."""
        tick = os.sysconf("SC_CLK_TCK")
        total = {"cpu_s": 0.0, "memory": 0.0, "tasks": 0.0}
        for pid in descendants(self.zygote_pid):
            with contextlib.suppress(OSError, IndexError, ValueError):
                with open(f"/proc/{pid}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                total["cpu_s"] += sum(map(int, fields[11:15])) / tick
                total["tasks"] += int(fields[17])
                if not self.cgroup:
                    with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                        for line in file:
                            if line.startswith((b"Private_Dirty", b"Private_Clean", b"Pss_Shmem")):
                                total["memory"] += int(line.split()[1]) << 10
        return total

    # --- after the run ---

    def fetch(self, paths: list[str]) -> tuple[list[list[Any]], dict[str, str], list[bytes]]:
        """Contents of the files asked for, read from descriptors that the zygote opened."""
        if not paths:
            return [], {}, []
        files: list[list[Any]] = []
        errors: dict[str, str] = {}
        contents: list[bytes] = []
        left = FETCH_BYTES
        self.zygote.send(json.dumps({"do": "fetch", "paths": paths[:FETCH_FILES]}).encode())
        for _ in paths[:FETCH_FILES]:
            raw, descriptors, _, _ = socket.recv_fds(self.zygote, 65536, 4)
            if not raw:
                raise OSError("the warm interpreter is gone")
            message = json.loads(raw)
            if not descriptors:
                errors[message["file"]] = message["error"]
                continue
            with open(descriptors[0], "rb") as file:
                if os.fstat(file.fileno()).st_size > left:
                    errors[message["file"]] = f"larger than the {left} bytes left of what may be fetched"
                    continue
                data = file.read(left + 1)
            left -= len(data)
            files.append([message["file"], len(data)])
            contents.append(data)
        for path in paths[FETCH_FILES:]:
            errors[path] = f"more than {FETCH_FILES} files asked for"
        return files, errors, contents

    def set_sizes(self, size: int, inodes: int, first: bool = False) -> None:
        if first or (size, inodes) != self.sizes:
            for path in self.config["writable"]:
                confine.mount_tmpfs(path, size, inodes, remount=not first)
            self.sizes = (size, inodes)

    def reset(self) -> bool:
        """Empty the writable directories; False if that failed."""
        for path in self.config["writable"]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(path, "main.py"))
            if not os.listdir(path):
                continue
            if self.config["mounts"]:
                confine.unmount(path)
                confine.mount_tmpfs(path, *self.sizes)
                self.fresh = True
            elif not empty(path, time.monotonic() + 2):
                return False
        return True

    def answer(self, run: Run, files: list[Any], errors: dict[str, str], contents: list[bytes], clean: bool) -> None:
        """Say how it ended, by what the kernel said."""
        assert run.exited is not None and run.ended is not None
        status = run.exited["exited"]
        signalled = os.WIFSIGNALED(status) if status is not None else True
        cpu_s, peak = run.exited["cpu_s"], max(0, run.exited["max_rss"] - self.base["VmRSS"])
        oom = 0
        if self.cgroup:
            oom = self.cgroup.oom_kills()
            cpu_s = self.cgroup.cpu_s() or cpu_s
            peak = self.cgroup.peak() or peak
        if run.reason is not None:
            verdict = {"setup": "sandbox_error"}.get(run.reason, run.reason)
        elif oom:
            verdict = "oom"
        elif signalled:
            number = os.WTERMSIG(status)
            at_limit = number in (signal.SIGKILL, signal.SIGXCPU) and cpu_s >= run.limits["cpu_s"]
            verdict = "cpu_timeout" if at_limit else "killed"
        elif os.WEXITSTATUS(status) == 0:
            verdict = "ok"
        else:
            verdict = "syntax_error" if run.outcome.get("syntax") is True and not run.compiled else "error"
        if run.reason == "setup":
            run.notes.append("the program was not started in time")
        if run.exited["left"] and run.reason is None:
            run.notes.append(f"{run.exited['left']} processes left by the program were killed")
        parts = (*run.out.parts(), *run.err.parts())
        self.send(
            {
                "status": verdict,
                "exit_code": None if signalled else os.WEXITSTATUS(status),
                "signal": os.WTERMSIG(status) if signalled and run.reason is None and status is not None else None,
                "outcome": run.outcome,
                "sizes": [len(part) for part in parts],
                "totals": [run.out.total, run.err.total],
                "wall_ms": (run.ended - (run.begun or run.ended)) * 1e3,
                "cpu_ms": cpu_s * 1e3,
                "max_rss_mb": peak / (1 << 20),
                "notes": run.notes,
                "files": files,
                "file_errors": errors,
                "dirty": not clean or verdict in ("oom", "sandbox_error"),
            },
            *parts,
            *contents,
        )


def descendants(root: int) -> list[int]:
    """Every living process beneath `root`."""
    found: list[int] = []
    queue = [root]
    while queue:
        pid = queue.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as children:
                    queue.extend(new := [int(child) for child in children.read().split()])
                    found.extend(new)
    return found


def empty(path: str, deadline: float) -> bool:
    """Delete all beneath `path`, following no link; False if it is not done by `deadline`.

    Every process of the run is dead by now, so nothing changes under our feet.
    """
    os.chmod(path, 0o700)
    for entry in list(os.scandir(os.fsencode(path))):
        if time.monotonic() > deadline:
            return False
        if entry.is_dir(follow_symlinks=False):
            if not empty(os.fsdecode(entry.path), deadline):
                return False
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)
    return True


class Cgroup:
    """Counters and limits of the slot's control group, through descriptors that the host opened."""

    def __init__(self, descriptors: dict[str, Any]) -> None:
        self.descriptors = descriptors
        self.base = 0
        self.armed = (0, 0)
        self.cpu_before = self.oom_before = 0.0

    def has(self, name: str) -> bool:
        return name in self.descriptors

    def _read(self, name: str) -> str:
        return os.pread(self.descriptors[name], 4096, 0).decode()

    def _write(self, name: str, value: int | str) -> None:
        os.pwrite(self.descriptors[name], str(value).encode(), 0)

    def _field(self, name: str, field: str) -> int:
        for line in self._read(name).splitlines():
            key, _, value = line.partition(" ")
            if key == field:
                return int(value)
        return 0

    def enter(self) -> None:
        """Move the calling process (the future zygote) in; its children are born there."""
        for descriptor in self.descriptors["procs"]:
            os.write(descriptor, b"0")

    def set_base(self) -> None:
        """What the warm interpreter itself occupies, added to every limit."""
        self.base = int(self._read("memory_current"))

    def arm(self, memory: int, processes: int) -> None:
        """Limits of the coming run; counters are taken from here."""
        if self.armed != (memory, processes):
            self._write("memory_max", self.base + memory)
            if self.has("pids_max"):
                self._write("pids_max", processes + 1)  # and the zygote
            self.armed = (memory, processes)
        self.oom_before += self.oom_kills()
        self.cpu_before += self.cpu_s() or 0.0
        if self.has("memory_peak_reset"):
            self._write("memory_peak", 0)

    def forbid_forks(self) -> None:
        """A killer that new processes cannot outrun."""
        if self.has("pids_max"):
            self._write("pids_max", 0)
            self.armed = (0, 0)

    def oom_kills(self) -> int:
        return int(self._field("memory_events", "oom_kill") - self.oom_before)

    def cpu_s(self) -> float | None:
        """CPU seconds since the run was armed; None without that controller."""
        if self.has("cpu_ns"):
            return int(self._read("cpu_ns")) / 1e9 - self.cpu_before
        if self.has("cpu_stat"):
            return self._field("cpu_stat", "usage_usec") / 1e6 - self.cpu_before
        return None

    def peak(self) -> int:
        """Most memory above the warm interpreter's, bytes; 0 where the kernel does not keep it per run."""
        if self.has("memory_peak_reset"):
            return max(0, int(self._read("memory_peak")) - self.base)
        return 0


def main() -> None:
    supervisor = Supervisor(json.loads(sys.argv[-1]))
    try:
        supervisor.send({"ready": supervisor.start()})
        supervisor.serve()
    except HostGone:
        pass
    except BrokenPipeError:
        pass
    finally:
        with contextlib.suppress(OSError):
            for pid in descendants(supervisor.zygote_pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.kill(supervisor.zygote_pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
