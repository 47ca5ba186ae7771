"""The worker processes: nothing hangs, nothing is left behind, and faults are blamed on whoever caused them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from agent_rl.rewards.settings import VerifierSettings
from agent_rl.rewards.verifier import Verifier
from agent_rl.types import InfrastructureError

HERE = __name__
DEADLINE = VerifierSettings(wall_seconds=60.0, cpu_seconds=0.5)
"""Short processor time and a wall deadline that a busy machine does not reach first."""
BOMBS = [
    json.loads(line)["answer"]
    for line in (Path(__file__).parent.parent / "data" / "verifier_pairs.jsonl").read_text("utf-8").splitlines()
    if json.loads(line)["group"] == "adversarial" and json.loads(line)["label"] == "undecided"
]


# Custom verifiers, run in the worker under their import path.


def spin(answer: str, gold: str) -> bool:
    while True:
        pass


def huge_power(answer: str, gold: str) -> bool:
    return 9**10**10 == 0  # one operation in C that never returns to the interpreter


def regex_bomb(answer: str, gold: str) -> bool:
    return re.match(r"(a+)+$", "a" * 64 + "b") is not None


def hog(answer: str, gold: str) -> bool:
    return len([bytearray(2**24) for _ in range(10_000)]) > 0


def crash(answer: str, gold: str) -> bool:
    os.kill(os.getpid(), signal.SIGSEGV)
    return True


def crash_once(answer: str, gold: str) -> bool:
    with contextlib.suppress(FileExistsError):
        os.close(os.open(answer, os.O_CREAT | os.O_EXCL))
        os._exit(3)
    return True


def fork_and_hang(answer: str, gold: str) -> bool:
    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(600)  # {answer}"])
    while True:
        pass


def noisy(answer: str, gold: str) -> bool:
    print("x" * 100_000)
    os.write(1, b"\0\0\0\5junk")
    return answer == gold


def raises(answer: str, gold: str) -> bool:
    raise RuntimeError("cannot say")


def reasoned(answer: str, gold: str) -> tuple[str, str]:
    return ("undecided", "two readings") if answer == "?" else ("correct", "by rule 7")


def nonsense(answer: str, gold: str) -> float:
    return 0.5


def children_of(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [
            child
            for child in psutil.Process(pid).children(recursive=True)
            if "agent_rl.rewards.worker" in " ".join(child.cmdline())
        ]
    return []


def gone(pid: int, seconds: float = 20) -> bool:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_adversarial_answers_from_32_callers_are_undecided_and_the_next_verdict_is_right():
    answers = [*BOMBS, "1" * 10**6, "(" * 10**5 + "7", "9^" * 5000 + "9"] * 3

    async def main() -> None:
        async with Verifier() as verifier:
            gate = asyncio.Semaphore(32)

            async def one(answer: str) -> str:
                async with gate:
                    return (await verifier.verify(answer, "7")).kind

            kinds = await asyncio.gather(*(one(answer) for answer in answers))
            assert set(kinds) == {"undecided"}
            assert (await verifier.verify("\\sqrt{8}", "2\\sqrt{2}")).kind == "correct"
            assert (await verifier.verify("\\sqrt{8}", "2\\sqrt{3}")).kind == "wrong"

    before = {child.pid for child in children_of(os.getpid())}
    asyncio.run(main())
    assert {child.pid for child in children_of(os.getpid())} <= before


@pytest.mark.parametrize("function", ["spin", "huge_power", "regex_bomb"])
def test_work_that_never_ends_is_killed_and_undecided(function):
    with Verifier(DEADLINE) as verifier:
        verdict = verifier.verify_sync("a", "b", kind=f"{HERE}:{function}")
        assert verdict.kind == "undecided" and verdict.reason.startswith("deadline")
        assert verifier.pool.killed == 1
        assert verifier.verify_sync("\\sqrt{8}", "2\\sqrt{2}").kind == "correct"


def test_algebra_that_never_ends_is_killed_and_undecided():
    with Verifier(DEADLINE) as verifier:
        verdict = verifier.verify_sync("\\int_0^1 e^{\\sin(x^2)} \\cos(x^3) dx", "7")
        assert verdict.kind == "undecided" and verdict.reason.startswith("deadline")


def test_waiting_without_work_meets_the_wall_deadline():
    with Verifier(VerifierSettings(wall_seconds=0.5)) as verifier:
        began = time.monotonic()
        verdict = verifier.verify_sync("600", "b", kind="test_verifier_processes:sleep")
        assert verdict.kind == "undecided" and "no result within 0.5 s" in verdict.reason
        assert time.monotonic() - began < 60


def sleep(answer: str, gold: str) -> bool:
    time.sleep(float(answer))
    return True


def test_memory_is_bounded_and_its_exhaustion_is_the_answers_fault():
    with Verifier(VerifierSettings(memory_mb=512)) as verifier:
        verdict = verifier.verify_sync("a", "b", kind=f"{HERE}:hog")
        assert verdict.kind == "undecided" and verdict.reason.startswith("memory")
        assert verifier.verify_sync("\\sqrt{8}", "2\\sqrt{2}").kind == "correct"
        assert verifier.pool.started == 2


def test_a_crash_of_the_verifier_is_an_infrastructure_error_after_bounded_retries():
    with Verifier(VerifierSettings(crash_retries=1)) as verifier:
        with pytest.raises(InfrastructureError, match=r"died \(signal 11\).*2 times in a row") as caught:
            verifier.verify_sync("a", "b", kind=f"{HERE}:crash")
        assert caught.value.component == "verifier" and caught.value.retryable
        assert verifier.verify_sync("\\sqrt{8}", "2\\sqrt{2}").kind == "correct"


def test_a_crash_that_does_not_repeat_is_retried(tmp_path):
    with Verifier() as verifier:
        assert verifier.verify_sync(str(tmp_path / "once"), "b", kind=f"{HERE}:crash_once").kind == "correct"
        assert verifier.pool.started == 2


def test_a_worker_that_cannot_start_is_an_infrastructure_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Verifier(VerifierSettings(crash_retries=1)) as verifier:
        with pytest.raises(InfrastructureError, match="did not start"):
            verifier.verify_sync("\\sqrt{8}", "2\\sqrt{2}")
        assert verifier.verify_sync("5", "5").kind == "correct"


def test_processes_that_a_judgement_started_are_killed_with_it():
    mark = f"mark-{os.getpid()}"
    with Verifier(DEADLINE) as verifier:
        assert verifier.verify_sync(mark, "b", kind=f"{HERE}:fork_and_hang").kind == "undecided"
    limit = time.monotonic() + 20
    while time.monotonic() < limit and _commands_with(mark):
        time.sleep(0.1)
    assert not _commands_with(mark)


def _commands_with(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and mark in " ".join(process.info["cmdline"] or []):
            found.append(process.pid)
    return found


def test_custom_verifiers_may_print_give_reasons_and_fail():
    with Verifier() as verifier:
        assert verifier.verify_sync("a", "a", kind=f"{HERE}:noisy").kind == "correct"
        assert verifier.verify_sync("a", "b", kind=f"{HERE}:noisy").kind == "wrong"
        verdict = verifier.verify_sync("a", "b", kind=f"{HERE}:reasoned")
        assert (verdict.kind, verdict.reason) == ("correct", "by rule 7")
        assert verifier.verify_sync("?", "b", kind=f"{HERE}:reasoned").kind == "undecided"
        assert "RuntimeError: cannot say" in verifier.verify_sync("a", "b", kind=f"{HERE}:raises").reason
        assert "returned 0.5" in verifier.verify_sync("a", "b", kind=f"{HERE}:nonsense").reason
        assert "ModuleNotFoundError" in verifier.verify_sync("a", "b", kind="no_such_module:f").reason
        with pytest.raises(ValueError, match="verifier kind 'maths' is unknown"):
            verifier.verify_sync("a", "b", kind="maths")
        assert verifier.pool.started == 1


def test_any_thread_and_any_loop_may_ask():
    with Verifier() as verifier:
        with ThreadPoolExecutor(8) as threads:
            kinds = list(
                threads.map(
                    lambda i: verifier.verify_sync(f"\\sqrt{{{i * i * 2}}}", f"{i}\\sqrt{{2}}").kind, range(1, 25)
                )
            )
        assert set(kinds) == {"correct"}
        results = []
        loops = [
            threading.Thread(target=lambda: results.append(asyncio.run(verifier.verify("\\sqrt{8}", "2\\sqrt2")).kind))
            for _ in range(4)
        ]
        for thread in loops:
            thread.start()
        for thread in loops:
            thread.join(timeout=60)
        assert results == ["correct"] * 4


async def test_a_cancelled_caller_leaves_the_verifier_usable():
    async with Verifier(VerifierSettings(workers=1, wall_seconds=60, cpu_seconds=1.0)) as verifier:
        tasks = [asyncio.create_task(verifier.verify("a", "b", kind=f"{HERE}:spin")) for _ in range(4)]
        await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))
        assert (await verifier.verify("\\sqrt{8}", "2\\sqrt{2}")).kind == "correct"


async def test_a_full_queue_makes_callers_wait_and_then_says_so():
    settings = VerifierSettings(workers=1, queue_size=1, queue_seconds=0.5, cpu_seconds=30.0, wall_seconds=30.0)
    async with Verifier(settings) as verifier:
        busy = [asyncio.create_task(verifier.verify("20", "b", kind=f"{HERE}:sleep")) for _ in range(2)]
        await asyncio.sleep(0.2)
        with pytest.raises(InfrastructureError, match="no place in the queue within queue_seconds"):
            await verifier.verify("\\sqrt{8}", "2\\sqrt{2}")
        assert (await verifier.verify("5", "5")).kind == "correct"
    outcomes = await asyncio.gather(*busy, return_exceptions=True)
    assert all(isinstance(outcome, InfrastructureError) for outcome in outcomes)


def test_closing_ends_the_workers_and_further_use_is_refused():
    verifier = Verifier()
    assert verifier.verify_sync("\\sqrt{8}", "2\\sqrt{2}").kind == "correct"
    workers = [child.pid for child in children_of(os.getpid())]
    assert workers
    verifier.close()
    verifier.close()
    assert all(gone(pid) for pid in workers)
    with pytest.raises(InfrastructureError, match="closed"):
        verifier.verify_sync("\\sqrt{8}", "2\\sqrt{2}")


PARENT = """
import sys, threading, time
from agent_rl.rewards.settings import VerifierSettings
from agent_rl.rewards.verifier import Verifier
verifier = Verifier(VerifierSettings(wall_seconds=300, cpu_seconds=300))
verifier.verify_sync("\\\\sqrt{8}", "2\\\\sqrt{2}")
busy = threading.Thread(target=verifier.verify_sync, args=("a", "b"), kwargs={"kind": "test_verifier_processes:spin"})
busy.daemon = True
busy.start()
time.sleep(0.5)
print("ready", flush=True)
time.sleep(0 if sys.argv[1] == "exit" else 600)
"""


@pytest.mark.parametrize("how", ["killed", "exit"])
def test_no_worker_outlives_its_parent(how):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE, env=environment, text=True)
    try:
        assert parent.stdout.readline() == "ready\n"
        workers = [child.pid for child in children_of(parent.pid)]
        if how == "killed":
            assert workers
            parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=60)
        assert all(gone(pid) for pid in workers)
    finally:
        parent.kill()
        parent.stdout.close()
        parent.wait(timeout=30)
