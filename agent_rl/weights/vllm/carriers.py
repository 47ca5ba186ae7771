"""The trainer's end: ways by which weights reach vLLM engines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from agent_rl.engines.vllm.engine import VllmEngine
from agent_rl.weights.vllm.memory import Segment

CHUNK_BYTES = 256 << 20
"""Tensors that are in shared memory at a time; a larger one is there alone."""


class SharedMemoryCarrier:
    """Writes tensors into shared memory, a chunk at a time, and has every worker load each chunk from there."""

    def __init__(self, engine: VllmEngine, chunk_bytes: int = CHUNK_BYTES):
        self._engine, self._chunk_bytes = engine, chunk_bytes

    async def carry(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        await self._engine.start()
        async with self._engine.new_weights(version):
            llm = self._engine.llm
            segment = Segment()
            try:
                await llm.start_weight_update()
                while chunk := await asyncio.to_thread(_next_chunk, weights, self._chunk_bytes):
                    parcels = await asyncio.to_thread(segment.write, chunk)
                    await _update(llm, {"path": segment.path, "parcels": parcels})
                await llm.finish_weight_update()
            finally:
                segment.close()


async def _update(llm: Any, info: dict[str, Any]) -> None:
    from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

    await llm.update_weights(WeightTransferUpdateRequest(update_info=info))


def _next_chunk(weights: Iterator[tuple[str, Tensor]], size: int) -> list[tuple[str, Tensor]]:
    chunk: list[tuple[str, Tensor]] = []
    held = 0
    for name, tensor in weights:
        chunk.append((name, tensor.detach().to("cpu")))
        held += tensor.nbytes
        if held >= size:
            break
    return chunk
