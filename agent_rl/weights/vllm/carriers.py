"""The trainer's end: weights through vLLM's weight-transfer layer, whichever way they travel.

The layer's own trainer engines do the work: NCCL broadcast between GPUs, CUDA IPC on the same GPU, and our shared
memory on one machine without GPUs. They are synchronous and drive the engine through a client of four methods; here
they run in a thread, and the client hands its calls to the loop that the engine lives in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from torch import Tensor

from agent_rl.engines.vllm.arguments import SHARED_MEMORY
from agent_rl.engines.vllm.engine import VllmEngine
from agent_rl.weights.manifest import Described

Stream = Iterator[tuple[str, Tensor]]


class TransferCarrier:
    """Sends whole tensors to all workers of all engines.

    Args:
        describe: names, shapes and number formats of what a stream will yield, in order, found without gathering.
        backend: of vLLM's weight-transfer layer; the engine was started with the same.
        rank: of this trainer process; only the first drives the engine.
    """

    def __init__(
        self,
        engine: VllmEngine,
        describe: Callable[[], Sequence[Described]],
        *,
        backend: str = SHARED_MEMORY,
        rank: int = 0,
    ):
        self._engine, self._describe, self._backend, self._rank = engine, describe, backend, rank
        self._trainer: Any | None = None
        self._source: Any | None = None

    async def carry(self, weights: Stream, version: int) -> None:
        """Bring whole weights to every worker as `version`."""
        await self._engine.start()
        async with self._engine.new_weights(version):
            await self.send(weights)

    async def send(self, weights: Stream) -> None:
        """The same inside the engine's `new_weights`."""
        await asyncio.to_thread(self._send, weights, asyncio.get_running_loop())

    def _send(self, weights: Stream, loop: asyncio.AbstractEventLoop) -> None:
        if self._trainer is None:
            from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

            from agent_rl.weights.vllm.sender import StreamSource

            self._source = StreamSource(self._describe)
            self._trainer = WeightTransferTrainerFactory.trainer_init(
                self._init_info(), client=LoopClient(self._engine, loop), source=self._source
            )
        assert self._source is not None
        with self._source.streaming(weights):
            self._trainer.send_weights()

    def _init_info(self) -> Any:
        own = self._engine.settings.vllm
        if self._backend == "nccl":
            from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
            from vllm.utils.network_utils import get_ip, get_open_port

            workers = own.engines * own.tensor_parallel_size
            return NCCLTrainerInitInfo(get_ip(), get_open_port(), 1 + workers, rank=self._rank)
        if self._backend == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

            return IPCTrainerInitInfo(packed=True, rank=self._rank)
        from agent_rl.weights.vllm.sender import SharedMemoryTrainerInit

        return SharedMemoryTrainerInit(rank=self._rank)

    async def close(self) -> None:
        """Give communicators and memory back; idempotent."""
        if self._trainer is not None:
            await asyncio.to_thread(self._trainer.shutdown)
            self._trainer = None


class LoopClient:
    """What vLLM's trainer engines call (`VLLMWeightSyncClient`), from their thread to the engine's loop."""

    def __init__(self, engine: VllmEngine, loop: asyncio.AbstractEventLoop):
        self._engine, self._loop = engine, loop

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let every worker join."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        self._do(self._engine.llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info)))

    def start_weight_update(self) -> None:
        """Weights are about to come."""
        self._do(self._engine.llm.start_weight_update())

    def update_weights(self, update_info: Any) -> None:
        """A part of the weights comes."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        self._do(self._engine.llm.update_weights(WeightTransferUpdateRequest(update_info=update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """All weights have come."""
        self._do(self._engine.llm.finish_weight_update(weight_version))

    def _do(self, call: Coroutine[Any, Any, Any]) -> None:
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            future.result(self._engine.settings.vllm.weights_timeout_s)
        except TimeoutError:
            future.cancel()
            raise
