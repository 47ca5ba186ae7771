"""The forked child: confine itself, run the program as Python would, say how it went.

Runs in a fork of the zygote. What it reports over `report` is the program's own word (it may forge it, to
its own harm only): the exit status, the time and the memory come from the kernel through the supervisor.
"""

from __future__ import annotations

import ast
import atexit
import base64
import builtins
import contextlib
import dataclasses
import gc
import io
import json
import linecache
import os
import random
import resource
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any

MAIN = "main.py"
TEXT_CHARACTERS = 65536


UNKNOWN_TO_SOME = (resource.RLIMIT_MSGQUEUE, resource.RLIMIT_SIGPENDING)
"""gVisor does not know these; lowering a limit fails for no other reason."""


def set_limits(limits: dict[str, Any], base_bytes: dict[str, int], cgroup: bool, nproc: int | None) -> None:
    """Hard resource limits. With a cgroup the address space has room to spare: the cgroup counts what is used."""
    memory = limits["memory_mb"] << 20
    wanted = {
        resource.RLIMIT_CPU: int(limits["cpu_s"]) + 2,
        resource.RLIMIT_FSIZE: limits["file_size_mb"] << 20,
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_STACK: limits["stack_mb"] << 20,
        resource.RLIMIT_AS: base_bytes["VmSize"] + 4 * memory + (2 << 30),
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 256,
    }
    if not cgroup:
        wanted[resource.RLIMIT_DATA] = base_bytes["VmData"] + memory
    if nproc is not None:
        wanted[resource.RLIMIT_NPROC] = nproc
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except ValueError:
            if kind not in UNKNOWN_TO_SOME:
                raise


def reseed(seed: int | None) -> None:
    """Every fork would draw the zygote's numbers otherwise (numpy/numpy#9650); `random` sees to itself on a fork."""
    if seed is not None:
        random.seed(seed)
    if "numpy.random" in sys.modules:
        fresh = int.from_bytes(os.urandom(4), "little")
        sys.modules["numpy.random"].seed(fresh if seed is None else seed % 2**32)


def feed(stdin_text: str | None) -> None:
    """Put the text where descriptor 0 reads it; None leaves it at /dev/null. A file never blocks a writer."""
    if stdin_text is None:
        return
    source = os.memfd_create("stdin")
    view = memoryview(stdin_text.encode("utf-8", "surrogatepass"))
    while view:
        view = view[os.write(source, view) :]
    os.lseek(source, 0, os.SEEK_SET)
    os.dup2(source, 0)
    os.close(source)


def open_stdio() -> None:
    """Fresh text layers on 0, 1, 2. Output is written through at once, so that a kill loses nothing."""
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    for descriptor, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        raw = io.FileIO(descriptor, "w", closefd=False)
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def place_files(files: dict[str, str]) -> None:
    """Write the caller's files (relative path to base64) into the current directory. Raises OSError, ValueError."""
    for path, content in files.items():
        parts = path.split("/")
        if path.startswith("/") or any(part in ("", ".", "..") for part in parts) or "\0" in path:
            raise ValueError(f"file name {path!r} is not a plain relative path")
        if len(parts) > 1:
            os.makedirs("/".join(parts[:-1]), exist_ok=True)
        write_file(path, base64.b64decode(content, validate=True))


def write_file(path: str, content: bytes) -> None:
    """Create or replace a regular file, following no link and waiting for no pipe."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(target, view) :]
    finally:
        os.close(target)


def fresh_main(path: str | None) -> types.ModuleType:
    """A real `__main__`, as a script has it."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    if path is not None:
        module.__dict__["__file__"] = path
    sys.modules["__main__"] = module
    return module


def remember_source(name: str, source: str) -> None:
    """Let tracebacks and `inspect` show lines of code that has no file of that name."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


def describe(error: BaseException) -> dict[str, str]:
    """Print the program's exception as the interpreter does, without the frames above it, and return it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") == __name__:
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
        message = str(error)
    except BaseException as broken:  # a __str__ of the program's own
        text = message = f"{type(error).__name__}: <unprintable: its text raised {type(broken).__name__}>\n"
    hook = sys.excepthook
    if hook is sys.__excepthook__ or not _hooked(hook, error, frames):
        write_stderr(text)
    return {"type": type(error).__name__, "message": clip(message, 4096), "traceback": clip(text, TEXT_CHARACTERS)}


def _hooked(hook: Callable[..., Any], error: BaseException, frames: types.TracebackType | None) -> bool:
    try:
        hook(type(error), error, frames)
    except BaseException:  # the program's hook failed: the plain traceback is printed instead
        return False
    return True


def clip(text: str, characters: int) -> str:
    """Head and tail of a long text."""
    if len(text) <= characters:
        return text
    half = characters // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters omitted ...]\n{text[-half:]}"


def write_stderr(text: str) -> None:
    """To the program's stderr, whatever it did to `sys.stderr`; gone if it closed descriptor 2, as for CPython."""
    try:
        print(text, end="", file=sys.stderr or sys.__stderr__, flush=True)
    except BaseException:  # a broken replacement of sys.stderr
        with contextlib.suppress(OSError):
            os.write(2, text.encode("utf-8", "backslashreplace"))


def exit_status(leaving: SystemExit) -> int:
    """The exit status `raise SystemExit(code)` stands for; a message goes to stderr."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    write_stderr(f"{leaving.code}\n")
    return 1


@dataclasses.dataclass
class Outcome:
    """How the code ended, as far as the interpreter knows."""

    code: int = 0
    error: dict[str, str] | None = None
    result: str | None = None
    syntax: bool = False


def compile_source(source: str, name: str, show: bool) -> tuple[types.CodeType, types.CodeType | None]:
    """The body, and the last expression by itself if `show`: compiled once, so nothing is evaluated twice."""
    source = source.removeprefix("\ufeff")  # a file may begin with a byte order mark, a str may not
    if not show:
        return compile(source, name, "exec", dont_inherit=True), None
    tree = compile(source, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = compile(ast.Expression(tree.body.pop().value), name, "eval", dont_inherit=True)
    return compile(tree, name, "exec", dont_inherit=True), last


def execute(source: str, name: str, scope: dict[str, Any], show: bool, compiled: Callable[[], None]) -> Outcome:
    """Compile and run as `name` in `scope`; `compiled` is called between the two."""
    try:
        body, last = compile_source(source, name, show)
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes; UnicodeEncodeError: lone surrogates
        return Outcome(1, describe(error), syntax=True)
    except BaseException as error:  # the compiler's own MemoryError or RecursionError
        return Outcome(1, describe(error))
    compiled()
    try:
        exec(body, scope)
        value = None if last is None else eval(last, scope)
        if value is None:
            return Outcome()
        scope["_"] = value
        return Outcome(result=clip(repr(value), TEXT_CHARACTERS))
    except SystemExit as leaving:
        return Outcome(exit_status(leaving))
    except BaseException as error:
        return Outcome(1, describe(error))


def shut_down(scope: dict[str, Any]) -> None:
    """What the interpreter does at exit that a program can see, without tearing down every warm module."""
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        try:
            step()
        except BaseException as error:
            describe(error)
    for name in list(scope):
        if name != "__builtins__":
            scope[name] = None
    gc.collect()
    flush()


def flush() -> None:
    """Flush the program's own streams, whatever it made of them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()


DONE = Outcome()


class Report:
    """The program's end of the socket to the supervisor: marks and one JSON line a run or turn."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.owner = descriptor, os.getpid()
        status = os.fstat(descriptor)
        self.identity = (status.st_dev, status.st_ino)

    def send(self, line: bytes) -> None:
        """Nothing is sent by a child of the program, or if the program closed or replaced the descriptor."""
        if os.getpid() != self.owner:
            return
        try:
            status = os.fstat(self.descriptor)
            if (status.st_dev, status.st_ino) == self.identity:
                view = memoryview(line + b"\n")
                while view:
                    view = view[os.write(self.descriptor, view) :]
        except OSError:
            return  # the supervisor sees the end of the process, report or not

    def outcome(self, outcome: Outcome, **more: Any) -> None:
        if outcome == DONE and not any(more.values()):
            return self.send(b'{"code": 0}')
        self.send(json.dumps(dataclasses.asdict(outcome) | more).encode())


def run_prelude(request: dict[str, Any], scope: dict[str, Any]) -> Outcome | None:
    """Run the caller's prelude in the program's namespace; an Outcome only if it fails."""
    if not request.get("prelude"):
        return None
    remember_source("<prelude>", request["prelude"])
    outcome = execute(request["prelude"], "<prelude>", scope, False, lambda: None)
    outcome.syntax = False
    return outcome if outcome.code or outcome.error else None


def read_request(descriptor: int) -> dict[str, Any]:
    """The request, from the memory file that holds it."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        return json.loads(file.read())


def run_once(request: dict[str, Any], report: Report, workdir: str) -> int:
    """Run one program in this process; returns its exit status."""
    path = os.path.join(workdir, MAIN)
    scope = fresh_main(path).__dict__
    source = request["code"]
    try:
        place_files(request.get("files") or {})
        write_file(MAIN, source.encode("utf-8", "surrogatepass"))
    except (OSError, ValueError) as error:
        report.outcome(Outcome(1, describe(error)))
        return 1
    remember_source(MAIN, source)
    report.send(b"started")
    outcome = run_prelude(request, scope) or execute(
        source, MAIN, scope, bool(request.get("show_result")), lambda: report.send(b"compiled")
    )
    report.outcome(outcome)
    shut_down(scope)
    return outcome.code


class Conversation:
    """A session: one namespace, one turn after another, as in a notebook.

    Before a turn the process may fork and wait (a checkpoint): if the turn's process dies, this one says so and
    carries on with the state of before.
    """

    def __init__(self, report: Report, workdir: str) -> None:
        self.report, self.workdir = report, workdir
        self.scope = fresh_main(None).__dict__
        self.builtins = dict(builtins.__dict__)
        self.turns = 0
        self.stdio = [os.dup(descriptor) for descriptor in (1, 2)]
        self.channel = socket.socket(fileno=os.dup(report.descriptor))

    def serve(self) -> int:
        """Take turns until the supervisor goes."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.report.outcome(Outcome())
        while True:
            raw, descriptors, _, _ = socket.recv_fds(self.channel, 4096, 1)
            if not raw:
                return 0
            self.turns += 1
            request = read_request(descriptors[0])
            if json.loads(raw)["checkpoint"] and not self.checkpoint():
                continue
            self.turn(request)

    def checkpoint(self) -> bool:
        """Fork; True in the child, which goes on. In the parent, False once the child is dead."""
        state = random.getstate()  # the random module seeds itself anew in a fork
        pid = os.fork()
        if pid == 0:
            random.setstate(state)
            self.report.owner = os.getpid()
            return True
        _, status = os.waitpid(pid, 0)
        self.report.send(json.dumps({"died": status}).encode())
        return False

    def turn(self, request: dict[str, Any]) -> None:
        self.report.send(b"started")
        moved = self.mend(request.get("stdin"))
        name = f"<cell {self.turns}>"
        source = request["code"]
        if request.get("seed") is not None:
            reseed(request["seed"])
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            place_files(request.get("files") or {})
            remember_source(name, source)
            outcome = run_prelude(request, self.scope) or execute(
                source, name, self.scope, True, lambda: self.report.send(b"compiled")
            )
        except (OSError, ValueError, KeyboardInterrupt) as error:  # of placing the files, or between our own lines
            outcome = Outcome(1, describe(error))
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        flush()
        self.report.outcome(outcome, workdir_reset=moved)

    def mend(self, stdin_text: str | None) -> bool:
        """Give the turn what an earlier one may have broken. Returns whether the work directory was lost."""
        for number, saved in enumerate(self.stdio, start=1):
            os.dup2(saved, number)
        builtins.__dict__.update(self.builtins)
        if stdin_text is not None or sys.stdin is None or sys.stdin.closed:
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            os.close(null)
        feed(stdin_text)
        open_stdio()
        try:
            os.getcwd()
            os.listdir(".")
        except OSError:
            os.makedirs(self.workdir, exist_ok=True)
            os.chdir(self.workdir)
            return True
        return False
