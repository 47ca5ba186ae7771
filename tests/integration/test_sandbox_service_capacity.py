"""Capacity: bounded queue, honest refusals, dead and hanging slots, recycling, tenants."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest
from pydantic import ValidationError

from sandbox.errors import NotReady
from sandbox.schemas import ExecuteRequest, Limits, Status
from sandbox.service import Caller, running
from sandbox.settings import ServiceSettings
from tests.integration.scripted_slots import ScriptedBackend
from tests.integration.service_kit import eventually, serving


def _run(served, code: str, **options):  # type: ignore[no-untyped-def]
    return served.post("/v1/execute", {"code": code, **options})


async def test_ten_times_more_clients_than_slots_and_queue_get_bounded_answers() -> None:
    backend = ScriptedBackend()
    async with serving(backend, queue_per_slot=4, queue_timeout_s=0.5) as served:
        flood = [asyncio.ensure_future(_run(served, "sleep 0.1")) for _ in range(100)]
        health = []
        while not all(task.done() for task in flood):
            began = time.monotonic()
            assert (await served.http.get("/healthz")).status_code == 200
            health.append(time.monotonic() - began)
            await asyncio.sleep(0.02)
        answers = [task.result() for task in flood]
        statuses = {answer.status_code for answer in answers}
        assert statuses <= {200, 429, 504} and {200, 429} <= statuses
        assert backend.most_running <= 2
        for answer in answers:
            if answer.status_code == 429:
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.json()["error"]["retryable"] is True
        assert len(health) > 3 and sorted(health)[len(health) // 2] < 0.5
        assert served.service.gate.waiting == 0 and served.service.gate.free == 2


async def test_a_wait_beyond_the_queue_timeout_is_504_and_runs_nothing() -> None:
    backend = ScriptedBackend()
    async with serving(backend, slots=1) as served:
        first = asyncio.ensure_future(_run(served, "sleep 0.6"))
        await eventually(lambda: backend.running == 1)
        answer = await _run(served, "say never", queue_timeout_s=0.1)
        assert answer.status_code == 504 and answer.json()["error"]["code"] == "queue_timeout"
        assert (await first).status_code == 200
        assert "say never" not in backend.programs


async def test_queue_time_is_reported_and_is_not_run_time() -> None:
    async with serving(ScriptedBackend(), slots=1) as served:
        first = asyncio.ensure_future(_run(served, "sleep 0.3"))
        await eventually(lambda: served.service.gate.free == 0)
        second = (await _run(served, "say x", limits={"wall_s": 0.05})).json()
        await first
        assert second["status"] == "ok" and second["queue_ms"] > 50


async def test_a_slot_that_dies_gives_a_retryable_error_and_the_pool_heals() -> None:
    backend = ScriptedBackend()
    async with serving(backend) as served:
        result = (await _run(served, "die")).json()
        assert (result["status"], result["retryable"]) == ("sandbox_error", True)
        await eventually(lambda: backend.alive == 2 and len(served.service.pool.free) == 2)
        assert (await _run(served, "say 42")).json()["stdout"] == "42"
        assert backend.starts == 3


async def test_a_slot_that_does_not_answer_is_destroyed_after_limit_and_grace() -> None:
    backend = ScriptedBackend()
    async with serving(backend, slots=1) as served:
        began = time.monotonic()
        result = (await _run(served, "hang", limits={"wall_s": 0.2})).json()
        assert result["status"] == "sandbox_error" and result["retryable"]
        assert 0.7 <= time.monotonic() - began < 3
        await eventually(lambda: backend.slots[0].destroyed)
        assert (await _run(served, "say 42")).json()["stdout"] == "42"


async def test_slots_are_recycled_after_their_number_of_runs() -> None:
    backend = ScriptedBackend()
    async with serving(backend, slots=1, recycle_runs=3) as served:
        for _ in range(7):
            assert (await _run(served, "say x")).json()["status"] == "ok"
        assert [slot.runs for slot in backend.slots] == [3, 3, 1]
        assert backend.slots[0].destroyed and backend.slots[1].destroyed


async def test_old_idle_slots_are_replaced() -> None:
    backend = ScriptedBackend()
    async with serving(backend, slots=1, recycle_s=0.3) as served:
        await eventually(lambda: backend.starts >= 2 and backend.slots[0].destroyed)
        assert (await _run(served, "say x")).json()["status"] == "ok"


async def test_failing_starts_back_off_and_callers_are_told() -> None:
    backend = ScriptedBackend()
    async with serving(backend, slots=1, restart_backoff_s=0.05) as served:
        backend.fail_starts = 4
        before = len(backend.start_times)
        assert (await _run(served, "die")).json()["status"] == "sandbox_error"
        waited = await _run(served, "say x")  # three failures in a row: told rather than kept waiting
        assert waited.status_code == 503 and waited.json()["error"]["retryable"]
        await eventually(lambda: len(served.service.pool.free) == 1)
        times = backend.start_times[before:]
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert len(times) == 5
        assert pauses[2] > pauses[0]
        assert (await _run(served, "say x")).status_code == 200


async def test_a_start_that_cannot_succeed_raises() -> None:
    backend = ScriptedBackend()
    backend.fail_starts = 10**6
    with pytest.raises(Exception, match="told not to start"):
        async with running(ServiceSettings(slots=1, restart_backoff_s=0.01), backend):
            pass


async def test_slots_never_move_between_tenants() -> None:
    backend = ScriptedBackend()
    async with running(ServiceSettings(slots=2, queue_per_slot=20), backend) as service:
        served: dict[int, set[str]] = {}

        async def one(tenant: str) -> None:
            await service.execute(ExecuteRequest(code=f"say {tenant}"), Caller(tenant, tenant))

        await asyncio.gather(*[one(f"tenant {number % 3}") for number in range(30)])
        for index, slot in enumerate(backend.slots):
            pooled = [p for p in service.pool.free if p.slot is slot]
            served.setdefault(index, set()).update(p.tenant for p in pooled if p.tenant)
        assert len(backend.programs) == 30
        assert backend.starts > 2  # slots were replaced rather than handed over
        assert all(len(tenants) <= 1 for tenants in served.values())


async def test_a_caller_who_hangs_up_has_his_program_killed_and_the_slot_is_usable() -> None:
    backend = ScriptedBackend()
    async with serving(backend, slots=1) as served:
        hung_up = asyncio.ensure_future(_run(served, "sleep 30"))
        await eventually(lambda: backend.running == 1)
        hung_up.cancel()
        await eventually(lambda: backend.running == 0, 3)
        assert backend.cancels == 1
        assert (await _run(served, "say 42")).json()["stdout"] == "42"
        assert backend.starts == 1


async def test_a_caller_who_hangs_up_in_the_queue_leaves_it() -> None:
    backend = ScriptedBackend()
    async with serving(backend, slots=1) as served:
        first = asyncio.ensure_future(_run(served, "sleep 0.5"))
        await eventually(lambda: backend.running == 1)
        second = asyncio.ensure_future(_run(served, "say never"))
        await eventually(lambda: served.service.gate.waiting == 1)
        second.cancel()
        await eventually(lambda: served.service.gate.waiting == 0)
        await first
        assert "say never" not in backend.programs


async def test_draining_refuses_new_programs_and_lets_running_ones_end() -> None:
    backend = ScriptedBackend()
    async with serving(backend, slots=1) as served:
        last = asyncio.ensure_future(_run(served, "sleep 0.4\nsay done"))
        await eventually(lambda: backend.running == 1)
        draining = asyncio.ensure_future(served.service.drain())
        await asyncio.sleep(0.01)
        refused = await _run(served, "say x")
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert (await served.http.get("/readyz")).status_code == 503
        assert (await served.http.get("/healthz")).status_code == 200
        await draining
        assert (await last).json()["stdout"] == "done"


async def test_a_service_that_has_not_started_admits_nothing() -> None:
    from sandbox.service import SandboxService

    service = SandboxService(ServiceSettings(), ScriptedBackend())
    with pytest.raises(NotReady):
        await service.execute(ExecuteRequest(code=""), Caller())


async def test_a_batch_answers_each_program_by_itself_and_does_not_overflow_the_queue() -> None:
    backend = ScriptedBackend()
    async with serving(backend, queue_per_slot=2) as served:
        programs = [{"code": f"say {number}"} for number in range(60)] + [{"code": "x", "files": {"../x": ""}}]
        answer = (await served.post("/v1/execute/batch", {"requests": programs})).json()
        items = answer["items"]
        assert [item["result"]["stdout"] for item in items[:60]] == [str(number) for number in range(60)]
        assert items[60]["http_status"] == 422 and items[60]["result"] is None
        too_many = await served.post("/v1/execute/batch", {"requests": [{"code": ""}] * 257})
        assert too_many.status_code == 413


async def test_a_named_request_runs_once() -> None:
    backend = ScriptedBackend()
    async with serving(backend) as served:
        together = [_run(served, "sleep 0.2\nsay once", request_id="a") for _ in range(5)]
        answers = await asyncio.gather(*together)
        later = await _run(served, "sleep 0.2\nsay once", request_id="a")
        assert [answer.json()["stdout"] for answer in [*answers, later]] == ["once"] * 6
        assert len(backend.programs) == 1
        other = await _run(served, "say different", request_id="a")
        assert other.status_code == 409
        failed = await _run(served, "die", request_id="b")
        again = await _run(served, "die", request_id="b")
        assert failed.json()["retryable"] and again.json()["retryable"]
        assert backend.programs.count("die") == 2  # failures of ours are not answers to keep


async def test_kept_results_are_bounded_in_bytes() -> None:
    backend = ScriptedBackend()
    async with serving(backend, idempotency_bytes=10_000) as served:
        for number in range(20):
            await _run(served, "say " + "x" * 1000, request_id=str(number))
        assert served.service.once.bytes <= 10_000
        assert 1 <= len(served.service.once._kept) <= 4


async def test_the_loop_lag_and_the_pool_are_published() -> None:
    async with serving(ScriptedBackend()) as served:
        await _run(served, "say x")
        await asyncio.sleep(0.3)
        page = (await served.http.get("/metrics")).text
        for line in ('sandbox_runs_total{status="ok"} 1.0', 'sandbox_slots{pool="runs",state="free"} 2.0'):
            assert line in page
        assert "sandbox_loop_lag_ms" in page and "sandbox_open_fds" in page
        ready = (await served.http.get("/readyz")).json()
        assert (ready["tier"], ready["slots"], ready["slots_free"], ready["queue_capacity"]) == ("T0", 2, 2, 16)
        assert ready["probes"][0]["checks"] == {"scripted": True}


def test_a_network_address_without_a_token_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValidationError, match=r"set `tokens`.*or listen on 127\.0\.0\.1"):
        ServiceSettings(host="0.0.0.0")
    ServiceSettings(host="0.0.0.0", tokens=("x" * 16,))


async def test_status_of_a_result_and_of_the_limits_are_told_apart() -> None:
    async with running(ServiceSettings(slots=1), ScriptedBackend()) as service:
        result = await service.execute(
            ExecuteRequest(code="say x", limits=Limits(wall_s=1e9, memory_mb=10**6)), Caller()
        )
        assert result.status == Status.OK
        assert result.notes == [
            "limits.memory_mb: 1e+06 is above the maximum; 8192 was used",
            "limits.wall_s: 1e+09 is above the maximum; 60 was used",
        ]
