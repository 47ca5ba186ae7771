"""A vLLM server that somebody else runs, as an engine: measurements and rollouts with weights that never change."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

import aiohttp
from torch import Tensor

from agent_rl.engines.arriving import ArrivingTurn
from agent_rl.engines.base import Generation, GenerationRequest
from agent_rl.engines.job import Scanner
from agent_rl.engines.pieces import TokenPieces
from agent_rl.engines.requests import check_request
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.vllm.probing import Model, probe
from agent_rl.engines.vllm.routing import Routes
from agent_rl.engines.vllm.wire import Chunk, completion_body, message_of, parse_event
from agent_rl.types import FinishReason, InfrastructureError

BROKEN = (aiohttp.ClientError, ConnectionError, TimeoutError)
BUSY = (429, 503)
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0
CONNECT_S = 10.0


class RemoteEngine:
    """Generates through the completions route of a vLLM server (see `Engine` for the contract).

    The server is asked for token ids and log-probs, and a turn ends here: at the fence the connection is closed, which
    vLLM takes as the end of the request. Its weights are its own: every token has version 0.

    Args:
        tokenizer: must be the server's; that is checked at the start.
        eos_ids: ids that end a turn.
        settings: `remote` says where the server is.
        scanner: makes the fence scanner of a turn; needed if a request sets `stop_at_fence`.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        eos_ids: Iterable[int],
        settings: EngineSettings,
        scanner: Callable[[], Scanner] | None = None,
    ):
        self.settings = settings
        self.eos_ids = frozenset(eos_ids)
        self._tokenizer = tokenizer
        self._text = TokenPieces(tokenizer).__getitem__
        self._scanner = scanner
        self._urls = settings.remote.urls
        self._routes = Routes(len(self._urls))
        self._gates = [asyncio.Semaphore(settings.remote.max_in_flight) for _ in self._urls]
        self._models: list[Model] = []
        self._http: aiohttp.ClientSession | None = None
        self._starting = asyncio.Lock()
        self._running: dict[str, tuple[asyncio.Task[None], ArrivingTurn]] = {}
        self._closed = False

    @property
    def weight_version(self) -> int:
        return 0

    @property
    def max_length(self) -> int:
        """Most tokens of a trajectory."""
        return min(model.max_length for model in self._models)

    async def start(self) -> None:
        """Find the model at every address and check that it is ours.

        Raises:
            ConfigError: the server cannot be used; says why and what to do.
            InfrastructureError: it cannot be reached.
        """
        if self._closed:
            raise InfrastructureError("engine", "the engine was closed", retryable=False)
        async with self._starting:
            if self._http is not None:
                return
            token = os.environ.get(self.settings.remote.token_env)
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_S, sock_read=self.settings.remote.silence_s
                ),
                headers={"Authorization": f"Bearer {token}"} if token else {},
            )
            try:
                self._models = [await probe(session, url, self._tokenizer, self.settings) for url in self._urls]
            except BaseException:
                await session.close()
                raise
            self._http = session

    async def generate(self, request: GenerationRequest) -> Generation:
        await self.start()
        check_request(
            request,
            vocabulary=len(self._tokenizer),
            max_length=self.max_length,
            can_stop_at_fence=self._scanner is not None,
        )
        if len(self._running) >= self.settings.max_waiting:
            raise InfrastructureError("engine", f"{len(self._running)} requests are queued (engine.max_waiting)")
        turn = self._turn(request)
        task = asyncio.create_task(self._follow(turn))
        self._running[request.trajectory] = (task, turn)
        try:
            remaining = None if request.deadline is None else max(0.0, request.deadline - time.monotonic())
            await asyncio.wait({task}, timeout=remaining)
        finally:
            task.cancel()
            await asyncio.wait({task})
            if self._running.get(request.trajectory) == (task, turn):
                del self._running[request.trajectory]
        if not task.cancelled():
            task.result()
        return turn.result(turn.finish or FinishReason.ABORTED)

    def _turn(self, request: GenerationRequest) -> ArrivingTurn:
        return ArrivingTurn(
            request,
            limit=min(request.max_new_tokens, self.max_length - len(request.ids)),
            eos_ids=self.eos_ids,
            text=self._text,
            scanner=self._scanner if request.stop_at_fence else None,
        )

    async def _follow(self, turn: ArrivingTurn) -> None:
        """Ask until the turn has ended; after a failure from its beginning, so that no token is sampled twice over."""
        place = self._routes.rank(turn.request.trajectory) or 0
        remote, failures, wait = self.settings.remote, 0, FIRST_WAIT_S
        patience = time.monotonic() + remote.busy_s
        async with self._gates[place]:
            while True:
                try:
                    await self._attempt(turn, place)
                    return
                except _Busy as busy:
                    if time.monotonic() > patience:
                        message = f"{self._urls[place]} was busy for {remote.busy_s:g} s (engine.remote.busy_s): {busy}"
                        raise InfrastructureError("engine", message) from busy
                except (*BROKEN, InfrastructureError) as problem:
                    failures += 1
                    final = isinstance(problem, InfrastructureError) and not problem.retryable
                    if final:
                        raise
                    if failures > remote.retries:
                        why = str(problem) or type(problem).__name__
                        raise InfrastructureError(
                            "engine", f"{self._urls[place]} failed {failures} times, the last time: {why}"
                        ) from problem
                turn.begin_again()
                await asyncio.sleep(wait * (0.5 + random.random()))
                wait = min(2 * wait, LONGEST_WAIT_S)

    async def _attempt(self, turn: ArrivingTurn, place: int) -> None:
        async with contextlib.aclosing(self._stream(turn, place)) as stream:
            async for chunk in stream:
                if turn.take(chunk.ids, chunk.logprobs, 0):
                    return
                if chunk.finish is not None:
                    raise InfrastructureError(
                        "engine",
                        f"the server ended the turn of {turn.request.trajectory!r} after {len(turn.ids)} of "
                        f"{turn.limit} tokens: {chunk.finish}",
                        retryable=False,
                    )
        raise InfrastructureError("engine", "the server's stream ended in the middle of a turn")

    async def _stream(self, turn: ArrivingTurn, place: int) -> AsyncGenerator[Chunk, None]:
        body = completion_body(turn.request, model=self._models[place].name, limit=turn.limit, eos_ids=self.eos_ids)
        assert self._http is not None
        async with self._http.post(f"{self._urls[place]}/v1/completions", json=body) as response:
            if response.status != 200:
                await self._refused(response, place)
            async for line in response.content:
                chunk = parse_event(line.decode())
                if chunk is not None:
                    yield chunk

    async def _refused(self, response: aiohttp.ClientResponse, place: int) -> None:
        text = message_of(await _body(response))
        if response.status in BUSY:
            raise _Busy(text)
        if response.status == 401:
            text += f" (its API key goes into the environment variable {self.settings.remote.token_env})"
        raise InfrastructureError(
            "engine", f"{self._urls[place]} answers {response.status}: {text}", retryable=response.status >= 500
        )

    def partial(self, trajectory: str) -> tuple[int, ...]:
        """Ids that have come of the running turn of a trajectory, for display; empty when none runs."""
        running = self._running.get(trajectory)
        return () if running is None else tuple(running[1].ids)

    def release(self, trajectory: str) -> None:
        self._routes.forget(trajectory)
        if running := self._running.get(trajectory):
            running[0].cancel()

    def expect(self, trajectories: Iterable[str]) -> None:
        """Nothing to announce: batches are not in lockstep."""

    async def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        raise InfrastructureError(
            "engine",
            "the weights of a remote server stay as they are (engine.kind = remote); train with engine.kind = vllm",
            retryable=False,
        )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for task, _ in list(self._running.values()):
            task.cancel()
        if self._http is not None:
            await self._http.close()


class _Busy(Exception):
    """The server has no room now."""


async def _body(response: aiohttp.ClientResponse) -> Any:
    try:
        return await response.json(content_type=None)
    except ValueError:
        return await response.text()
