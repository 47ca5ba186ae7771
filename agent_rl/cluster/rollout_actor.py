"""A process that plays episodes, with an engine, verifiers and a sandbox client of its own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from agent_rl.engines.base import Generation, GenerationRequest, Sampling
from agent_rl.rollout.run import Clocks
from agent_rl.training.settings import RunConfig
from agent_rl.types import InfrastructureError, Problem, Trajectory
from agent_rl.weights.manifest import Served

Weights = list[tuple[str, Any]]
"""Some named tensors."""


@dataclass(frozen=True, slots=True)
class Played:
    """An episode, and what its actor did so far: busy seconds by activity, tokens sampled in it."""

    trajectory: Trajectory
    busy: dict[str, float]
    tokens: int


@dataclass(frozen=True, slots=True)
class About:
    """What an actor says of itself once it is ready."""

    sandbox: str
    dtype: Any
    dtypes: dict[str, Any]
    """Number format by name of tensor; empty where the engine does not show its parameters."""
    pid: int


@dataclass(frozen=True, slots=True)
class Place:
    """A rollout actor: its number, its handle, and what it said of itself when it was ready."""

    number: int
    actor: Any
    about: About


class RolloutActor:
    """Runs as an asyncio actor of Ray; every method is a coroutine on one loop."""

    def __init__(self, config: dict[str, Any], number: int):
        self._config = RunConfig.model_validate(config)
        self._number = number
        # Never left: what it holds ends with this process, which Ray ends.
        self._stack = contextlib.AsyncExitStack()
        self._clocks = Clocks()
        self._about: About | None = None

    async def start(self) -> About:
        """Load the model and start engine, verifiers and sandbox; idempotent."""
        if self._about is None:
            self._about = await self._start()
        return self._about

    async def _start(self) -> About:
        import torch

        from agent_rl.engines.loading import load_model
        from agent_rl.rollout.serve import format_of, serve
        from agent_rl.training.parts import loadable
        from agent_rl.weights.build import target_of

        config = self._config
        if config.threads:
            torch.set_num_threads(config.threads)
        model, tokenizer = load_model(config.model.path, dtype="float32", device=config.engine.device)
        form = format_of(model, tokenizer, config.tir, config.model)
        urls = config.cluster.sandbox_urls
        sandbox = config.sandbox if not urls else config.sandbox.model_copy(
            update={"url": urls[self._number % len(urls)]}
        )  # fmt: skip
        served = await self._stack.enter_async_context(
            serve(
                model,
                tokenizer,
                form,
                source=loadable(config.model.path),
                tir=config.tir,
                engine=config.engine,
                rewards=config.rewards,
                rollout=config.rollout,
                sandbox=sandbox,
                seed=config.seed,
            )
        )
        self._served, self._engine = served, served.engine
        self._target: Any
        self._target, dtypes = target_of(served.engine)
        return About(served.sandbox, self._target.dtype, dtypes, os.getpid())

    async def play(self, problem: Problem, sample: int, sampling: Sampling, stream: str) -> Played:
        """One judged attempt."""
        before = self._clocks.sampled_tokens
        plays = self._served.rollout.play([(problem, sample)], sampling=sampling, stream=stream, clocks=self._clocks)
        async with contextlib.aclosing(plays):
            async for trajectory in plays:
                return Played(trajectory, self._clocks.read(), self._clocks.sampled_tokens - before)
        raise InfrastructureError("engine", f"attempt {sample} at {problem.id} ended without a trajectory")

    async def generate(self, request: GenerationRequest, seconds: float | None) -> Generation:
        """One turn; `seconds` from now is its deadline, since clocks of two machines differ."""
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            return await self._engine.generate(replace(request, deadline=deadline))
        except InfrastructureError as error:
            raise RuntimeError(str(error)) from None  # one that travels between processes

    async def release(self, trajectory: str) -> None:
        """See `Engine.release`."""
        self._engine.release(trajectory)

    async def load_weights(self, version: int, *parts: Weights) -> None:
        """Take new weights, in as many parts as they came."""
        await self._engine.load_weights(_chain(parts), version)

    async def served(self) -> Served:
        """Checksums of what the engine computes with."""
        return await self._target.served()

    async def ping(self) -> int:
        """The process id, to see whether anybody is there."""
        return os.getpid()


def _chain(parts: tuple[Weights, ...]) -> Iterator[tuple[str, Any]]:
    for part in parts:
        yield from part
