"""The worker's end of the shared-memory transport, as an engine of vLLM's weight-transfer layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from agent_rl.engines.vllm.arguments import SHARED_MEMORY
from agent_rl.engines.vllm.worker import repack_tied_heads
from agent_rl.weights.vllm.memory import received


@dataclass
class SharedMemoryInit(WeightTransferInitInfo):
    """Nothing to agree on beforehand."""


@dataclass
class SharedMemoryUpdate(WeightTransferUpdateInfo):
    """A part of the weights: the segment, and where its tensors lie."""

    path: str
    parcels: list[dict[str, Any]] = field(default_factory=list)


class SharedMemoryReceiver(WeightTransferEngine[SharedMemoryInit, SharedMemoryUpdate]):
    """Loads checkpoint-format tensors from a segment that the trainer owns."""

    init_info_cls = SharedMemoryInit
    update_info_cls = SharedMemoryUpdate

    def init_transfer_engine(self, init_info: SharedMemoryInit) -> None:
        """No rendezvous is needed."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class waits for an accelerator here, which a CPU build does not have.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: SharedMemoryUpdate) -> None:
        self.model.load_weights(received(update_info.path, update_info.parcels))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        repack_tied_heads(self.model)

    def shutdown(self) -> None:
        """Nothing is held."""


def register() -> None:
    """Make the transport known to vLLM in this process; idempotent."""
    if SHARED_MEMORY not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(SHARED_MEMORY, SharedMemoryReceiver)
