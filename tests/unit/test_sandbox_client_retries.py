"""The client against a server that breaks connections, overflows and lies: bounded, safe, within the deadline."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from sandbox.client import SandboxClient, SandboxRejectedError, SandboxUnavailableError
from sandbox.schemas import ExecuteRequest, Limits, Status
from sandbox.sync_client import SyncSandboxClient

OK = {"status": "ok", "stdout": "42\n"}


class Server:
    """Answers by script: each entry is (status, body), `"drop"` (close without an answer) or seconds to wait."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.at_once = 0
        self.most_at_once = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            text = await request.text()
            self.bodies.append(json.loads(text) if text else {})
            self.headers.append(dict(request.headers))
            step = self.script.pop(0) if self.script else (200, OK)
            if isinstance(step, float):
                await asyncio.sleep(step)
                step = (200, OK)
            if step == "drop":
                assert request.transport is not None
                request.transport.abort()
                await asyncio.sleep(0)
                return web.Response()
            status, body = step
            return web.json_response(body, status=status)
        finally:
            self.at_once -= 1


def error(code: str, **more: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": f"it is {code}", **more}}


@contextlib.asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _execute(server: Server, request: ExecuteRequest | str = "print(42)", deadline: float = 10, **options: Any):  # type: ignore[no-untyped-def]
    async with serving(server) as url, SandboxClient(url, **options) as client:
        return await client.execute(request, deadline=deadline)


async def test_a_broken_connection_is_tried_again_under_the_same_request_id() -> None:
    server = Server("drop", "drop")
    assert (await _execute(server)).stdout == "42\n"
    ids = [body["request_id"] for body in server.bodies]
    assert len(ids) == 3 and len(set(ids)) == 1


async def test_different_requests_have_different_ids_and_a_callers_own_is_kept() -> None:
    server = Server()
    async with serving(server) as url, SandboxClient(url) as client:
        await client.execute("a")
        await client.execute("a")
        await client.execute(ExecuteRequest(code="a", request_id="mine"))
    assert len({body["request_id"] for body in server.bodies}) == 3
    assert server.bodies[2]["request_id"] == "mine"


async def test_tries_are_bounded() -> None:
    server = Server(*["drop"] * 50)
    with pytest.raises(SandboxUnavailableError, match="3 tries failed") as failure:
        await _execute(server, attempts=3)
    assert failure.value.retryable
    # aiohttp itself repeats nothing here: a POST is not idempotent to it
    assert len(server.bodies) == 3


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_failures_of_the_service_are_tried_again(status: int) -> None:
    server = Server((status, error("x")), (status, error("x")))
    assert (await _execute(server)).stdout == "42\n"


async def test_back_pressure_is_waited_out_however_often_it_comes() -> None:
    server = Server(*[(429, error("overloaded", retry_after_s=0.01))] * 8)
    assert (await _execute(server, attempts=2)).stdout == "42\n"
    assert len(server.bodies) == 9


async def test_back_pressure_ends_at_the_deadline() -> None:
    server = Server(*[(429, error("overloaded", retry_after_s=0.05))] * 1000)
    began = time.monotonic()
    with pytest.raises(SandboxUnavailableError, match="overloaded"):
        await _execute(server, deadline=0.5)
    assert time.monotonic() - began < 3


async def test_a_wait_that_the_deadline_does_not_allow_is_not_begun() -> None:
    server = Server((429, error("overloaded", retry_after_s=30)))
    began = time.monotonic()
    with pytest.raises(SandboxUnavailableError, match="deadline"):
        await _execute(server, deadline=5)
    assert time.monotonic() - began < 4


async def test_an_answer_that_does_not_come_ends_at_the_deadline() -> None:
    with pytest.raises(SandboxUnavailableError, match="deadline"):
        await _execute(Server(20.0), deadline=0.3)


async def test_nobody_listening_is_unavailable() -> None:
    async with SandboxClient("http://127.0.0.1:9", attempts=2) as client:
        with pytest.raises(SandboxUnavailableError, match=r"127\.0\.0\.1:9"):
            await client.execute("x", deadline=5)
        with pytest.raises(SandboxUnavailableError):
            await client.ready(deadline=2)


@pytest.mark.parametrize("status", [401, 404, 409, 413, 422])
async def test_a_refusal_is_raised_at_once(status: int) -> None:
    server = Server((status, error("bad", details=[{"loc": ["code"]}])))
    with pytest.raises(SandboxRejectedError, match="it is bad") as refusal:
        await _execute(server)
    assert refusal.value.status == status and not refusal.value.retryable
    assert len(server.bodies) == 1


async def test_a_refusal_in_words_unknown_to_us_is_still_a_refusal() -> None:
    with pytest.raises(SandboxRejectedError, match="404"):
        await _execute(Server((404, "<html>nginx</html>")))


async def test_a_failed_sandbox_is_tried_again_once_and_then_reported() -> None:
    broken = (200, {"status": "sandbox_error", "retryable": True})
    assert (await _execute(Server(broken))).status == Status.OK
    server = Server(broken, broken, broken)
    assert (await _execute(server)).status == Status.SANDBOX_ERROR
    assert len(server.bodies) == 2
    server = Server((200, {"status": "sandbox_error", "retryable": False}))
    assert (await _execute(server)).status == Status.SANDBOX_ERROR
    assert len(server.bodies) == 1


@pytest.mark.parametrize("status", ["error", "timeout", "oom", "killed", "cancelled"])
async def test_outcomes_of_programs_are_never_tried_again(status: str) -> None:
    server = Server((200, {"status": status}))
    assert (await _execute(server)).status == status
    assert len(server.bodies) == 1


async def test_only_what_the_caller_said_is_sent_so_that_the_services_defaults_hold() -> None:
    server = Server()
    await _execute(server, ExecuteRequest(code="x", limits=Limits(wall_s=3)))
    body = server.bodies[0]
    assert body.pop("request_id") and body == {"code": "x", "limits": {"wall_s": 3.0}}


async def test_at_most_so_many_are_in_flight_and_connections_are_reused() -> None:
    server = Server(*[0.02] * 30)
    async with serving(server) as url, SandboxClient(url, max_in_flight=3) as client:
        await asyncio.gather(*[client.execute("x", deadline=20) for _ in range(30)])
        assert client._http is not None and client._http.connector is not None
        assert len(client._http.connector._conns) == 1
    assert server.most_at_once == 3


async def test_waiting_for_a_place_counts_towards_the_deadline() -> None:
    server = Server(1.0)
    async with serving(server) as url, SandboxClient(url, max_in_flight=1) as client:
        first = asyncio.ensure_future(client.execute("x", deadline=5))
        await asyncio.sleep(0.05)
        with pytest.raises(SandboxUnavailableError, match="deadline"):
            await client.execute("x", deadline=0.2)
        assert (await first).status == "ok"
    assert len(server.bodies) == 1


async def test_the_token_and_the_client_id_travel_with_each_request() -> None:
    server = Server()
    await _execute(server, token="secret-token", client_id="worker 7")
    assert server.headers[0]["Authorization"] == "Bearer secret-token"
    assert server.headers[0]["x-client-id"] == "worker 7"


async def test_a_lost_session_is_a_result_of_a_turn() -> None:
    info = {"session_id": "s", "state": "kept"}
    server = Server(
        (201, info), (410, error("session_lost")), (410, error("session_lost")), (410, error("session_lost"))
    )
    async with serving(server) as url, SandboxClient(url) as client, await client.session() as session:
        result = await session.execute("x")
        assert (result.status, result.state, result.notes) == ("session_lost", "lost", ["it is session_lost"])
        assert await session.reset() is False
    assert server.bodies[0]["request_id"]


async def test_an_owner_who_knows_that_the_service_is_gone_ends_the_tries() -> None:
    reasons: list[str | None] = [None, "it died five times"]
    why: Callable[[], str | None] = lambda: reasons.pop(0) if len(reasons) > 1 else reasons[0]  # noqa: E731
    server = Server(*["drop"] * 10)
    with pytest.raises(SandboxUnavailableError, match="died five times"):
        await _execute(server, why_down=why, attempts=100)


def test_a_client_can_be_used_on_one_loop_after_another() -> None:
    server = Server()

    async def once(client: SandboxClient) -> str:
        async with serving(server) as url:
            client.url = url
            try:
                return (await client.execute("x")).stdout
            finally:
                await client.close()

    client = SandboxClient("http://unused")
    assert [asyncio.run(once(client)) for _ in range(2)] == ["42\n", "42\n"]


async def test_the_synchronous_client_behaves_alike() -> None:
    server = Server("drop", (429, error("overloaded", retry_after_s=0.01)))
    async with serving(server) as url:

        def use() -> str:
            with SyncSandboxClient(url) as client:
                return client.execute("x", deadline=10).stdout

        assert await asyncio.to_thread(use) == "42\n"
    assert len({body["request_id"] for body in server.bodies}) == 1 and len(server.bodies) == 3
