"""Low-rank adapters through peft (extra `lora`), and weights with adapters merged into them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agent_rl.learner.settings import LoraSettings
from agent_rl.learner.sharding import whole

_ADAPTER = "default"


def add_adapters(model: PreTrainedModel, settings: LoraSettings) -> None:
    """Freeze `model` and put a trainable adapter beside each target layer, in place; its output is unchanged.

    Raises ImportError naming the extra if peft is missing, ValueError if the output head is a target.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ImportError("learner.lora needs the package peft: pip install 'agent-rl[lora]'") from error
    targets = settings.target_modules
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    inject_adapter_in_model(config, model, adapter_name=_ADAPTER)
    if not isinstance(model.get_output_embeddings(), nn.Linear):
        raise ValueError(f"lora.target_modules={targets} names the output head, which is evaluated apart; leave it out")


def merged_state(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, whole detached tensor) of each weight and persistent buffer; ties come once.

    Adapters are added to the weights they stand beside. A collective call on several ranks: each rank must
    consume the whole iterator.
    """
    modules = dict(model.named_modules())
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if ".lora_" in name or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        owner, found, leaf = name.rpartition(".base_layer.")
        full = whole(tensor)
        if not found:
            yield name, full
            continue
        yield f"{owner}.{leaf}", full + _delta(modules[owner]) if leaf == "weight" else full


@torch.no_grad()
def _delta(layer: nn.Module) -> Tensor:
    """[out, in] what the adapter adds to its layer's weight."""
    down, up = whole(layer.lora_A[_ADAPTER].weight), whole(layer.lora_B[_ADAPTER].weight)
    return layer.scaling[_ADAPTER] * (up @ down)
