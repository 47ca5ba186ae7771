"""When waiting requests may start."""

from __future__ import annotations

import asyncio
import math

from agent_rl.engines.admission import Continuous, Lockstep
from agent_rl.engines.base import GenerationRequest
from agent_rl.engines.job import Job


def _jobs(names: str) -> list[Job]:
    loop = asyncio.new_event_loop()
    loop.close()
    return [Job(GenerationRequest(name, (1,), 1, seed=0), asyncio.Future(loop=loop), loop, 1, None) for name in names]


def _names(jobs: list[Job]) -> str:
    return "".join(job.name for job in jobs)


def test_continuous_is_first_come_first_served_within_the_room() -> None:
    admission = Continuous(patience=4)
    for job in _jobs("cab"):
        admission.add(job)
    assert _names(admission.take(running=0, room=2)) == "ca"
    assert _names(admission.take(running=0, room=0)) == ""
    admission.put_back(_jobs("xy"))
    assert _names(admission.waiting()) == "xyb"


def test_few_arrivals_beside_many_wait_some_steps_for_company() -> None:
    admission = Continuous(patience=3)
    for job in _jobs("ab"):
        admission.add(job)
    assert [_names(admission.take(running=100, room=9)) for _ in range(4)] == ["", "", "", "ab"]
    for job in _jobs("cd"):
        admission.add(job)
    assert _names(admission.take(running=16, room=9)) == "cd"
    assert admission.next_check() == math.inf and admission.overdue() is None


def test_lockstep_waits_for_all_announced_and_starts_in_the_order_of_names() -> None:
    admission = Lockstep(timeout=60)
    admission.expect("abcd")
    for job in _jobs("dba"):
        admission.add(job)
    assert admission.take(running=0, room=9) == []
    admission.release("c")
    assert admission.take(running=1, room=9) == []
    assert _names(admission.take(running=0, room=2)) == "ab"
    for job in _jobs("a"):
        admission.add(job)
    assert not admission.may_free(running=2) and not admission.may_free(running=0)
    # The rest of the round goes before anyone's next turn.
    assert _names(admission.take(running=2, room=9)) == "d"
    assert _names(admission.take(running=0, room=9)) == ""
    assert admission.may_free(running=0)
    for name in "bd":
        admission.release(name)
    assert _names(admission.take(running=0, room=9)) == "a"


def test_a_trajectory_is_announced_by_its_first_request() -> None:
    admission = Lockstep(timeout=60)
    admission.add(_jobs("a")[0])
    assert _names(admission.take(running=0, room=9)) == "a"
    admission.add(_jobs("b")[0])
    assert admission.take(running=0, room=9) == []
    admission.release("a")
    assert _names(admission.take(running=0, room=9)) == "b"


def test_an_overdue_lockstep_names_the_missing() -> None:
    admission = Lockstep(timeout=0.0)
    admission.expect(["a", "x1", "x2", "x3", "x4"])
    assert admission.overdue() is None
    (job,) = _jobs("a")
    admission.add(job)
    error = admission.overdue()
    assert error is not None and "x1, x2, x3 and 1 more" in str(error)
    admission.remove(job)
    assert admission.overdue() is None
