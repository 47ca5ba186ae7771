"""What the proof asks of a vLLM worker, in the worker's own process.

vLLM mixes `WeightWorker` into its worker class (`worker_extension_cls`). Importing this module makes the shared-memory
transport known there, before the model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from agent_rl.engines.vllm.worker import WeightLoader
from agent_rl.weights.checksum import checksum
from agent_rl.weights.faults import ADAPTER
from agent_rl.weights.vllm.pieces import Piece, fused_parts, pieces
from agent_rl.weights.vllm.receiver import register

register()

_COLUMNS = 256
"""Columns of a packed weight that are unpacked at a time."""


_OWN = ("_", "lora_")
"""Beginnings of names of what vLLM itself keeps in a layer: scales of its attention, slots for adapters."""


class WeightWorker(WeightLoader):
    """Tells checksums of what this worker computes with."""

    vllm_config: Any
    _weight_update_active: bool

    @torch.inference_mode()
    def served_weights(self, adapter: int = 0) -> dict[str, Any]:
        """Checksums of this worker's share of each tensor, by Hugging Face name.

        Args:
            adapter: number of the adapter whose tensors are read, too; 0 = none.

        Returns:
            `tensors`: [name, whole shape, number format, sum, elements] each; `unread`: beginnings of names;
            `open`: whether an update was begun and not ended; `engine`: which engine this worker belongs to.
        """
        engine = self.vllm_config.parallel_config.data_parallel_rank
        if self._weight_update_active:  # layers are without weights until the update is finished
            return {"tensors": [], "unread": [""], "open": True, "engine": engine}
        model = self.model_runner.get_model()
        found: list[list[Any]] = []
        unread: list[str] = []
        dtype = self.vllm_config.model_config.dtype
        for name, module in model.named_modules():
            for leaf, tensor in [*module._parameters.items(), *_persistent(module)]:
                if tensor is None or leaf.startswith(_OWN):
                    continue
                full = f"{name}.{leaf}".replace(".base_layer.", ".")
                try:
                    found += _sums(module, full, leaf, tensor, model, dtype)
                except _Unreadable:
                    unread.append(full.rpartition(".")[0] + ".")
        if adapter and self.vllm_config.parallel_config.tensor_parallel_size > 1:
            unread.append(ADAPTER)
        elif adapter:
            found += _adapter_sums(self.model_runner, adapter)
        return {"tensors": found, "unread": unread, "open": False, "engine": engine}


def _number() -> int:
    """Number of this worker among those that an engine is cut over."""
    from vllm.distributed import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())


class _Unreadable(Exception):
    """The layer keeps its weights in a form of its own."""


def _sums(
    module: nn.Module, full: str, leaf: str, tensor: Tensor, model: nn.Module, dtype: torch.dtype
) -> Iterator[list[Any]]:
    mapping = getattr(model, "packed_modules_mapping", {})
    if tensor.ndim > 2 or type(module).__name__.startswith("FusedMoE"):
        raise _Unreadable
    packed = leaf == "weight" and hasattr(module, "cpu_linear") and not _looks_up(module)
    if not packed and tensor.numel() == 0:
        raise _Unreadable
    local = (module.output_size_per_partition, module.input_size_per_partition) if packed else tuple(tensor.shape)
    for piece in pieces(module, full, local, fused_parts(full.rpartition(".")[0], mapping), _number()):
        if packed:
            total = _packed_sum(module, piece, local, dtype)
        else:
            part = tensor[piece.start : piece.stop] if tensor.ndim else tensor
            # Some kernels keep biases in float32; they came in the model's number format and go back to it exactly.
            part = part.to(dtype) if leaf == "bias" else part
            total = checksum(part, row=piece.row, column=piece.column)
        count = (piece.stop - piece.start) * (local[1] if len(local) > 1 else 1)
        kind = dtype if packed or leaf == "bias" else tensor.dtype
        yield [piece.name, list(piece.shape), str(kind).removeprefix("torch."), f"{total:016x}", count]


def _looks_up(module: nn.Module) -> bool:
    """An embedding: it reads rows of its plain weight, whatever packed copy it has."""
    return hasattr(module, "shard_indices") and "LMHead" not in type(module).__name__


def _packed_sum(module: nn.Module, piece: Piece, local: tuple[int, ...], dtype: torch.dtype) -> int:
    """Checksum of a weight of which only a packed copy is computed with: it is multiplied by unit vectors.

    A product with a unit vector is one weight plus zeros, which no rounding changes.
    """
    linear: Any = module.cpu_linear
    width, total = local[1], 0
    for start in range(0, width, _COLUMNS):
        stop = min(start + _COLUMNS, width)
        unit = torch.zeros(stop - start, width, dtype=dtype)
        unit[torch.arange(stop - start), torch.arange(start, stop)] = 1
        columns = linear(unit, module.weight, None).T[piece.start : piece.stop]
        total += checksum(columns, row=piece.row, column=piece.column + start)
    return total % (1 << 64)


def _persistent(module: nn.Module) -> list[tuple[str, Tensor]]:
    hidden = module._non_persistent_buffers_set
    return [(name, buffer) for name, buffer in module._buffers.items() if buffer is not None and name not in hidden]


def _adapter_sums(runner: Any, adapter: int) -> Iterator[list[Any]]:
    """Checksums of the adapter in the slot that layers compute with; nothing if it is in none."""
    manager = runner.lora_manager._adapter_manager
    if adapter not in manager.lora_index_to_id:
        return
    slot = manager.lora_index_to_id.index(adapter)
    mapping = getattr(runner.get_model(), "packed_modules_mapping", {})
    for name, module in manager.modules.items():
        lora = manager._registered_adapters[adapter].get_lora(name)
        owner, _, last = name.rpartition(".")
        parts = fused_parts(name, mapping) or (last,)
        for number, part in enumerate(parts):
            rank = _rank(lora, number)
            if rank == 0:
                continue
            down = module.lora_a_stacked[number][slot, 0, :rank]
            up = module.lora_b_stacked[number][slot, 0, :, :rank]
            for leaf, tensor in (("lora_A", down), ("lora_B", up)):
                yield [
                    f"{ADAPTER}{owner}.{part}.{leaf}",
                    list(tensor.shape),
                    str(tensor.dtype).removeprefix("torch."),
                    f"{checksum(tensor):016x}",
                    tensor.numel(),
                ]


def _rank(lora: Any, number: int) -> int:
    """Rank of the adapter of one of a layer's fused parts; 0 if it has none."""
    if lora is None:
        return 0
    down = lora.lora_a[number] if isinstance(lora.lora_a, list) else lora.lora_a
    return 0 if down is None else down.shape[0]
