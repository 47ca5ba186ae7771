"""An adapter without its base: read from the learner, and registered with vLLM's LoRA."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from agent_rl.engines.vllm.engine import VllmEngine
from agent_rl.learner.batch import TrainBatch
from agent_rl.learner.sharding import whole
from agent_rl.learner.update import Learner
from agent_rl.weights.faults import ADAPTER
from agent_rl.weights.vllm.carriers import TransferCarrier

NUMBER, NAME = 1, "policy"
"""Of the one adapter that is served. It keeps its number and is replaced in place, so that requests which run while it
changes go on with the new one at the next token."""
_MEMORY = Path("/dev/shm")


class AdapterSource:
    """A learner whose base weights are given once, and its adapter every time.

    The second matrix of each pair is given multiplied by alpha / rank, so that an engine need not know the scale.
    """

    sends_parts = True
    """What is not given again is still served."""

    def __init__(self, learner: Learner):
        self._learner = learner
        self.model: nn.Module = learner.model
        self.temperature = learner.temperature
        self._based = False

    def full_state(self) -> Iterator[tuple[str, Tensor]]:
        """Base weights, at the first call, and the adapter's. A collective call on several ranks."""
        if not self._based:
            yield from base_state(self.model)
            self._based = True
        yield from adapter_state(self.model)

    def old_logprobs(self, batch: TrainBatch) -> Mapping[str, Tensor]:
        """The learner's."""
        return self._learner.old_logprobs(batch)


def base_state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Weights without the adapter, by Hugging Face name, ties once."""
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if ".lora_" not in name and id(tensor) not in seen:
            seen.add(id(tensor))
            yield name.replace(".base_layer.", "."), whole(tensor)


@torch.no_grad()
def adapter_state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """`adapter:LAYER.lora_A` [rank, in] and `adapter:LAYER.lora_B` [out, rank], scaled."""
    for name, module in model.named_modules():
        for adapter in getattr(module, "lora_A", {}):
            yield f"{ADAPTER}{name}.lora_A", whole(module.lora_A[adapter].weight)
            yield f"{ADAPTER}{name}.lora_B", whole(module.lora_B[adapter].weight) * module.scaling[adapter]


class AdapterCarrier:
    """Registers the adapter with every engine; base weights, when they come, travel as `base` carries them."""

    def __init__(self, engine: VllmEngine, base: TransferCarrier):
        self._engine, self._base = engine, base

    async def carry(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        from vllm.lora.request import LoRARequest

        await self._engine.start()
        async with self._engine.new_weights(version):
            given = await asyncio.to_thread(list, weights)
            if base := [(name, tensor) for name, tensor in given if not name.startswith(ADAPTER)]:
                await self._base.send(iter(base))
            adapter = {name.removeprefix(ADAPTER): tensor for name, tensor in given if name.startswith(ADAPTER)}
            folder = Path(
                tempfile.mkdtemp(prefix="agent-rl-adapter-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)
            )
            try:
                await asyncio.to_thread(write_adapter, adapter, folder)
                await self._engine.llm.add_lora(LoRARequest(NAME, NUMBER, str(folder), load_inplace=True))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            self._engine.adapter = LoRARequest(NAME, NUMBER, str(folder))

    async def close(self) -> None:
        """As the carrier of the base does."""
        await self._base.close()


def write_adapter(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """The adapter in peft's files, its scale being 1."""
    files = {
        f"base_model.model.{name}.weight": tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()
    }
    rank = max(tensor.shape[0] for name, tensor in tensors.items() if name.endswith(".lora_A"))
    layers = sorted({name.rpartition(".")[0].rpartition(".")[2] for name in tensors})
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "bias": "none",
        "target_modules": layers,
        "base_model_name_or_path": None,
    }
    save_file(files, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
