"""Programs that take more memory, disk, descriptors, stack or output than they may."""

from __future__ import annotations

import psutil
import pytest
from sandbox_bench import LIMITS, Bench, benches

from sandbox.schemas import Limits, Status

bench = benches()
AMPLE = LIMITS.model_copy(update={"wall_s": 15.0, "cpu_s": 10.0})
DISK = AMPLE.model_copy(update={"disk_mb": 16, "inodes": 1000, "memory_mb": 512})


def test_one_impossible_allocation_is_a_memory_error(bench: Bench) -> None:
    result = bench.run("bytearray(64 << 30)", Status.ERROR, limits=AMPLE)
    assert result.error is not None and result.error.type == "MemoryError"


def test_a_list_that_grows_for_ever_runs_out_of_memory(bench: Bench) -> None:
    result = bench.run("hoard = []\nwhile True: hoard.append('x' * 1_000_000)", Status.OOM, Status.ERROR, limits=AMPLE)
    assert result.status is Status.OOM or "MemoryError" in result.stderr


def test_the_memory_limit_is_for_all_processes_together(bench: Bench) -> None:
    code = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        hoard = bytearray(int(0.9 * 256) << 20)
        for i in range(0, len(hoard), 4096): hoard[i] = 1
        time.sleep(10); os._exit(0)
time.sleep(8)
"""
    bench.run(code, Status.OOM, limits=AMPLE)


def test_memory_within_the_limit_is_there_to_use(bench: Bench) -> None:
    code = "import numpy as np; a = np.ones((150 << 20) // 8); print(int(a.sum()))"
    result = bench.run(code, limits=AMPLE)
    assert result.stdout == f"{(150 << 20) // 8}\n"
    assert 100 < result.max_rss_mb < 256


def filled(bench: Bench) -> Limits:
    """Limits whose disk the boundary itself holds: a container's file systems have the size they were made with."""
    if bench.name != "docker":
        return DISK
    made = bench.backend.settings
    return DISK.model_copy(update={"disk_mb": made.disk_mb, "inodes": made.inodes})


@pytest.mark.parametrize("place", ["os.getcwd()", "tempfile.gettempdir()"])
def test_a_full_disk_is_an_error_not_a_lack_of_memory(bench: Bench, place: str) -> None:
    code = f"""
import os, tempfile
for i in range(1000):
    with open(f"{{{place}}}/f{{i}}", "wb") as f: f.write(bytes(1 << 20))
"""
    if bench.namespaces:
        assert "No space left" in bench.run(code, Status.ERROR, limits=filled(bench)).stderr
    else:  # looked at now and then
        bench.run(code + "import time; time.sleep(2)", Status.KILLED, limits=DISK)


def test_a_million_empty_files_run_out_of_inodes(bench: Bench) -> None:
    code = "for i in range(10**6): open(f'f{i}', 'w').close()"
    if bench.namespaces:
        assert "No space left" in bench.run(code, Status.ERROR, limits=filled(bench)).stderr
    else:
        bench.run(code, Status.KILLED, limits=DISK)


def test_a_giant_sparse_file_is_refused_and_not_fetched(bench: Bench) -> None:
    code = """
import os, resource
try: open("big", "wb").truncate(10**12)
except OSError as error: print(error.errno)
open("sparse", "wb").truncate(resource.getrlimit(resource.RLIMIT_FSIZE)[0])
"""
    result = bench.run(code, fetch_files=["big", "sparse"])
    assert result.stdout == "27\n"
    assert "sparse" in result.file_errors and "sparse" not in result.files


def test_descriptors_run_out_inside_only(bench: Bench) -> None:
    before = psutil.Process().num_fds()
    result = bench.run("hold = []\nwhile True: hold.append(open('/dev/null'))", Status.ERROR)
    assert "Too many open files" in result.stderr
    assert abs(psutil.Process().num_fds() - before) <= 2


def test_endless_recursion_ends_that_program_alone(bench: Bench) -> None:
    code = "import sys; sys.setrecursionlimit(10**7)\ndef f(): f()\nf()"
    result = bench.run(code, Status.ERROR, Status.KILLED, Status.OOM, limits=AMPLE)
    assert result.status is Status.OOM or result.signal == 11 or "Error" in result.stderr


def test_c_recursion_overflows_the_stack_of_that_program_alone(bench: Bench) -> None:
    code = """
import sys; sys.setrecursionlimit(10**7)
class A:
    def __getattr__(self, name): return getattr(self, name)
A().x
"""
    result = bench.run(code, Status.ERROR, Status.KILLED, limits=AMPLE)
    assert result.signal == 11 or "RecursionError" in result.stderr


def test_abort_is_signal_6(bench: Bench) -> None:
    assert bench.run("import os; os.abort()", Status.KILLED).signal == 6


def test_priorities_and_pinning_are_refused_or_harmless(bench: Bench) -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.mlock(ctypes.create_string_buffer(4096), 4096))
for action in (lambda: os.nice(-20), lambda: os.sched_setaffinity(0, {0})):
    try: action()
    except OSError: print("refused")
"""
    assert bench.run(code).stdout == "-1\nrefused\nrefused\n"


SMALL = AMPLE.model_copy(update={"stdout_bytes": 1000, "stderr_bytes": 1000, "flood_factor": 64})


@pytest.mark.parametrize(
    "code",
    [
        "while True: print('x'*1000)",
        "import sys\nwhile True: print('x'*1000, file=sys.stderr)",
        "import sys\nwhile True: print('x'*1000); print('y'*1000, file=sys.stderr)",
        "import os\nfor _ in range(1000): os.write(1, b'z' * (1 << 20))",
    ],
    ids=["stdout", "stderr", "both", "no-newline"],
)
def test_a_flood_is_stopped_and_costs_the_server_nothing(bench: Bench, code: str) -> None:
    before = psutil.Process().memory_info().rss
    result = bench.run(code, Status.OUTPUT_LIMIT, limits=SMALL)
    assert result.stdout_truncated or result.stderr_truncated
    assert len(result.stdout) < 1200 and len(result.stderr) < 1200
    assert psutil.Process().memory_info().rss - before < 16 << 20


@pytest.mark.parametrize("size", [65_537, 10_000_000])
def test_large_output_on_both_streams_does_not_deadlock(bench: Bench, size: int) -> None:
    code = f"import sys; sys.stdout.write('a'*{size}); sys.stderr.write('b'*{size}); print('end')"
    result = bench.run(code, limits=AMPLE)
    assert (result.stdout_bytes, result.stderr_bytes) == (size + 4, size)
    assert result.stdout.startswith("a") and result.stdout.endswith("end\n")


def test_head_and_tail_are_kept_and_the_gap_is_named(bench: Bench) -> None:
    result = bench.run("for i in range(10000): print(i)", limits=SMALL)
    assert result.stdout.startswith("0\n1\n2\n") and result.stdout.endswith("9998\n9999\n")
    assert f"[... {result.stdout_bytes - 1000} bytes omitted ...]" in result.stdout


def test_undecodable_output_becomes_replacement_characters(bench: Bench) -> None:
    code = "import os\nfor piece in (b'\\xff\\xfe\\x00', b'\\xf0\\x9f', b'\\x98\\x80'): os.write(1, piece)"
    result = bench.run(code)
    assert result.stdout == "\ufffd\ufffd\x00\U0001f600"
    assert "UnicodeEncodeError" in bench.run("print('\\udc80')", Status.ERROR).stderr


@pytest.mark.parametrize(
    "code",
    ["import sys; sys.stdout.close()", "import os; os.close(1)", "import sys; sys.stdout = None; print('x')",
     "import builtins; builtins.print = None", "import os; os.closerange(0, 100)"],
)  # fmt: skip
def test_a_program_may_break_its_own_output(bench: Bench, code: str) -> None:
    bench.run(code)


def test_what_was_printed_before_a_sudden_end_is_there(bench: Bench) -> None:
    assert bench.run("import os; print('a'); os._exit(0)").stdout == "a\n"
    assert bench.run("import os; print('a', end=''); os.kill(os.getpid(), 9)", Status.KILLED).stdout == "a"


def test_the_last_expression_is_shown_on_request(bench: Bench) -> None:
    shown = {"show_result": True, "limits": Limits(wall_s=1.5, cpu_s=1.4, memory_mb=2048)}
    assert bench.run("x = 6\nx * 7", **shown).result == "42"
    assert bench.run("None", **shown).result is None
    broken = bench.run("class A:\n  def __repr__(self): raise ValueError('no')\nA()", Status.ERROR, **shown)
    assert "ValueError: no" in broken.stderr
    wrong = bench.run("class A:\n  def __repr__(self): return 5\nA()", Status.ERROR, **shown)
    assert "TypeError" in wrong.stderr
    endless = "class A:\n  def __repr__(self):\n    while True: pass\nA()"
    bench.run(endless, Status.TIMEOUT, Status.CPU_TIMEOUT, **shown)
    long = bench.run("class A:\n  def __repr__(self): return 'x' * 10**8\nA()", **shown)
    assert long.result is not None and len(long.result) < 70_000
