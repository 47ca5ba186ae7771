"""Sessions of a slot: a process that keeps its state from turn to turn, with a checkpoint while a turn runs.

Before a turn the session's process forks and waits: the fork runs the turn and carries the session on; if it is
killed or crashes the waiting process has the state of before (`rolled_back`). That is not done while
threads or child processes of earlier turns live, since a fork would lose the ones and orphan the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from meter import Cgroup, descendants, tasks, usage
from streams import Capture, Run, Session, memory_file


class Sessions:
    """The part of the supervisor that holds a session."""

    cgroup: Cgroup | None
    zygote: socket.socket
    zygote_pid: int
    session: Session | None
    session_limits: dict[str, Any]
    adopting: bool
    cpu_before: float
    arm: Callable[[dict[str, Any]], None]
    launch: Callable[..., tuple[int, int, socket.socket]]
    captures: Callable[..., tuple[Capture, Capture]]
    attend: Callable[[Run, Callable[[], bool]], None]
    fetch: Callable[[list[str]], tuple[Any, Any, list[bytes]]]
    answer: Callable[..., None]
    reset: Callable[[], bool]
    send: Callable[..., None]
    to_zygote: Callable[..., None]
    from_zygote: Callable[[], tuple[dict[str, Any], list[int]]]
    until: Callable[[str], tuple[dict[str, Any], list[int]]]

    def open(self, header: dict[str, Any], _: bytes) -> None:
        """Fork the process that will hold the session's state."""
        self.session_limits = header["limits"]
        self.start_session()
        self.send({"opened": True})

    def start_session(self) -> None:
        limits = self.session_limits
        self.arm(limits)
        out, err, report = self.launch(limits | {"cpu_s": 1 << 30}, b"")
        run = Run(limits, *self.captures(limits, out, err), report)
        report.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.attend(run, lambda: run.exited is not None or bool(run.outcome and run.pid))
        if run.exited is not None or run.pid is None:
            raise OSError("the session's interpreter did not start")
        self.session = Session(run.pid, out, err, report)

    def turn(self, header: dict[str, Any], body: bytes) -> None:
        """One turn of the open session; says what became of its state."""
        session, limits = self.session, header["limits"]
        if session is None or not self.wake():
            self.end_session()
            return self.send({"lost": True})
        self.arm(limits)
        self.cpu_before = 0.0 if self.cgroup else usage(self.zygote_pid)["cpu_s"]
        late, session.late = session.late, 0
        run = Run(limits, *self.captures(limits, session.out, session.err), session.report)
        if late:
            run.notes.append(f"{late} bytes written between turns were dropped")
        earlier = tasks(session.pid) - 1
        if earlier > 0:
            run.notes.append(f"output may come from {earlier} background threads of earlier turns")
        request = memory_file(body)
        checkpoint = bool(header.get("checkpoint")) and earlier == 0 and len(descendants(self.zygote_pid)) == 1
        socket.send_fds(session.report, [json.dumps({"checkpoint": checkpoint}).encode()], [request])
        os.close(request)
        self.attend(run, lambda: bool(run.outcome) or run.exited is not None or run.died is not None)
        state, threads = self.settle(run, session)
        fetched = self.fetch(header["fetch"])
        if state == "reset":
            self.end_session()
            self.start_session()
        self.pause()
        self.answer(run, fetched, state=state, threads_alive=threads)

    def settle(self, run: Run, session: Session) -> tuple[str, int]:
        """After a turn: which process carries the state on. Returns the state and the threads it runs."""
        if run.exited is not None:
            return "reset", 0
        if run.died is not None:
            self.kill_turn(session.pid)
            if run.reason is None and os.WIFEXITED(run.died):  # it chose to leave, state and all
                return "reset", 0
            return "rolled_back", 0
        if run.pid is not None and run.pid != session.pid:
            self.to_zygote({"do": "adopt", "pid": run.pid})
            self.adopting = True
            session.pid = run.pid
        for _ in range(4):  # a thread that was joined is still there for a moment
            if (threads := max(0, tasks(session.pid) - 1)) == 0:
                break
            time.sleep(0.001)
        return "kept", threads

    def pause(self) -> None:
        """Between turns a session is stopped: it uses no CPU and writes nothing."""
        for pid in descendants(self.zygote_pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def wake(self) -> bool:
        """Let the session go on; False if its process died meanwhile."""
        assert self.session is not None
        self.session.drain()
        alive = tasks(self.session.pid) > 0
        while self.adopting or select.select([self.zygote], [], [], 0)[0]:
            message, _ = self.from_zygote()
            self.adopting &= "adopted" not in message
            alive &= "exited" not in message
        for pid in reversed(descendants(self.zygote_pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return alive

    def close(self, _: dict[str, Any], __: bytes) -> None:
        self.end_session()
        self.send({"closed": True, "dirty": not self.reset()})

    def end_session(self) -> None:
        """Kill what holds the state; the work directory goes with it."""
        if self.session is None:
            return
        self.to_zygote({"do": "end"})
        self.until("ended")
        self.adopting = False
        self.session.close()
        self.session = None
        self.reset()

    def kill_turn(self, checkpoint: int) -> None:
        """Every process of the run but the checkpoint, until only dead ones are left for it to reap."""
        for _ in range(200):
            living = [pid for pid in descendants(self.zygote_pid) if pid != checkpoint and tasks(pid)]
            if not living:
                return
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)
