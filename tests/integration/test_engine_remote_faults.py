"""A server that is busy, breaks, or is not what it should be: what the remote engine does, over real connections.

The server here speaks vLLM's completions route and says what a script tells it to.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from agent_rl.config import ConfigError
from agent_rl.engines.base import GenerationRequest, Sampling
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.vllm.remote import RemoteEngine
from agent_rl.tir.fence import FenceScanner
from agent_rl.types import FinishReason, InfrastructureError
from tests.engine_models import EOS, FENCE, byte_tokenizer

TOKENIZER = byte_tokenizer()
SAID = [70, 71, 72, EOS]


@dataclass
class Server:
    """What it says and how it fails."""

    said: list[int] = field(default_factory=lambda: list(SAID))
    tokenize: Callable[[str], list[int]] = lambda text: TOKENIZER.encode(text, add_special_tokens=False)
    processed: bool = True
    with_ids: bool = True
    token: str | None = None
    refusals: list[int] = field(default_factory=list)
    """Status of each of the next streams, before any token."""
    cut_after: list[int] = field(default_factory=list)
    """Tokens after which each of the next streams breaks."""
    pause: float = 0.0
    streams: int = 0
    left: int = 0
    """Streams that the client left before their end."""
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def models(self, request: web.Request) -> web.Response:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response({"data": [{"id": "policy", "max_model_len": 64, "parent": None}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body.get("stream"):
            return web.json_response({"choices": [self._probe(body)]})
        self.streams += 1
        self.bodies.append(body)
        if self.refusals:
            status = self.refusals.pop(0)
            return web.json_response({"error": {"message": f"status {status}"}}, status=status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        cut = self.cut_after.pop(0) if self.cut_after else None
        try:
            for place, token in enumerate(self.said[: body["max_tokens"]]):
                if place == cut:
                    request.transport.abort()
                    return response
                last = place == len(self.said) - 1
                event = {
                    "choices": [
                        {
                            "text": "x",
                            "logprobs": {"token_logprobs": [-0.1 * place]},
                            "finish_reason": "stop" if last else None,
                            **({"token_ids": [token]} if self.with_ids else {}),
                        }
                    ]
                }
                await response.write(f"data: {json.dumps(event)}\n\n".encode())
                await asyncio.sleep(self.pause)
            await response.write(b"data: [DONE]\n\n")
        except (ConnectionResetError, asyncio.CancelledError):
            self.left += 1
            raise
        return response

    def _probe(self, body: dict[str, Any]) -> dict[str, Any]:
        if isinstance(body["prompt"], str):
            return {"text": "", "prompt_token_ids": self.tokenize(body["prompt"]) if self.with_ids else None}
        heat = body["temperature"] if self.processed and body["temperature"] else 1.0
        scores = [math.exp(-2.0 * rank / heat) for rank in range(5)]
        logprobs = {f"token_id:{rank}": math.log(score / sum(scores)) for rank, score in enumerate(scores)}
        return {"text": "", "logprobs": {"top_logprobs": [logprobs]}}


@asynccontextmanager
async def served(server: Server, **remote: Any) -> AsyncIterator[RemoteEngine]:
    app = web.Application()
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/completions", server.completions)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    settings = EngineSettings(kind="remote", remote={"url": f"http://127.0.0.1:{port}/v1/", **remote})
    engine = RemoteEngine(TOKENIZER, eos_ids=[EOS], settings=settings, scanner=FenceScanner)
    try:
        yield engine
    finally:
        await engine.close()
        await runner.cleanup()


def ask(**changes: Any) -> GenerationRequest:
    return GenerationRequest("t", (65, 66), 20, seed=5, sampling=Sampling(0.7), **changes)


async def test_ids_log_probs_and_the_end_come_as_the_server_says_them() -> None:
    server = Server()
    async with served(server) as engine:
        turn = await engine.generate(ask())
        assert engine.max_length == 64
    assert (list(turn.ids), turn.finish) == (SAID, FinishReason.EOS)
    assert turn.logprobs == pytest.approx((0.0, -0.1, -0.2, -0.3))
    assert turn.weight_versions == (0, 0, 0, 0)
    (body,) = server.bodies
    assert body["prompt"] == [65, 66]
    assert (body["seed"], body["temperature"], body["stop_token_ids"], body["ignore_eos"]) == (5, 0.7, [EOS], True)


async def test_the_connection_is_closed_at_the_closing_fence() -> None:
    line = TOKENIZER.encode("\n", add_special_tokens=False)
    block = [FENCE, *line, 49, *line, FENCE]
    server = Server(said=[*block, *[88] * 50], pause=0.02)
    async with served(server) as engine:
        turn = await engine.generate(ask())
        assert (list(turn.ids), turn.finish) == (block, FinishReason.FENCE)
        async with asyncio.timeout(20):
            while not server.left:
                await asyncio.sleep(0.05)
    assert server.streams == 1


async def test_the_cap_ends_a_turn() -> None:
    async with served(Server(said=[70] * 50)) as engine:
        turn = await engine.generate(ask())
    assert (len(turn.ids), turn.finish) == (20, FinishReason.LENGTH)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_is_waited_for_and_costs_no_retry(status) -> None:
    server = Server(refusals=[status] * 3)
    async with served(server, retries=0) as engine:
        turn = await engine.generate(ask())
    assert list(turn.ids) == SAID
    assert server.streams == 4


async def test_a_server_that_stays_busy_is_given_up_with_its_address() -> None:
    async with served(Server(refusals=[503] * 100), busy_s=0.5) as engine:
        with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:\d+ was busy for 0\.5 s"):
            await engine.generate(ask())


async def test_a_stream_that_breaks_is_begun_again_and_no_token_comes_twice() -> None:
    server = Server(cut_after=[2, 3])
    async with served(server) as engine:
        turn = await engine.generate(ask())
    assert (list(turn.ids), turn.finish) == (SAID, FinishReason.EOS)
    assert server.streams == 3


async def test_failures_end_after_the_retries_with_the_last_message() -> None:
    server = Server(refusals=[500] * 10)
    async with served(server, retries=2) as engine:
        with pytest.raises(InfrastructureError, match=r"failed 3 times, the last time: .*status 500"):
            await engine.generate(ask())
    assert server.streams == 3


async def test_a_refusal_is_not_repeated() -> None:
    server = Server(refusals=[400] * 10)
    async with served(server) as engine:
        with pytest.raises(InfrastructureError, match="answers 400: status 400"):
            await engine.generate(ask())
    assert server.streams == 1


async def test_a_deadline_returns_what_has_come_also_while_the_server_is_busy() -> None:
    async with served(Server(said=[70] * 50, pause=0.1)) as engine:
        turn = await engine.generate(ask(deadline=time.monotonic() + 0.6))
        assert turn.finish is FinishReason.ABORTED
        assert 0 < len(turn.ids) < 20
    async with served(Server(refusals=[503] * 1000)) as engine:
        turn = await engine.generate(ask(deadline=time.monotonic() + 0.5))
        assert (turn.finish, turn.ids) == (FinishReason.ABORTED, ())


async def test_cancelling_leaves_nothing_running() -> None:
    async with served(Server(said=[70] * 50, pause=0.2)) as engine:
        task = asyncio.create_task(engine.generate(ask()))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not engine._running


@pytest.mark.parametrize(
    ("server", "remote", "message"),
    [
        (Server(with_ids=False), {}, "text without token ids"),
        (Server(processed=False), {}, "--logprobs-mode processed_logprobs"),
        (Server(tokenize=lambda text: [1, *text.encode()]), {}, "other tokens than the tokenizer here"),
        (Server(), {"model": "other"}, "'other' is not served .* which serves policy"),
        (Server(token="secret"), {"token_env": "NO_SUCH_TOKEN"}, "NO_SUCH_TOKEN"),
    ],
    ids=["no ids", "raw log-probs", "tokenizer", "model", "key"],
)
async def test_a_server_that_cannot_be_used_is_refused_at_the_start(server, remote, message) -> None:
    async with served(server, **remote) as engine:
        with pytest.raises(ConfigError, match=message):
            await engine.start()


async def test_its_key_is_read_from_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("AGENT_RL_ENGINE_TOKEN", "secret")
    async with served(Server(token="secret")) as engine:
        assert list((await engine.generate(ask())).ids) == SAID


async def test_an_address_where_nothing_listens_is_named() -> None:
    settings = EngineSettings(kind="remote", remote={"url": "http://127.0.0.1:9"})
    engine = RemoteEngine(TOKENIZER, eos_ids=[EOS], settings=settings)
    with pytest.raises(InfrastructureError, match=r"no vLLM server answers at http://127\.0\.0\.1:9"):
        await engine.start()
    await engine.close()


async def test_weights_of_a_server_stay_as_they_are() -> None:
    async with served(Server()) as engine:
        with pytest.raises(InfrastructureError, match="stay as they are"):
            await engine.load_weights([], 1)
