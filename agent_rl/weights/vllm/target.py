"""One vLLM engine, as the proof sees it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from agent_rl.engines.base import Generation, GenerationRequest
from agent_rl.engines.vllm.engine import VllmEngine
from agent_rl.weights.errors import SyncError
from agent_rl.weights.manifest import Served, TensorSum


class VllmTarget:
    """Engine number `rank` of those behind one `VllmEngine`.

    Args:
        adapter: number of the adapter that is served; 0 = none.
    """

    def __init__(self, engine: VllmEngine, rank: int = 0, adapter: int = 0):
        self._vllm, self._rank, self._adapter = engine, rank, adapter
        self.engine = engine if engine.settings.vllm.engines == 1 else _Pinned(engine, rank)

    @property
    def name(self) -> str:
        return f"vllm {self._rank}"

    @property
    def model(self) -> str:
        """Folder or hub name of what it was started with."""
        return self._vllm.model

    @property
    def dtype(self) -> torch.dtype:
        return self._vllm.llm.model_config.dtype

    def dtype_for(self, name: str) -> torch.dtype | None:
        return self.dtype

    async def served(self) -> Served:
        # `collective_rpc` of several engines answers with the first one's result alone.
        call = ("collective_rpc", "served_weights", None, (self._adapter,), {})
        core = self._vllm.llm.engine_core
        answers = await core.call_utility_all_async(*call)
        return joined(self._vllm.weight_version, answers[self._rank], self.name)


class _Pinned:
    """The engines as one of them: all trajectories go there."""

    def __init__(self, engine: VllmEngine, rank: int):
        self._engine, self._rank = engine, rank

    @property
    def weight_version(self) -> int:
        return self._engine.weight_version

    def expect(self, trajectories: Iterable[str]) -> None:
        self._engine.expect(trajectories)

    async def generate(self, request: GenerationRequest) -> Generation:
        self._engine.pin(request.trajectory, self._rank)
        return await self._engine.generate(request)

    def release(self, trajectory: str) -> None:
        self._engine.release(trajectory)


def joined(version: int, workers: list[dict[str, Any]], engine: str) -> Served:
    """The shares of an engine's workers added up.

    Raises:
        SyncError: the workers together hold less or more of a tensor than its whole.
    """
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    sums: dict[str, int] = {}
    counts: dict[str, int] = {}
    for worker in workers:
        for name, shape, dtype, part, count in worker["tensors"]:
            shapes[name] = (tuple(shape), dtype)
            sums[name] = (sums.get(name, 0) + int(part, 16)) % (1 << 64)
            counts[name] = counts.get(name, 0) + count
    for name, (shape, _) in shapes.items():
        if counts[name] != math.prod(shape):
            raise SyncError(
                f"engine {engine}: its workers hold {counts[name]} elements of {name}, which has {math.prod(shape)}; "
                "the proof does not know how this layer is cut (turn sync.checksums off to rely on the canary alone)"
            )
    tensors = {name: TensorSum(shape, dtype, sums[name]) for name, (shape, dtype) in shapes.items()}
    unread = sorted({start for worker in workers for start in worker["unread"]})
    return Served(version, tensors, tuple(unread), open=any(worker["open"] for worker in workers))
