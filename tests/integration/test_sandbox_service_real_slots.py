"""The whole way through HTTP to real slots and back: every status, sessions, dying slots, a flood."""

from __future__ import annotations

import asyncio
import base64

import httpx
import psutil
import pytest

from sandbox.client import SandboxClient
from sandbox.schemas import ExecuteRequest, Limits, SessionRequest
from tests.integration.service_kit import shared_sandbox

SLACK_S = 60.0


async def _next_run_is_right(client: SandboxClient) -> None:
    assert (await client.execute("print(6*7)", deadline=SLACK_S)).stdout == "42\n"


@pytest.mark.parametrize(
    ("status", "code", "limits"),
    [
        ("ok", "print('so far', flush=True)", {}),
        ("error", "print('so far', flush=True)\n1/0", {}),
        ("error", "import sys\nprint('so far', flush=True)\nsys.exit(3)", {}),
        ("syntax_error", "print('so far'", {}),
        ("timeout", "import time\nprint('so far', flush=True)\ntime.sleep(99)", {"wall_s": 0.5}),
        ("cpu_timeout", "print('so far', flush=True)\nwhile True: pass", {"wall_s": 30, "cpu_s": 0.5}),
        ("oom", "print('so far', flush=True)\nx = []\nwhile True: x.append(bytearray(1 << 20))", {"memory_mb": 256}),
        ("output_limit", "print('so far', flush=True)\nwhile True: print('x' * 1000)", {"stdout_bytes": 1000}),
        ("killed", "import os\nprint('so far', flush=True)\nos.abort()", {}),
    ],
)
async def test_every_outcome_is_a_200_with_its_status_and_the_partial_output(status, code, limits) -> None:  # type: ignore[no-untyped-def]
    async with shared_sandbox().client(retry_sandbox_errors=0) as client:
        result = await client.execute(ExecuteRequest(code=code, limits=Limits(**limits)), deadline=SLACK_S)
        if status == "oom" and result.tier == "T1":
            assert result.status in ("oom", "error")  # a MemoryError, where no control group counts
        else:
            assert result.status == status, result
        assert result.stdout.startswith("so far") or status == "syntax_error"
        assert result.retryable is False and result.request_id and result.wall_ms >= 0
        await _next_run_is_right(client)


async def test_files_standard_input_seed_and_prelude_go_through() -> None:
    async with shared_sandbox().client() as client:
        request = ExecuteRequest(
            code="import random\nopen('out/b.bin', 'wb').write(open('in/a.bin', 'rb').read()[::-1])\n"
            "print(input(), helper(), random.random())",
            prelude="def helper():\n    return 'helped'\nimport os; os.makedirs('out', exist_ok=True)",
            stdin="said\n",
            files={"in/a.bin": base64.b64encode(b"\x00\xff\x01").decode()},
            fetch_files=["out/b.bin", "absent.txt"],
            seed=7,
        )
        first, second = await client.execute(request), await client.execute(request)
        assert first.status == "ok", first
        assert first.stdout.startswith("said helped 0.") and first.stdout == second.stdout
        assert base64.b64decode(first.files["out/b.bin"]) == b"\x01\xff\x00"
        assert list(first.file_errors) == ["absent.txt"]


async def test_a_batch_gives_each_program_its_own_outcome() -> None:
    async with shared_sandbox().client() as client:
        items = await client.execute_batch(["print(1)", "1/0", ExecuteRequest(code="", files={"../x": ""})])
        assert [item.http_status for item in items] == [200, 200, 422]
        assert [item.result.status for item in items[:2] if item.result] == ["ok", "error"]
        assert items[2].error is not None and "../x" in items[2].error.message


async def test_a_session_keeps_its_names_through_errors_and_forgets_them_on_reset() -> None:
    async with shared_sandbox().client() as client, await client.session() as session:
        first = await session.execute("import math\ndef f(n): return n * k\nk = 3", deadline=SLACK_S)
        assert (first.status, first.state, first.new_session) == ("ok", "kept", True)
        assert (await session.execute("k = 4\n1/0")).state == "kept"
        shown = await session.execute("f(math.factorial(3))")
        assert (shown.result, shown.new_session, shown.session_id) == ("24", False, session.id)
        assert (await session.execute("import sys; sys.exit(2)")).exit_code == 2
        assert (await session.execute("print(k)")).stdout == "4\n"
        assert await session.reset() is True
        assert (await session.execute("print(k)")).status == "error"


async def test_a_turn_that_hits_its_limit_says_what_became_of_the_state_and_that_is_so() -> None:
    async with shared_sandbox().client() as client, await client.session() as session:
        await session.execute("x = 5", deadline=SLACK_S)
        stuck = "print('so far', flush=True)\nwhile True:\n  try:\n    while True: pass\n  except BaseException: pass"
        result = await session.execute(ExecuteRequest(code=stuck, limits=Limits(wall_s=0.7, cpu_s=30)))
        assert result.status == "timeout" and result.stdout == "so far\n"
        assert result.state in ("kept", "rolled_back", "reset")
        after = await session.execute("print(x)")
        assert (after.status, after.stdout) == (("error", "") if result.state == "reset" else ("ok", "5\n"))


async def test_an_interrupt_stops_a_turn_and_keeps_the_state() -> None:
    async with shared_sandbox().client() as client, await client.session(SessionRequest(idle_s=60)) as session:
        await session.execute("x = 1", deadline=SLACK_S)
        turn = asyncio.ensure_future(
            session.execute(ExecuteRequest(code="x = 2\nimport time\ntime.sleep(50)", limits=Limits(wall_s=55)))
        )
        await asyncio.sleep(1.0)
        await session.interrupt()
        result = await asyncio.wait_for(turn, 30)
        assert result.status == "error" and result.state == "kept" and "KeyboardInterrupt" in result.stderr
        assert (await session.execute("print(x)")).stdout == "2\n"


async def test_sessions_do_not_see_each_other_and_turns_of_one_are_not_interleaved() -> None:
    async with shared_sandbox().client() as client, await client.session() as one, await client.session() as two:
        await one.execute("x = 'one'", deadline=SLACK_S)
        assert (await two.execute("print('x' in globals())", deadline=SLACK_S)).stdout == "False\n"
        await one.execute("log = []")
        code = "log.append(1)\nimport time\ntime.sleep(0.05)\nlog.append(2)"
        await asyncio.gather(*[one.execute(code, deadline=SLACK_S) for _ in range(4)])
        assert (await one.execute("print(log)")).stdout == f"{[1, 2] * 4}\n"
        assert {info.session_id for info in await client.sessions()} >= {one.id, two.id}


async def test_slots_killed_from_outside_give_retryable_errors_and_the_pool_heals() -> None:
    owner = shared_sandbox()
    async with owner.client(retry_sandbox_errors=0) as client:
        code = "import time; time.sleep(8); print('late')"
        calls = [asyncio.ensure_future(client.execute(code, deadline=SLACK_S)) for _ in range(owner.slots)]
        await asyncio.sleep(1.5)
        assert owner.pid is not None
        for process in psutil.Process(owner.pid).children():
            process.kill()
        for result in await asyncio.gather(*calls):
            assert (result.status, result.retryable) == ("sandbox_error", True), result
        for _ in range(4):
            await _next_run_is_right(client)
        ready = await client.ready()
        assert ready.state == "ready"


async def test_a_flood_of_callers_is_answered_in_bounds_by_real_slots() -> None:
    owner = shared_sandbox()
    headers = {"authorization": f"Bearer {owner.token}"}
    async with httpx.AsyncClient(base_url=owner.url, headers=headers, timeout=90) as http:
        body = {"code": "import time; time.sleep(0.1); print(42)", "queue_timeout_s": 20}
        flood = [asyncio.ensure_future(http.post("/v1/execute", json=body)) for _ in range(60)]
        answers = await asyncio.gather(*flood)
        counts = {status: sum(answer.status_code == status for answer in answers) for status in (200, 429, 504)}
        assert sum(counts.values()) == 60 and counts[200] >= owner.slots and counts[429] > 0
        assert all(answer.json()["stdout"] == "42\n" for answer in answers if answer.status_code == 200)
        assert (await http.get("/healthz")).status_code == 200
    async with owner.client() as client:  # ... and our client waits the same flood out
        results = await asyncio.gather(*[client.execute("print(42)", deadline=120) for _ in range(60)])
        assert {result.stdout for result in results} == {"42\n"}


async def test_a_long_series_leaves_no_descriptor_process_or_thread_behind() -> None:
    owner = shared_sandbox()
    async with owner.client() as client:
        assert owner.pid is not None
        service = psutil.Process(owner.pid)

        async def some(count: int) -> None:
            await asyncio.gather(*[client.execute(f"print({n})", deadline=SLACK_S) for n in range(count)])

        await some(40)
        await _settle(client)
        before = (service.num_fds(), service.num_threads(), len(service.children(recursive=True)))
        await some(120)
        await _settle(client)
        after = (service.num_fds(), service.num_threads(), len(service.children(recursive=True)))
        assert all(late <= early + 2 for late, early in zip(after, before, strict=True)), (before, after)


async def _settle(client: SandboxClient) -> None:
    async with asyncio.timeout(SLACK_S):
        while True:
            ready = await client.ready()
            if ready.slots_free == ready.slots and ready.slots_starting == 0:
                return
            await asyncio.sleep(0.1)
