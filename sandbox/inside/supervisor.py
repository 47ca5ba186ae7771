"""PID 1 of a slot: deadlines, pipes, kills, memory and output limits, reset. Standard library, one thread.

Speaks frames over stdin and stdout with the host: `!II` (lengths of header and body), a JSON header, raw
bytes. End of file on stdin means that the host has gone: the supervisor kills the run and exits, and, as the
init of its namespace, takes everything with it. It trusts nothing from a program but bytes: how a run ended
comes from wait4(2), clocks and counters.

The zygote is this process's child and the subreaper of whatever a run leaves, so "the zygote has no child"
is an exact and cheap test that nothing of a run is alive.
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
import container  # noqa: E402
from meter import Cgroup, descendants, disk_usage, memory, tasks_of_user, usage  # noqa: E402
from sessions import Sessions  # noqa: E402
from streams import Capture, Run, Session, memory_file  # noqa: E402
from workspace import Workspace  # noqa: E402

sys.path.remove(HERE)

FRAME = struct.Struct("!II")
GRACE_S = 0.5
"""From an interrupt to the kill."""
KILL_S = 6.0
"""Longest wait for a killed run to be gone."""
GIVE_UP_S = 20.0
"""Seconds after which a boundary without a pid namespace gives up killing: a slow machine takes its time."""
OUTRUN_S = 1.5
"""The same where nothing but RLIMIT_NPROC (which does not bind root) keeps it from multiplying meanwhile."""
WATCH_S = 0.05


class HostGone(Exception):
    """End of file from the host."""


class Supervisor(Sessions, Workspace):
    """The slot's loop."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.fresh = True
        self.cgroup = Cgroup(config["cgroup"]) if config.get("cgroup") else None
        if config.get("container"):
            self.cgroup = container.own_group()
        self.sizes = (0, 0)
        self.session: Session | None = None
        self.session_limits: dict[str, Any] = {}
        self.zygote_pid = 0
        self.adopting = False
        self.spent = self.one_run = False
        self.patience = KILL_S if self.cgroup and self.cgroup.has("pids_max") else OUTRUN_S
        self.counted, self.counted_at = 0, -1.0
        self.cpu_before = 0.0

    # --- start ---

    def start(self) -> dict[str, Any]:
        """Own mounts, then the zygote; returns what it said when warm."""
        confine.prctl(confine.PR_SET_DUMPABLE, 0)
        confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 1)
        if self.config.get("container"):
            container.settle(self.config, HostGone)
        if self.config["mounts"]:
            confine.unshare_mounts()
            self.set_sizes(64 << 20, 4096, first=True)
        self.zygote, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.zygote_pid = os.fork()
        if self.zygote_pid == 0:
            try:
                self.become_zygote(theirs)
            finally:
                os._exit(127)
        theirs.close()
        self.zygote.settimeout(self.config["warm_s"])
        ready = self.from_zygote()[0]["ready"]
        self.zygote.settimeout(KILL_S)
        self.base = ready["memory"]
        self.one_run = not ready["adopts"]
        if self.cgroup:
            self.cgroup.set_base()
        return ready | ({"inside": container.source_digest()} if self.config.get("container") else {})

    def become_zygote(self, control: socket.socket) -> None:
        if self.cgroup:
            self.cgroup.enter()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(2, 1)
        os.dup2(control.fileno(), 3)
        os.closerange(4, 4096)
        argv = [*self.config["python"], os.path.join(HERE, "zygote.py"), json.dumps(self.config)]
        os.execve(argv[0], argv, self.config["environment"])

    # --- messages ---

    def send(self, header: dict[str, Any], *bodies: bytes) -> None:
        raw = json.dumps(header).encode()
        data = memoryview(b"".join((FRAME.pack(len(raw), sum(map(len, bodies))), raw, *bodies)))
        while data:
            data = data[os.write(1, data) :]

    def receive(self) -> tuple[dict[str, Any], bytes]:
        head, body = FRAME.unpack(exactly(FRAME.size))
        return json.loads(exactly(head)), exactly(body)

    def to_zygote(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        socket.send_fds(self.zygote, [json.dumps(message).encode()], descriptors or [])

    def from_zygote(self) -> tuple[dict[str, Any], list[int]]:
        raw, descriptors, _, _ = socket.recv_fds(self.zygote, 1 << 20, 4)
        if not raw:
            raise OSError("the warm interpreter is gone")
        return json.loads(raw), descriptors

    def until(self, key: str) -> tuple[dict[str, Any], list[int]]:
        """The zygote's answer that has `key`; what it had to say before is taken note of."""
        while True:
            message, descriptors = self.from_zygote()
            self.adopting &= "adopted" not in message
            if key in message:
                return message, descriptors

    def serve(self) -> None:
        """One order at a time until the host goes."""
        orders = {"run": self.run, "open": self.open, "turn": self.turn, "close": self.close}
        while True:
            header, body = self.receive()
            # an interrupt or a cancellation that came too late asks for nothing
            if header["do"] in orders:
                orders[header["do"]](header, body)

    # --- a program ---

    def run(self, header: dict[str, Any], body: bytes) -> None:
        """One program in a fresh fork, then the slot as it was."""
        if self.session is not None:
            raise OSError("a slot with an open session runs no other program")
        limits = header["limits"]
        self.arm(limits)
        out, err, report = self.launch(limits, body)
        run = Run(limits, *self.captures(limits, out, err), report)
        try:
            self.attend(run, lambda: run.exited is not None)
            fetched = self.fetch(header["fetch"])
            clean = self.reset()
        finally:
            os.close(out)
            os.close(err)
            report.close()
        self.answer(run, fetched, dirty=not clean)

    def arm(self, limits: dict[str, Any]) -> None:
        """The limits that belong to the slot rather than to a process."""
        if self.cgroup:
            self.cgroup.arm(limits["memory_mb"] << 20, limits["processes"])
        if self.config["mounts"]:
            self.set_sizes(limits["disk_mb"] << 20, limits["inodes"])

    def launch(self, limits: dict[str, Any], body: bytes) -> tuple[int, int, socket.socket]:
        """Have the zygote fork. Returns our ends of stdout, stderr and the report. No body: a session."""
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(out_read, False)
        os.set_blocking(err_read, False)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        request = memory_file(body)
        message = {
            "do": "fork", "limits": limits, "fresh": self.fresh, "cgroup": bool(self.cgroup),
            "nproc": self.nproc(limits), "session": not body,
        }  # fmt: skip
        self.to_zygote(message, [request, out_write, err_write, theirs.fileno()])
        self.fresh = False
        for descriptor in (request, out_write, err_write):
            os.close(descriptor)
        theirs.close()
        return out_read, err_read, ours

    def captures(self, limits: dict[str, Any], out: int, err: int) -> tuple[Capture, Capture]:
        factor = limits["flood_factor"]
        return Capture(out, limits["stdout_bytes"], factor), Capture(err, limits["stderr_bytes"], factor)

    def nproc(self, limits: dict[str, Any]) -> int | None:
        """RLIMIT_NPROC counts the user's processes in the user namespace, ours among them."""
        if self.cgroup and self.cgroup.has("pids_max"):
            return None
        if self.config["namespaces"]:
            return limits["processes"] + 4
        if time.monotonic() > self.counted_at + 1:
            self.counted, self.counted_at = tasks_of_user(os.getuid()), time.monotonic()
        return self.counted + limits["processes"]

    # --- while it runs ---

    def attend(self, run: Run, finished: Any) -> None:
        """Read, watch and kill until `finished()`."""
        poll = select.poll()
        streams = {run.out.descriptor: run.out, run.err.descriptor: run.err}
        report = run.report.fileno()
        for descriptor in (0, *streams, report, self.zygote.fileno()):
            poll.register(descriptor, select.POLLIN)
        watch_at = time.monotonic() + WATCH_S
        while not finished():
            now = time.monotonic()
            if run.killed_at is not None and now > run.killed_at + self.patience:
                self.kill_namespace(run, now)
                if self.spent:
                    break
            if run.reason is None and now >= run.deadline:
                self.stop(run, "timeout" if run.begun else "setup")
            if run.reason is None and now >= watch_at:
                self.watch(run)
                watch_at = time.monotonic() + WATCH_S
            if run.reason is not None and run.killed_at is None and now >= run.kill_at:
                self.kill(run)
            wait = min(run.deadline, watch_at) if run.reason is None else now + 0.05
            for ready, event in poll.poll(max(0.0, wait - now) * 1000 + 0.5):
                if ready in streams:
                    if not streams[ready].read(False):
                        poll.unregister(ready)
                    elif streams[ready].flooded and run.reason is None:
                        self.stop(run, "output_limit")
                elif ready == report:
                    if not run.hear() or event & (select.POLLHUP | select.POLLERR) == event:
                        poll.unregister(ready)
                elif ready == 0:
                    self.interject(run)
                else:
                    self.hear_zygote(run)
        run.ended = time.monotonic()
        run.hear()
        for capture in streams.values():
            capture.read(True)
        self.account(run)

    def account(self, run: Run) -> None:
        """What the run used, before anything else counts."""
        ended = run.exited or {"cpu_s": 0.0, "max_rss": 0}
        run.cpu_s, run.peak = ended["cpu_s"], max(0, ended["max_rss"] - self.base["VmRSS"])
        if self.cgroup:
            run.cpu_s, run.peak = self.cgroup.cpu_s() or run.cpu_s, self.cgroup.peak() or run.peak
            run.oom = self.cgroup.oom_kills() > 0
        elif self.session is not None:
            run.cpu_s = max(run.cpu_s, usage(self.zygote_pid)["cpu_s"] - self.cpu_before)

    def hear_zygote(self, run: Run) -> None:
        message, _ = self.from_zygote()
        if "pid" in message:
            run.pid = message["pid"]
        elif "exited" in message:
            run.exited = message

    def interject(self, run: Run) -> None:
        """The host spoke while a program runs."""
        header, _ = self.receive()
        if header["do"] == "cancel":
            run.reason = run.reason or "cancelled"
            run.kill_at = 0.0
        elif header["do"] == "interrupt" and run.begun and run.reason is None:
            run.notes.append("interrupted")
            for pid in [run.pid] if run.pid else descendants(self.zygote_pid)[:1]:
                interrupt(pid)
            run.deadline = min(run.deadline, time.monotonic() + GRACE_S)

    def stop(self, run: Run, reason: str) -> None:
        """The limit is passed: a session's turn is interrupted first, to save its state; a program is killed."""
        run.reason, run.kill_at = reason, 0.0
        if self.session is not None and run.pid and reason not in ("oom", "setup", "processes"):
            interrupt(run.pid)
            run.kill_at = time.monotonic() + GRACE_S

    def kill(self, run: Run) -> None:
        """Everything of the run, but the checkpoint of a session (the process that waits for the turn's)."""
        run.killed_at = time.monotonic()
        if self.cgroup:
            self.cgroup.forbid_forks()
        if run.reason == "processes" or (self.one_run and self.session is None):
            run.killed_at = 0.0  # they multiply faster than they can be killed one by one
        elif self.session is not None and run.pid not in (None, self.session.pid):
            self.kill_turn(self.session.pid)
        else:
            self.to_zygote({"do": "kill"})

    def kill_namespace(self, run: Run, now: float) -> None:
        """The last resort: one signal that reaches all at once, the warm interpreter too. The slot is spent."""
        assert run.killed_at is not None
        if os.getpid() == 1:
            os.kill(-1, signal.SIGKILL)
            self.spent = True
            run.exited = {"exited": signal.SIGKILL, "cpu_s": 0.0, "max_rss": 0, "left": 0}
        elif now > run.killed_at + GIVE_UP_S:
            raise OSError("a killed run is still there")

    def watch(self, run: Run) -> None:
        """Limits that only a look now and then can hold."""
        limits = run.limits
        cpu = None
        if self.cgroup:
            if self.cgroup.oom_kills() > 0:
                return self.stop(run, "oom")
            if self.cgroup.over(limits["memory_mb"] << 20):
                return self.stop(run, "oom")
            cpu = self.cgroup.cpu_s()
        if cpu is None or not self.cgroup or not self.cgroup.bounds_tasks():
            used = usage(self.zygote_pid, limits["processes"] + 8)
            cpu = used["cpu_s"] - self.cpu_before if cpu is None else cpu
            if used["tasks"] > limits["processes"] + 8:
                run.notes.append("stopped: more processes and threads than it may have")
                return self.stop(run, "processes")
            allowed = limits["memory_mb"] << 20
            if not self.cgroup and used["bytes"] > allowed and memory(self.zygote_pid) > allowed:
                return self.stop(run, "oom")
        if cpu > limits["cpu_s"]:
            return self.stop(run, "cpu_timeout")
        if not self.config["mounts"]:
            for path in self.config["writable"]:
                size, files = disk_usage(path, mounted=bool(self.config.get("container")))
                if size > limits["disk_mb"] << 20 or files > limits["inodes"]:
                    run.notes.append(f"stopped: {size >> 20} MiB in {files} files on disk are more than it may have")
                    return self.stop(run, "disk")
        return None

    # --- afterwards ---

    def verdict(self, run: Run, status: int | None) -> str:
        """The status, by what the kernel said; by the interpreter's word only where its process lives on."""
        if run.reason is not None:
            return {"setup": "sandbox_error", "processes": "killed", "disk": "killed"}.get(run.reason, run.reason)
        if run.oom:
            return "oom"
        if status is None:
            failed = run.outcome.get("code") != 0
        elif os.WIFSIGNALED(status):
            at_limit = os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU) and run.cpu_s >= run.limits["cpu_s"]
            return "cpu_timeout" if at_limit else "killed"
        else:
            failed = os.WEXITSTATUS(status) != 0
        if not failed:
            return "ok"
        return "syntax_error" if run.outcome.get("syntax") is True and not run.compiled else "error"

    def answer(self, run: Run, fetched: tuple[Any, Any, list[bytes]], dirty: bool = False, **more: Any) -> None:
        """Say how it ended."""
        assert run.ended is not None
        files, errors, contents = fetched
        ended = run.exited or {"exited": run.died, "left": 0}
        status = ended["exited"]
        verdict = self.verdict(run, status)
        if run.reason == "setup":
            run.notes.append("the program was not started in time")
        if ended["left"] and run.reason is None:
            run.notes.append(f"{ended['left']} processes left by the program were killed")
        code = run.outcome.get("code") if status is None else None
        if status is not None and os.WIFEXITED(status):
            code = os.WEXITSTATUS(status)
        parts = (*run.out.parts(), *run.err.parts())
        answer = {
            "status": verdict,
            "exit_code": code if isinstance(code, int) and run.reason is None else None,
            "signal": os.WTERMSIG(status) if verdict == "killed" and status and os.WIFSIGNALED(status) else None,
            "outcome": run.outcome,
            "sizes": [len(part) for part in parts],
            "totals": [run.out.total, run.err.total],
            "wall_ms": (run.ended - (run.begun or run.ended)) * 1e3,
            "cpu_ms": run.cpu_s * 1e3,
            "max_rss_mb": run.peak / (1 << 20),
            "notes": run.notes,
            "files": files,
            "file_errors": errors,
            "dirty": dirty or self.spent or verdict == "sandbox_error" or (verdict == "oom" and self.session is None),
        }
        answer["dirty"] |= self.one_run and self.session is None
        self.send(answer | more, *parts, *contents)


def exactly(count: int) -> bytes:
    """`count` bytes of the host's stream. Raises HostGone at its end."""
    pieces = []
    while count:
        piece = os.read(0, count)
        if not piece:
            raise HostGone
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def interrupt(pid: int) -> None:
    """As Ctrl-C would."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)


def main() -> None:
    supervisor = Supervisor(json.loads(sys.argv[-1]))
    with contextlib.suppress(HostGone, BrokenPipeError):
        try:
            supervisor.send({"ready": supervisor.start()})
            supervisor.serve()
        finally:
            for _ in range(100):
                for pid in (left := descendants(os.getpid())):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    while os.waitpid(-1, os.WNOHANG)[0]:
                        pass
                if not left:
                    break
                time.sleep(0.001)


if __name__ == "__main__":
    main()
