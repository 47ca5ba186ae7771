"""The trainer's end of the shared-memory transport, and the stream that any transport of vLLM's sends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor
from vllm.distributed.weight_transfer import (
    ParamMeta,
    TrainerWeightTransferEngine,
    WeightSource,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.base import TrainerInitInfo

from agent_rl.engines.vllm.arguments import SHARED_MEMORY
from agent_rl.weights.manifest import Described
from agent_rl.weights.vllm.memory import Segment

CHUNK_BYTES = 256 << 20
"""Bytes of tensors that are in shared memory at a time; a larger tensor is there alone."""


class StreamSource(WeightSource):
    """The stream of one hand-over at a time, under names and shapes that are known beforehand."""

    def __init__(self, describe: Callable[[], Sequence[Described]]):
        self._describe = describe
        self._weights: Iterator[tuple[str, Tensor]] | None = None

    @contextmanager
    def streaming(self, weights: Iterator[tuple[str, Tensor]]) -> Iterator[None]:
        """Inside the block the source yields these weights, once."""
        self._weights = weights
        try:
            yield
        finally:
            self._weights = None

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(entry.name, entry.dtype, entry.shape) for entry in self._describe()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        if self._weights is None:
            raise RuntimeError("the weights of this hand-over were sent already")
        weights, self._weights = self._weights, None
        return weights


@dataclass
class SharedMemoryTrainerInit(TrainerInitInfo):
    """How the trainer's end is made."""

    backend: ClassVar[str] = SHARED_MEMORY
    chunk_bytes: int = CHUNK_BYTES


class SharedMemoryTrainer(TrainerWeightTransferEngine[SharedMemoryTrainerInit]):
    """Writes tensors into shared memory, a chunk at a time, and has every worker load each chunk from there."""

    init_info_cls = SharedMemoryTrainerInit

    def __init__(self, *, client: Any, source: WeightSource, is_sender: bool, chunk_bytes: int):
        super().__init__(client=client, source=source, is_sender=is_sender)
        self._chunk_bytes = chunk_bytes

    @classmethod
    def trainer_init(
        cls, init_info: SharedMemoryTrainerInit, *, client: Any, source: WeightSource | None = None
    ) -> Self:
        if source is None:
            raise ValueError("the shared-memory transport needs a source of weights")
        engine = cls(client=client, source=source, is_sender=init_info.is_sender, chunk_bytes=init_info.chunk_bytes)
        if engine.is_sender:
            client.init_weight_transfer_engine({})
        return engine

    def send_weights(self) -> None:
        weights = iter(self.source or ())
        if not self.is_sender:
            for _ in weights:  # this rank's share of the gathers
                pass
            return
        segment = Segment()
        try:
            self.client.start_weight_update()
            while chunk := self._chunk(weights):
                self.client.update_weights({"path": segment.path, "parcels": segment.write(chunk)})
            self.client.finish_weight_update()
        finally:
            segment.close()

    def _chunk(self, weights: Iterator[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        chunk: list[tuple[str, Tensor]] = []
        held = 0
        for name, tensor in weights:
            chunk.append((name, tensor.detach().to("cpu")))
            held += tensor.nbytes
            if held >= self._chunk_bytes:
                break
        return chunk


if SHARED_MEMORY not in WeightTransferTrainerFactory._registry:
    WeightTransferTrainerFactory.register_engine(SHARED_MEMORY, SharedMemoryTrainer)
