"""The worker process: judges one answer at a time, under its own limits, until its standard input ends.

Started as `python -m agent_rl.rewards.worker PARENT MEMORY_MB`; never imported by the parent. Messages on standard
input and output are a length (4 bytes, big endian) and JSON. What a judgement prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
import threading
import time
from typing import Any

PR_SET_PDEATHSIG = 1


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process with its parent; elsewhere than Linux, watch for a new parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(0.5)
            os._exit(0)

        threading.Thread(target=watch, daemon=True).start()
    if os.getppid() != parent:
        os._exit(0)


def _limit(memory_mb: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    size = memory_mb * 2**20
    if sys.platform == "linux":  # elsewhere address space cannot be limited
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**24, 2**24))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    sys.setrecursionlimit(3000)
    sys.set_int_max_str_digits(0)  # what is slow is ended by the deadline, not by an error


def _limit_cpu(seconds: float) -> None:
    """Let the kernel end this process (SIGPROF, which nobody handles) after so much more processor time.

    A limit of whole seconds (SIGXCPU) stands behind it, against code that stops the timer.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(usage.ru_utime + usage.ru_stime + seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _read_exactly(descriptor: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        piece = os.read(descriptor, min(size - len(data), 65536))
        if not piece:
            return None
        data += piece
    return data


def _write(descriptor: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    data = struct.pack(">I", len(data)) + data
    while data:
        data = data[os.write(descriptor, data) :]


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    from agent_rl.rewards.judge import judge

    recycle = False
    try:
        judgement = judge(job["answer"], job["gold"], job["kind"], job["options"])
        kind, reason = judgement.kind, judgement.reason
    except MemoryError:
        kind, reason, recycle = "undecided", "memory: the limit was reached", True
    except RecursionError:
        kind, reason = "undecided", "size: nested too deeply"
    except Exception as error:
        # Whatever sympy or a custom verifier raises says nothing about right or wrong.
        kind, reason = "undecided", f"error: {type(error).__name__}: {str(error)[:200]}"
    return {"kind": kind, "reason": reason, "recycle": recycle}


def main(parent: int, memory_mb: int) -> None:
    """Serve judgements until standard input ends."""
    _die_with_parent(parent)
    _limit(memory_mb)
    source, sink = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    import agent_rl.rewards.algebra
    import agent_rl.rewards.judge  # noqa: F401

    _write(sink, {"ready": True})
    while (header := _read_exactly(source, 4)) is not None:
        body = _read_exactly(source, struct.unpack(">I", header)[0])
        if body is None:
            return
        job = json.loads(body)
        _limit_cpu(job["cpu_seconds"])
        reply = _answer(job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(sink, reply)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
