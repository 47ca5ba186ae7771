"""Programs that do not end, and programs that multiply."""

from __future__ import annotations

import pytest
from sandbox_bench import LIMITS, WALL_S, Bench, benches

from sandbox.schemas import Limits, Status

bench = benches()
LATE = (Status.TIMEOUT, Status.CPU_TIMEOUT)
WALL_FIRST = LIMITS.model_copy(update={"cpu_s": 60.0})
SYMPY = """
print("begun")
import sympy
a = sympy.symbols("a0:8")
sympy.groebner([sum(x**3 for x in a) - 1, *(a[i]**3*a[i+1] - a[i+2]**2 - i for i in range(6))], *a, order="lex")
while True: sympy.factorint(2**521 - 3)
"""


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import re; re.match(r'(a+)+$', 'a'*40 + '!')",
        "import signal\nfor s in (15, 2, 14, 24): signal.signal(s, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        "import atexit\ndef spin():\n  while True: pass\natexit.register(spin)",
        "class C:\n  def __del__(self):\n    while True: pass\nc = C()",
        "import threading\ndef spin():\n  while True: pass\nthreading.Thread(target=spin).start()",
        "10**10**9",
    ],
    ids=["spin", "regex", "signals-ignored", "atexit", "del", "thread", "in-c"],
)
def test_a_program_that_spins_is_stopped_at_its_limit(bench: Bench, code: str) -> None:
    result = bench.run(code, *LATE)
    assert result.wall_ms < (WALL_S + 2) * 1000
    assert result.cpu_ms < (LIMITS.cpu_s + 1) * 1000


def test_cpu_time_and_wall_time_are_told_apart(bench: Bench) -> None:
    cpu_first = Limits(wall_s=20, cpu_s=0.5)
    assert bench.run("while True: pass", Status.CPU_TIMEOUT, limits=cpu_first).cpu_ms < 2500
    bench.run("while True: pass", Status.TIMEOUT, limits=Limits(wall_s=0.5, cpu_s=30))


def test_sleep_ends_at_the_wall_limit_and_uses_no_cpu(bench: Bench) -> None:
    result = bench.run("print('a'); import time; time.sleep(10**9)", Status.TIMEOUT)
    assert result.cpu_ms < 300 and result.wall_ms >= WALL_S * 1000
    assert result.stdout == "a\n"


def test_catching_every_exception_does_not_help(bench: Bench) -> None:
    bench.run("import time\nwhile True:\n  try: time.sleep(1)\n  except BaseException: pass", Status.TIMEOUT)


def test_a_program_cannot_lift_its_own_limits(bench: Bench) -> None:
    code = """
import resource, signal
signal.alarm(0); signal.setitimer(signal.ITIMER_REAL, 0)
kinds = [k for k in dir(resource) if k.startswith("RLIMIT_")]
for k in ("RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_STACK", "RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_MEMLOCK"):
    soft, hard = resource.getrlimit(getattr(resource, k))
    assert soft == hard != resource.RLIM_INFINITY, k
    try: resource.setrlimit(getattr(resource, k), (hard + 1, hard + 1))
    except ValueError: print(k)
while True: pass
"""
    result = bench.run(code, *LATE)
    assert result.stdout.count("RLIMIT") == 7


def test_sympy_that_takes_minutes_keeps_its_partial_output(bench: Bench) -> None:
    assert bench.run(SYMPY, *LATE).stdout == "begun\n"


@pytest.mark.parametrize(
    "code",
    ["import os\nwhile True: os.fork()", "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"],
    ids=["until-refused", "for-ever"],
)
def test_a_fork_bomb_stays_within_its_process_limit(bench: Bench, code: str) -> None:
    bench.run(code, Status.ERROR, Status.KILLED, *LATE)


def test_a_thread_bomb_is_refused(bench: Bench) -> None:
    code = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    result = bench.run(code, Status.ERROR, Status.KILLED)
    assert "can't start new thread" in result.stderr or "processes and threads" in str(result.notes)


def test_a_child_that_holds_stdout_does_not_hold_the_answer(bench: Bench) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '1000']); print('done')"
    result = bench.run(code, limits=LIMITS.model_copy(update={"wall_s": 20.0}))
    assert result.stdout == "done\n" and result.wall_ms < 10_000
    assert any("were killed" in note for note in result.notes)


def test_daemons_are_killed_with_the_program(bench: Bench) -> None:
    code = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
time.sleep(0.2)
"""
    assert any("were killed" in note for note in bench.run(code).notes)


def test_kill_everything_reaches_neither_supervisor_nor_neighbours(bench: Bench) -> None:
    """kill(-1) does not signal the caller on Linux (kill(2)), and the filter refuses it altogether."""
    code = "import os\nfor s in (9, 15, 19):\n  try: os.kill(-1, s)\n  except PermissionError: print('refused')"
    assert bench.run(code).stdout == "refused\n" * 3
    result = bench.run("import os; os.kill(os.getpid(), 9)", Status.KILLED)
    assert result.signal == 9
    code = "import os\nfor p in (1, os.getppid()):\n  try: os.kill(p, 9)\n  except OSError: print('refused')"
    assert bench.run(code).stdout == "refused\n" * 2


POOL = """
import multiprocessing as mp
def square(x): return x * x
if __name__ == "__main__":
    with mp.get_context(METHOD).Pool(4) as pool:
        print(sum(pool.map(square, range(100))))
"""
TOOLS = """
import concurrent.futures, multiprocessing as mp
from multiprocessing import shared_memory
def double(x): return 2 * x
def put(queue, lock):
    with lock: queue.put("sent")
if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(2) as pool: print(list(pool.map(double, range(3))))
    queue, lock = mp.Queue(), mp.Lock()
    child = mp.Process(target=put, args=(queue, lock)); child.start(); print(queue.get()); child.join()
    block = shared_memory.SharedMemory(create=True, size=16); block.buf[0] = 7; print(block.buf[0])
    block.close(); block.unlink()
"""
AMPLE = Limits(wall_s=30, cpu_s=20, memory_mb=512)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_pools_work(bench: Bench, method: str) -> None:
    code = POOL.replace("METHOD", repr(method))
    if bench.namespaces:
        assert bench.run(code, limits=AMPLE).stdout == "328350\n"
    else:  # no /dev/shm of its own, so no semaphores
        assert "PermissionError" in bench.run(code, Status.ERROR, limits=AMPLE).stderr


def test_queues_locks_executors_and_shared_memory_work(bench: Bench) -> None:
    if bench.namespaces:
        assert bench.run(TOOLS, limits=AMPLE).stdout == "[0, 2, 4]\nsent\n7\n"
    else:
        assert "PermissionError" in bench.run(TOOLS, Status.ERROR, limits=AMPLE).stderr


def test_pip_fails_at_once_without_a_network(bench: Bench) -> None:
    code = """
import subprocess, sys
done = subprocess.run([sys.executable, "-m", "pip", "install", "x"], capture_output=True, text=True)
print(done.returncode); print(done.stderr[-300:])
"""
    result = bench.run(code, limits=Limits(wall_s=30, cpu_s=20))
    assert result.stdout.startswith(("1\n", "2\n")), result
