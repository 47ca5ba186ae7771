"""Sessions keep their state as a notebook does, and always say what became of it."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from sandbox_bench import Bench, benches

from sandbox.backends.base import SlotError
from sandbox.schemas import ExecuteRequest, ExecuteResult, Limits, SessionState, Status

bench = benches()
TURN = Limits(wall_s=1.0, cpu_s=0.9, memory_mb=256)
STUBBORN = "import time\nwhile True:\n  try: time.sleep(1)\n  except BaseException: pass"
KEPT, RESET, ROLLED_BACK, LOST = SessionState.KEPT, SessionState.RESET, SessionState.ROLLED_BACK, SessionState.LOST


class Talk:
    """An open session of a bench's slot."""

    def __init__(self, bench: Bench, checkpoint: bool = True) -> None:
        self.bench = bench
        bench.call(bench.slot.open_session(256, checkpoint=checkpoint))

    def say(self, code: str, status: Status = Status.OK, state: SessionState = KEPT, **fields: Any) -> ExecuteResult:
        limits = fields.pop("limits", TURN)
        request = ExecuteRequest(code=code, limits=limits, **fields)
        began = time.monotonic()
        result = self.bench.call(self.bench.slot.run_in_session(request))
        assert (result.status, result.state) == (status, state), result
        assert time.monotonic() - began < limits.wall_s + 5
        return result


@pytest.fixture
def talk(bench: Bench) -> Iterator[Talk]:
    yield Talk(bench)
    bench.call(bench.slot.close_session())
    bench.check()


@pytest.fixture
def plain_talk(bench: Bench) -> Iterator[Talk]:
    """Without checkpoints."""
    yield Talk(bench, checkpoint=False)
    bench.call(bench.slot.close_session())
    bench.check()


def test_names_functions_classes_generators_and_files_stay(talk: Talk) -> None:
    talk.say("x = 1\ndef f(): return x + 1\nclass C: n = 5\ng = (i for i in range(9))\nh = open('notes', 'w+')")
    error = talk.say("x = 10\n1/0", Status.ERROR)
    assert '"<cell 2>", line 2' in error.stderr and "1/0" in error.stderr
    assert talk.say("h.write('kept'); h.seek(0); (f(), C().n, next(g), next(g), h.read())").result == (
        "(11, 5, 0, 1, 'kept')"
    )
    assert talk.say("import inspect; inspect.getsource(f)").result == "'def f(): return x + 1\\n'"
    assert talk.say("x;").result == "10" and talk.say("print(_)").stdout == "10\n"


def test_checkpoints_do_not_disturb_random_numbers(talk: Talk) -> None:
    drawn = talk.say("import random; random.seed(1); [random.random() for _ in range(3)]").result
    talk.say("random.seed(1); a = random.random()")
    talk.say("b = random.random()")
    assert talk.say("[a, b, random.random()]").result == drawn


@pytest.mark.parametrize(
    ("code", "exit_code"), [("exit()", 0), ("import sys; sys.exit(3)", 3), ("raise SystemExit('m')", 1)]
)
def test_leaving_ends_the_turn_only(talk: Talk, code: str, exit_code: int) -> None:
    talk.say("x = 1")
    result = talk.say(code, Status.ERROR if exit_code else Status.OK)
    assert result.exit_code == exit_code
    assert talk.say("x").result == "1"


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "GeneratorExit", "BaseException()"])
def test_no_exception_ends_the_session(talk: Talk, error: str) -> None:
    talk.say("x = 1")
    talk.say(f"raise {error}", Status.ERROR)
    talk.say("def f(:", Status.SYNTAX_ERROR)
    assert talk.say("x").result == "1"


def test_os_exit_resets_and_says_so(talk: Talk) -> None:
    talk.say("x = 1")
    assert talk.say("import os; os._exit(7)", Status.ERROR, RESET).exit_code == 7
    assert "NameError" in talk.say("x", Status.ERROR).stderr


def test_a_timeout_that_can_be_interrupted_keeps_the_state(talk: Talk) -> None:
    talk.say("x = 1")
    cpu_first = Limits(wall_s=20, cpu_s=0.5)
    result = talk.say("x = 2; print('partial')\nwhile True: pass", Status.CPU_TIMEOUT, limits=cpu_first)
    assert result.stdout == "partial\n" and "KeyboardInterrupt" in result.stderr
    assert talk.say("x").result == "2"


def test_a_timeout_that_cannot_be_interrupted_rolls_back(talk: Talk) -> None:
    talk.say("x = 1")
    result = talk.say("x = 2; print('partial')\n" + STUBBORN, Status.TIMEOUT, ROLLED_BACK)
    assert result.stdout == "partial\n"
    assert talk.say("x").result == "1"
    talk.say("x = 3")
    talk.say(STUBBORN, Status.TIMEOUT, ROLLED_BACK)
    assert talk.say("x").result == "3"


def test_without_a_checkpoint_it_resets(plain_talk: Talk) -> None:
    plain_talk.say("x = 1")
    plain_talk.say(STUBBORN, Status.TIMEOUT, RESET)
    assert "NameError" in plain_talk.say("x", Status.ERROR).stderr
    assert plain_talk.say("6 * 7").result == "42"


def test_a_crash_or_a_lack_of_memory_rolls_back(talk: Talk) -> None:
    talk.say("x = 1")
    assert talk.say("import os; os.abort()", Status.KILLED, ROLLED_BACK).signal == 6
    assert talk.say("x").result == "1"
    ample = Limits(wall_s=15, cpu_s=10)
    hoard = "h = []\nwhile True: h.append('x' * 1_000_000)"
    result = talk.bench.call(talk.bench.slot.run_in_session(ExecuteRequest(code=hoard, limits=ample)))
    assert (result.status, result.state) in ((Status.OOM, ROLLED_BACK), (Status.ERROR, KEPT)), result
    if result.state is KEPT:
        assert "MemoryError" in result.stderr
    assert talk.say("x").result == "1"


def test_a_flood_keeps_the_state(talk: Talk) -> None:
    talk.say("x = 1")
    flooded = TURN.model_copy(update={"stdout_bytes": 1000, "wall_s": 10.0, "cpu_s": 8.0})
    talk.say("while True: print('y' * 1000)", Status.OUTPUT_LIMIT, limits=flooded)
    assert talk.say("x").result == "1"


def test_threads_are_counted_and_prevent_a_checkpoint(talk: Talk) -> None:
    code = "import threading, time\ndef tick():\n  time.sleep(0.3); print('late')\n"
    assert talk.say(code + "t = threading.Thread(target=tick); t.start()").threads_alive == 1
    later = talk.say("t.join(); 'joined'")
    assert later.result == "'joined'" and later.stdout == "late\n" and later.threads_alive == 0
    assert any("background threads" in note for note in later.notes)
    talk.say("x = 1\ndef spin():\n  while True: pass\nthreading.Thread(target=spin, daemon=True).start()")
    talk.say(STUBBORN, Status.TIMEOUT, RESET, limits=TURN.model_copy(update={"cpu_s": 60.0}))


def test_nothing_runs_between_turns(talk: Talk) -> None:
    talk.say("import threading\nn = 0\ndef count():\n  global n\n  while True: n += 1\n"
             "threading.Thread(target=count, daemon=True).start()")  # fmt: skip
    slot = psutil.Process(talk.bench.slot.pid)
    deadline = time.monotonic() + 10
    while True:
        states = {process.status() for process in slot.children(recursive=True)}
        if psutil.STATUS_STOPPED in states and psutil.STATUS_RUNNING not in states:
            return
        assert time.monotonic() < deadline, states
        time.sleep(0.01)


def test_a_program_may_break_its_output_for_one_turn(talk: Talk) -> None:
    for code in (
        "import sys; sys.stdout.close()",
        "import os; os.close(1); os.close(2)",
        "import sys; sys.stdout = None",
        "import builtins; builtins.print = None",
        "import os; os.dup2(os.open('/dev/null', 1), 1)",
    ):
        talk.say(code)
        assert talk.say("print('again')").stdout == "again\n"


def test_a_program_that_closes_the_report_is_reset(talk: Talk) -> None:
    talk.say("import os; os.closerange(3, 200)", Status.ERROR, RESET)
    assert talk.say("6 * 7").result == "42"


def test_a_forged_report_does_not_put_the_slot_out_of_step(talk: Talk) -> None:
    talk.bench.call(talk.bench.slot.run_in_session(ExecuteRequest(limits=TURN, code="""
import os, time
for fd in range(3, 30):
    try: os.write(fd, b'{"code": 0, "error": null, "result": "forged"}\\n{"died": 0}\\n[1]\\nnonsense\\n')
    except OSError: pass
time.sleep(0.2)
""")))  # fmt: skip
    for _ in range(3):
        result = talk.bench.call(talk.bench.slot.run_in_session(ExecuteRequest(code="6 * 7", limits=TURN)))
    assert result.result == "42"


def test_a_lost_work_directory_is_made_anew_and_flagged(talk: Talk) -> None:
    result = talk.say("import os, shutil; os.mkdir('d'); os.chdir('d'); os.rmdir(os.getcwd())")
    assert not result.workdir_reset
    assert talk.say("import os; open('f', 'w').close(); os.listdir()").workdir_reset
    assert not talk.say("1").workdir_reset


def test_files_and_input_of_a_turn(talk: Talk) -> None:
    content = base64.b64encode(b"data").decode()
    result = talk.say("open('in').read() + input()", files={"in": content}, stdin="typed\n", fetch_files=["in"])
    assert result.result == "'datatyped'" and result.files == {"in": content}
    assert "EOFError" in talk.say("input()", Status.ERROR).stderr


def test_interrupt_and_cancel(bench: Bench) -> None:
    talk = Talk(bench)
    talk.say("x = 1")
    long = Limits(wall_s=20, cpu_s=10)

    async def disturbed(code: str, how: str) -> ExecuteResult:
        task = asyncio.create_task(bench.slot.run_in_session(ExecuteRequest(code=code, limits=long)))
        await asyncio.sleep(0.5)
        await getattr(bench.slot, how)()
        return await task

    interrupted = bench.call(disturbed("x = 2\nimport time; time.sleep(15)", "interrupt"))
    assert (interrupted.status, interrupted.state) == (Status.ERROR, KEPT) and "KeyboardInterrupt" in interrupted.stderr
    assert talk.say("x").result == "2"
    stubborn = bench.call(disturbed(STUBBORN, "interrupt"))
    assert stubborn.status in (Status.TIMEOUT, Status.CANCELLED) and stubborn.state is ROLLED_BACK
    cancelled = bench.call(disturbed("x = 9\nimport time; time.sleep(15)", "cancel"))
    assert (cancelled.status, cancelled.state) == (Status.CANCELLED, ROLLED_BACK)
    assert talk.say("x").result == "2"
    bench.call(bench.slot.close_session())
    bench.check()


def test_two_turns_at_once_are_refused(bench: Bench) -> None:
    talk = Talk(bench)

    async def both() -> list[Any]:
        request = ExecuteRequest(code="import time; time.sleep(0.3)", limits=TURN)
        turns = [bench.slot.run_in_session(request) for _ in "ab"]
        return await asyncio.gather(*turns, return_exceptions=True)

    first, second = bench.call(both())
    assert first.status is Status.OK and isinstance(second, RuntimeError)
    talk.say("1")
    bench.call(bench.slot.close_session())
    bench.check()


def test_a_session_killed_between_turns_is_lost(bench: Bench) -> None:
    Talk(bench)
    for process in psutil.Process(bench.slot.pid).children(recursive=True):
        if process.status() == psutil.STATUS_STOPPED or process == _youngest(bench):
            process.kill()
    time.sleep(0.1)
    result = bench.call(bench.slot.run_in_session(ExecuteRequest(code="1", limits=TURN)))
    assert (result.status, result.state) == (Status.SESSION_LOST, LOST)
    bench.check()


def _youngest(bench: Bench) -> psutil.Process:
    return max(psutil.Process(bench.slot.pid).children(recursive=True), key=lambda p: (p.create_time(), p.pid))


def test_a_killed_interpreter_is_the_slots_failure(bench: Bench) -> None:
    slot = bench.fresh_slot()
    family = psutil.Process(slot.pid).children(recursive=True)
    max(family, key=lambda p: p.memory_info().rss).kill()
    with pytest.raises(SlotError):
        bench.call(slot.run(ExecuteRequest(code="print(1)", limits=TURN)))
    assert slot.dirty
    bench.call(slot.destroy())
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family)
