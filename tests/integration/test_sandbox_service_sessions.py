"""Sessions: one turn at a time, an honest state, ends that are said, tenants kept apart."""

from __future__ import annotations

import asyncio

from tests.integration.scripted_slots import ScriptedBackend
from tests.integration.service_kit import Served, eventually, serving

ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789ab"


async def _open(served: Served, **options) -> str:  # type: ignore[no-untyped-def]
    answer = await served.post("/v1/sessions", {}, **options)
    assert answer.status_code == 201, answer.text
    return answer.json()["session_id"]


def _turn(served: Served, session: str, code: str, **options):  # type: ignore[no-untyped-def]
    return served.post(f"/v1/sessions/{session}/execute", {"code": code}, **options)


async def test_a_session_remembers_and_says_so() -> None:
    async with serving(ScriptedBackend()) as served:
        session = await _open(served)
        first = (await _turn(served, session, "keep a")).json()
        second = (await _turn(served, session, "recall")).json()
        assert (first["state"], first["new_session"], first["session_id"]) == ("kept", True, session)
        assert (second["stdout"], second["state"], second["new_session"]) == ("a", "kept", False)


async def test_a_session_does_not_use_up_a_slot_for_stateless_runs() -> None:
    async with serving(ScriptedBackend(), slots=1, max_sessions=3) as served:
        for _ in range(3):
            await _open(served)
        assert (await served.post("/v1/execute", {"code": "say 42"})).json()["stdout"] == "42"


async def test_concurrent_turns_are_served_one_after_the_other() -> None:
    backend = ScriptedBackend()
    async with serving(backend) as served:
        session = await _open(served)
        turns = [_turn(served, session, f"keep {number}\nsleep 0.05\nrecall") for number in range(4)]
        outputs = sorted(len(answer.json()["stdout"].split()) for answer in await asyncio.gather(*turns))
        assert outputs == [1, 2, 3, 4]  # the slot itself asserts that no two ran at once


async def test_too_many_waiting_turns_are_refused() -> None:
    async with serving(ScriptedBackend(), session_turns_waiting=2) as served:
        session = await _open(served)
        turns = await asyncio.gather(*[_turn(served, session, "sleep 0.1") for _ in range(6)])
        assert sorted(answer.status_code for answer in turns) == [200, 200, 200, 429, 429, 429]


async def test_turns_share_the_permits_of_stateless_runs() -> None:
    backend = ScriptedBackend()
    async with serving(backend, slots=2, max_sessions=6) as served:
        sessions = [await _open(served) for _ in range(6)]
        await asyncio.gather(*[_turn(served, session, "sleep 0.05") for session in sessions])
        assert backend.most_running == 2


async def test_idle_sessions_end_with_410_and_the_reason() -> None:
    backend = ScriptedBackend()
    async with serving(backend, session_idle_s=0.2) as served:
        session = await _open(served)
        await asyncio.sleep(0.3)
        answer = await _turn(served, session, "say x")
        assert answer.status_code == 410
        assert answer.json()["error"]["code"] == "session_lost" and "idle" in answer.json()["error"]["message"]
        await eventually(lambda: not served.service.sessions.table.open)


async def test_the_sweep_ends_idle_sessions_by_itself() -> None:
    async with serving(ScriptedBackend(), session_idle_s=0.2) as served:
        await _open(served)
        await eventually(lambda: not served.service.sessions.table.open)
        assert 'sandbox_sessions_lost_total{reason="idle"} 1.0' in (await served.http.get("/metrics")).text


async def test_a_turn_longer_than_the_idle_time_does_not_end_its_session() -> None:
    async with serving(ScriptedBackend(), session_idle_s=0.2) as served:
        session = await _open(served)
        assert (await _turn(served, session, "sleep 1.3\nsay x")).json()["stdout"] == "x"


async def test_at_the_cap_the_least_recently_used_idle_session_is_evicted() -> None:
    async with serving(ScriptedBackend(), max_sessions=2, evict_idle_s=0.0) as served:
        first, second = await _open(served), await _open(served)
        await _turn(served, first, "say x")
        third = await _open(served)
        gone = await _turn(served, second, "say x")
        assert gone.status_code == 410 and "evicted" in gone.json()["error"]["message"]
        for session in (first, third):
            assert (await _turn(served, session, "say x")).status_code == 200


async def test_at_the_cap_sessions_in_use_are_kept_and_the_newcomer_waits() -> None:
    async with serving(ScriptedBackend(), max_sessions=1, evict_idle_s=60) as served:
        session = await _open(served)
        refused = await served.post("/v1/sessions", {})
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert (await served.http.delete(f"/v1/sessions/{session}")).status_code == 204
        await _open(served)


async def test_unknown_foreign_deleted_and_earlier_sessions_are_told_apart() -> None:
    async with serving(ScriptedBackend(), tokens=(ALICE, BOB)) as served:
        alice, bob = ({"authorization": f"Bearer {token}"} for token in (ALICE, BOB))
        session = await _open(served, headers=alice)
        assert (await _turn(served, session, "say x", headers=bob)).status_code == 404
        assert (await _turn(served, "nonsense", "say x", headers=alice)).status_code == 404
        assert (await _turn(served, "A" * 40, "say x", headers=alice)).status_code == 404
        for verb in ("interrupt", "reset"):
            assert (await served.http.post(f"/v1/sessions/{session}/{verb}", headers=bob)).status_code == 404
        assert (await served.http.delete(f"/v1/sessions/{session}", headers=bob)).status_code == 404
        assert (await served.http.get("/v1/sessions", headers=bob)).json() == {"sessions": []}
        listed = (await served.http.get("/v1/sessions", headers=alice)).json()["sessions"]
        assert [info["session_id"] for info in listed] == [session]
        assert (await served.http.delete(f"/v1/sessions/{session}", headers=alice)).status_code == 204
        assert (await served.http.delete(f"/v1/sessions/{session}", headers=alice)).status_code == 410
        assert (await _turn(served, session, "say x", headers=alice)).status_code == 410
    async with serving(ScriptedBackend(), tokens=(ALICE, BOB)) as again:  # a restart: the table is gone
        answer = await _turn(again, session, "say x", headers=alice)
        assert answer.status_code == 410 and "started again" in answer.json()["error"]["message"]
        assert (await _turn(again, session, "say x", headers=bob)).status_code == 404


async def test_a_reset_forgets_and_keeps_the_id() -> None:
    async with serving(ScriptedBackend()) as served:
        session = await _open(served)
        await _turn(served, session, "keep a")
        reset = await served.http.post(f"/v1/sessions/{session}/reset")
        assert reset.status_code == 200 and reset.json()["state"] == "reset"
        assert (await _turn(served, session, "recall")).json()["stdout"] == ""


async def test_a_reset_kills_the_running_turn() -> None:
    backend = ScriptedBackend()
    async with serving(backend) as served:
        session = await _open(served)
        running = asyncio.ensure_future(_turn(served, session, "sleep 30"))
        await eventually(lambda: backend.running == 1)
        assert (await served.http.post(f"/v1/sessions/{session}/reset")).json()["state"] == "reset"
        assert (await running).json()["status"] == "cancelled"
        assert (await _turn(served, session, "say 42")).json()["stdout"] == "42"


async def test_an_interrupt_ends_the_running_turn_and_keeps_the_session() -> None:
    backend = ScriptedBackend()
    async with serving(backend) as served:
        session = await _open(served)
        running = asyncio.ensure_future(_turn(served, session, "keep a\nsleep 30"))
        await eventually(lambda: backend.running == 1)
        assert (await served.http.post(f"/v1/sessions/{session}/interrupt")).status_code == 200
        assert (await running).json()["status"] == "error"
        assert (await _turn(served, session, "recall")).json()["stdout"] == "a"


async def test_deleting_a_busy_session_kills_its_turn_and_waiting_turns_learn_that_it_is_gone() -> None:
    backend = ScriptedBackend()
    async with serving(backend) as served:
        session = await _open(served)
        running = asyncio.ensure_future(_turn(served, session, "sleep 30"))
        await eventually(lambda: backend.running == 1)
        waiting = asyncio.ensure_future(_turn(served, session, "say never"))
        await eventually(lambda: served.service.sessions.table.open[session].waiting == 1)
        assert (await served.http.delete(f"/v1/sessions/{session}")).status_code == 204
        assert (await running).json()["state"] == "lost"
        assert (await waiting).status_code == 410
        assert "say never" not in backend.programs


async def test_a_slot_that_dies_in_a_turn_loses_the_session_and_says_so() -> None:
    async with serving(ScriptedBackend()) as served:
        session = await _open(served)
        result = (await _turn(served, session, "die")).json()
        assert (result["status"], result["state"], result["retryable"]) == ("sandbox_error", "lost", False)
        assert (await _turn(served, session, "say x")).status_code == 410


async def test_a_caller_who_hangs_up_lets_the_turn_finish_and_a_repeat_gets_its_result() -> None:
    backend = ScriptedBackend()
    async with serving(backend) as served:
        session = await _open(served)
        body = {"code": "keep a\nsleep 0.4\nrecall", "request_id": "turn 1"}
        path = f"/v1/sessions/{session}/execute"
        hung_up = asyncio.ensure_future(served.post(path, body))
        await eventually(lambda: backend.running == 1)
        hung_up.cancel()
        await asyncio.sleep(0.05)
        assert (await served.post(path, body)).json()["stdout"] == "a"
        assert (await served.post(path, body)).json()["stdout"] == "a"
        assert backend.programs.count(body["code"]) == 1


async def test_hanging_up_can_be_set_to_interrupt_the_turn() -> None:
    backend = ScriptedBackend()
    async with serving(backend, session_disconnect="interrupt") as served:
        session = await _open(served)
        hung_up = asyncio.ensure_future(_turn(served, session, "sleep 30"))
        await eventually(lambda: backend.running == 1)
        hung_up.cancel()
        await eventually(lambda: backend.running == 0)
        assert (await _turn(served, session, "say 42")).json()["stdout"] == "42"


async def test_opening_by_the_same_request_id_opens_one_session() -> None:
    async with serving(ScriptedBackend()) as served:
        answers = await asyncio.gather(*[served.post("/v1/sessions", {"request_id": "s"}) for _ in range(3)])
        assert len({answer.json()["session_id"] for answer in answers}) == 1
        assert len(served.service.sessions.table.open) == 1


async def test_session_slots_are_reused_after_a_session_ends() -> None:
    backend = ScriptedBackend()
    async with serving(backend, slots=1, max_sessions=1, evict_idle_s=0.0) as served:
        for number in range(5):
            session = await _open(served)
            assert (await _turn(served, session, f"keep {number}\nrecall")).json()["stdout"] == str(number)
        assert backend.starts == 2


async def test_greater_than_allowed_memory_and_times_are_clamped_and_said() -> None:
    async with serving(ScriptedBackend(), session_idle_s=5) as served:
        info = (await served.post("/v1/sessions", {"memory_mb": 10**6, "idle_s": 100})).json()
        assert info["memory_mb"] == 8192 and len(info["notes"]) == 2 and info["expires_in_s"] <= 5
        path = f"/v1/sessions/{info['session_id']}/execute"
        result = (await served.post(path, {"code": "say x", "limits": {"memory_mb": 100}})).json()
        assert any("8192" in note for note in result["notes"])
