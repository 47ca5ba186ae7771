"""An engine that says what it was told to: for tests of everything that stands around an engine."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_rl.engines.base import Generation, GenerationRequest
from agent_rl.engines.pieces import TokenPieces
from agent_rl.types import FinishReason, InfrastructureError

if TYPE_CHECKING:
    from torch import Tensor

    from agent_rl.engines.job import Scanner

Reply = str | Sequence[int] | BaseException
"""Text (encoded, the end-of-sequence id added), ids (taken as they are), or an error to raise."""

Script = Callable[[GenerationRequest, int], Reply | Awaitable[Reply]]
"""Gives the reply from the request and the turn's number (from 0) within its trajectory."""


class ScriptedEngine:
    """Replies from a script, under the contract of `Engine`: the fence, the cap and the deadline are honoured.

    Args:
        tokenizer: encodes the replies that are text.
        script: a function, or the replies themselves: a list for every trajectory alike, or a mapping from
            trajectory name to list. The k-th reply of a list answers the k-th turn.
        scanner: makes the fence scanner of a turn; needed if a request sets `stop_at_fence`.
        eos_id: what ends a reply that is text; by default the tokenizer's.
        logprob: of each token: a number, or a function of (trajectory, turn, index in the turn).
        latency: seconds before a reply, or a function of (request, turn).
        version: weight version to start with.
    """

    def __init__(
        self,
        tokenizer: Any,
        script: Script | Sequence[Reply] | Mapping[str, Sequence[Reply]],
        *,
        scanner: Callable[[], Scanner] | None = None,
        eos_id: int | None = None,
        logprob: float | Callable[[str, int, int], float] = -0.5,
        latency: float | Callable[[GenerationRequest, int], float] = 0.0,
        version: int = 0,
    ):
        self._tokenizer = tokenizer
        self._script = script
        self._scanner = scanner
        self.eos_id: int | None = tokenizer.eos_token_id if eos_id is None else eos_id
        self._logprob, self._latency = logprob, latency
        self._pieces = TokenPieces(tokenizer)
        self._turns: dict[str, int] = {}
        self._version = version
        self._closed = False
        self.requests: list[GenerationRequest] = []
        """Every request, in the order of arrival."""
        self.released: list[str] = []
        """Every trajectory that was released, in order."""
        self.expected: list[str] = []
        """Every trajectory that was announced, in order."""

    @property
    def weight_version(self) -> int:
        return self._version

    async def start(self) -> None:
        if self._closed:
            raise InfrastructureError("engine", "the engine was closed", retryable=False)

    async def generate(self, request: GenerationRequest) -> Generation:
        await self.start()
        if request.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {request.max_new_tokens}, at least 1 is needed")
        if request.stop_at_fence and self._scanner is None:
            raise ValueError("the request sets stop_at_fence, but the engine was made without a scanner")
        begun = time.monotonic()
        self.requests.append(request)
        turn = self._turns.get(request.trajectory, 0)
        self._turns[request.trajectory] = turn + 1
        latency = self._latency(request, turn) if callable(self._latency) else self._latency
        if request.deadline is not None and begun + latency > request.deadline:
            await asyncio.sleep(max(0.0, request.deadline - begun))
            return Generation((), (), (), FinishReason.ABORTED, time.monotonic() - begun)
        await asyncio.sleep(latency)
        reply = self._reply(request, turn)
        if inspect.isawaitable(reply):
            reply = await reply
        if isinstance(reply, BaseException):
            raise reply
        ids, finish = self._cut(request, self._encode(reply))
        return Generation(
            ids=tuple(ids),
            logprobs=tuple(self._logprob_of(request.trajectory, turn, index) for index in range(len(ids))),
            weight_versions=(self._version,) * len(ids),
            finish=finish,
            seconds=time.monotonic() - begun,
        )

    def release(self, trajectory: str) -> None:
        self.released.append(trajectory)

    def expect(self, trajectories: Iterable[str]) -> None:
        self.expected.extend(trajectories)

    async def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        await self.start()
        self._version = version

    async def close(self) -> None:
        self._closed = True

    def _reply(self, request: GenerationRequest, turn: int) -> Reply | Awaitable[Reply]:
        if callable(self._script):
            return self._script(request, turn)
        replies = self._script[request.trajectory] if isinstance(self._script, Mapping) else self._script
        if turn >= len(replies):
            raise InfrastructureError(
                "engine",
                f"the script has {len(replies)} replies, trajectory {request.trajectory!r} asks for turn {turn + 1}",
                retryable=False,
            )
        return replies[turn]

    def _encode(self, reply: str | Sequence[int]) -> list[int]:
        if not isinstance(reply, str):
            return list(reply)
        ids = list(self._tokenizer.encode(reply, add_special_tokens=False))
        return ids if self.eos_id is None else [*ids, self.eos_id]

    def _cut(self, request: GenerationRequest, ids: list[int]) -> tuple[list[int], FinishReason]:
        """Where a real engine would have stopped, and why."""
        scanner = self._scanner() if request.stop_at_fence and self._scanner else None
        for count, token in enumerate(ids, start=1):
            if token == self.eos_id:
                return ids[:count], FinishReason.EOS
            if scanner is not None and scanner.feed(self._pieces[token]):
                return ids[:count], FinishReason.FENCE
            if count == request.max_new_tokens:
                return ids[:count], FinishReason.LENGTH
        # Ids that neither end nor stop: as if the cap had been just there.
        return ids, FinishReason.LENGTH

    def _logprob_of(self, trajectory: str, turn: int, index: int) -> float:
        return self._logprob(trajectory, turn, index) if callable(self._logprob) else self._logprob
