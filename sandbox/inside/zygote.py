"""The warm interpreter: imports once, forks for every run, reaps what the run leaves. Never runs a program itself.

Started by the supervisor with its end of a SOCK_SEQPACKET pair as descriptor 3 and a JSON configuration as
the last argument. No byte of a program or of its output passes through this process's memory, so that no
fork can find a trace of an earlier run there: requests travel as descriptors of memory files.
"""

from __future__ import annotations

import _signal
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
import time
from typing import Any

CONTROL = 3
SIGCHLD = int(signal.SIGCHLD)
HERE = os.path.dirname(os.path.abspath(__file__))


def load(name: str) -> Any:
    """A neighbour module, without leaving this folder on `sys.path` for the programs."""
    spec = importlib.util.spec_from_file_location(f"_sandbox_{name}", os.path.join(HERE, f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    del sys.modules[spec.name]
    return module


def warm_up(packages: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Import, and run a little of each so that lazy imports are done. Returns versions, and what failed."""
    versions: dict[str, str] = {}
    failures: dict[str, str] = {}
    for name in packages:
        try:
            module = importlib.import_module(name)
            versions[name] = str(getattr(module, "__version__", ""))
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
    with contextlib.suppress(ImportError):
        import numpy

        numpy.linalg.solve(numpy.eye(2) * 2, numpy.ones(2))
        numpy.random.seed(0)
    if "sympy" in versions:
        import sympy

        x = sympy.Symbol("x")
        sympy.solve(x**2 - 2, x)
        sympy.simplify(sympy.integrate(sympy.sin(x) ** 2, x))
        str(sympy.factorint(360))
    return versions, failures


def memory_bytes() -> dict[str, int]:
    """VmSize, VmData, VmRSS and the like of this process."""
    with open("/proc/self/status") as status:
        fields = (line.split() for line in status if line.startswith(("Vm", "Rss")))
        return {name.rstrip(":"): int(value) << 10 for name, value, *_ in fields}


class Zygote:
    """One program at a time, in a fork of this process."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.control = socket.socket(fileno=CONTROL)
        self.program = load("program")
        self.confine = load("confine")
        self.descendants = load("meter").descendants
        self.ruleset: int | None = None
        # before Landlock could scope signals, a filter must: the host's processes are in sight
        abi = self.confine.landlock_abi()
        self.own_pid_only = config["seccomp"] and not config["namespaces"] and abi < 6
        self.main: int | None = None
        self.cpu_s = 0.0
        self.max_rss = 0
        self.main_status: int | None = None

    def prepare(self) -> dict[str, Any]:
        """Warm up and confine this process as far as it can be. Returns what the supervisor tells the host."""
        config, confine = self.config, self.confine
        confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
        adopts = True
        try:
            confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 1)
        except OSError:  # gVisor knows no subreaper: a run's orphans are out of our sight, and its slot is spent
            adopts = False
        gc.disable()
        versions, failures = warm_up(config["packages"])
        threads = len(os.listdir("/proc/self/task"))
        sys.argv[:] = [self.program.MAIN]
        sys.path[:0] = [config["workdir"]]
        confine.drop_capabilities()
        confine.prctl(confine.PR_SET_NO_NEW_PRIVS, 1)
        if config["seccomp"]:
            confine.install_filter(confine.filter_program([os.getpid(), os.getppid()], not config["namespaces"]))
        confine.prctl(confine.PR_SET_DUMPABLE, 0)
        self.program.open_stdio()  # every fork inherits them, on descriptors of its own
        gc.collect()
        gc.freeze()
        load("pages").collapse()
        self.base = memory_bytes()
        return {"versions": versions, "failures": failures, "threads": threads, "memory": self.base,
                "python": sys.version.split()[0], "pid": os.getpid(), "adopts": adopts}  # fmt: skip

    def rules(self, fresh: bool) -> int | None:
        """The Landlock rule set; made anew when the writable directories were (rules hold inodes, not paths)."""
        if not self.config["landlock"]:
            return None
        if self.ruleset is None or fresh:
            if self.ruleset is not None:
                os.close(self.ruleset)
            self.ruleset = self.confine.landlock_ruleset(
                self.config["readable"], self.config["writable"], self.config["devices"]
            )
        return self.ruleset

    def fork(self, message: dict[str, Any], descriptors: list[int]) -> int:
        """Fork the child that becomes the program. Returns its pid; never returns in the child."""
        ruleset = self.rules(message["fresh"])
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            status = self.become_program(message, descriptors, ruleset)
        finally:
            os._exit(status)

    def become_program(self, message: dict[str, Any], descriptors: list[int], ruleset: int | None) -> int:
        """In the child: own session, stdio, limits, confinement; then the program."""
        program, confine, config = self.program, self.confine, self.config
        os.setsid()
        _signal.set_wakeup_fd(-1)
        _signal.signal(SIGCHLD, _signal.SIG_DFL)  # without the wrapper's enums: every page touched is copied
        request, out, err, report = (os.dup2(fd, 64 + i) for i, fd in enumerate(descriptors))
        kept = 64 + len(descriptors) if ruleset is None else os.dup2(ruleset, 64 + len(descriptors)) + 1
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.dup2(report, 3, inheritable=False)
        os.dup2(request, 4, inheritable=False)
        if ruleset is not None:
            os.dup2(kept - 1, 5, inheritable=False)
        os.closerange(5 if ruleset is None else 6, 4096)
        confine.prctl(confine.PR_SET_DUMPABLE, 1)
        with contextlib.suppress(OSError):
            score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
            os.write(score, b"1000")
            os.close(score)
        body = {} if message["session"] else program.read_request(4)
        os.chdir(config["workdir"])
        program.set_limits(message["limits"], self.base, message["cgroup"], message["nproc"])
        if ruleset is not None:
            confine.landlock_restrict(5)
            os.close(5)
        if self.own_pid_only:
            confine.install_filter(confine.filter_program([os.getppid()], True, own_pid_only=True))
        program.feed(body.get("stdin"))
        program.reseed(body.get("seed"))
        gc.enable()
        report = program.Report(3)
        if message["session"]:
            return program.Conversation(report, config["workdir"]).serve()
        return program.run_once(body, report, config["workdir"])

    def reap(self) -> bool:
        """Collect the dead and what they used. Returns whether any child is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.cpu_s += usage.ru_utime + usage.ru_stime
            self.max_rss = max(self.max_rss, usage.ru_maxrss << 10)
            if pid == self.main:
                self.main_status = status

    def kill_all(self) -> int:
        """Kill every process of the run, orphans included (they are our children), until none is left."""
        killed = 0
        deadline = time.monotonic() + 5
        while self.reap() and time.monotonic() < deadline:
            for pid in self.descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
            time.sleep(0.0005)
        return killed

    def finish(self) -> None:
        """The main process is dead: kill the rest and say so."""
        left = self.kill_all() if self.reap() else 0
        self.say({"exited": self.main_status, "cpu_s": self.cpu_s, "max_rss": self.max_rss, "left": left})
        self.main = None

    def say(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        socket.send_fds(self.control, [json.dumps(message).encode()], descriptors or [])

    def fetch(self, path: str) -> None:
        """Open a file of the work directory for the supervisor: a regular one, no link followed on the way."""
        try:
            descriptor = open_beneath(self.config["workdir"], path)
        except OSError as error:
            self.say({"file": path, "error": os.strerror(error.errno) if error.errno else str(error)})
            return
        self.say({"file": path}, [descriptor])
        os.close(descriptor)

    def serve(self) -> None:
        """Obey the supervisor until it goes."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        while True:
            for ready, _ in poll.poll():
                if ready == wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                    self.reap()
                    if self.main is not None and self.main_status is not None:
                        self.finish()
                else:
                    raw, descriptors, _, _ = socket.recv_fds(self.control, 65536, 16)
                    if not raw:
                        return
                    self.obey(json.loads(raw), descriptors)
                    for descriptor in descriptors:
                        os.close(descriptor)

    def obey(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """One order of the supervisor."""
        if message["do"] == "fork":
            self.cpu_s, self.max_rss, self.main_status = 0.0, 0, None
            self.main = self.fork(message, descriptors)
            if message["session"]:
                self.say({"pid": self.main})
        elif message["do"] == "kill":
            self.kill_all()
            if self.main is not None:
                self.finish()
        elif message["do"] == "end":
            self.kill_all()
            self.main = None
            self.say({"ended": True})
        elif message["do"] == "fetch":
            self.fetch(message["path"])
        elif message["do"] == "adopt":
            # the turn's process carries the session on; its checkpoint is of no more use
            self.main, checkpoint = message["pid"], self.main
            if checkpoint is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(checkpoint, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(checkpoint, 0)
            self.say({"adopted": self.main})


def open_beneath(folder: str, path: str) -> int:
    """Descriptor of the regular file `path` under `folder`, refusing links and anything else. Raises OSError."""
    parts = path.split("/")
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            if part in ("", ".", ".."):
                raise OSError(f"{path!r} is not a plain relative path")
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
        if parts[-1] in ("", ".", ".."):
            raise OSError(f"{path!r} is not a plain relative path")
        found = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError("not a regular file")
    return found


def main() -> None:
    zygote = Zygote(json.loads(sys.argv[-1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    zygote.say({"ready": zygote.prepare()})
    zygote.serve()


if __name__ == "__main__":
    main()
