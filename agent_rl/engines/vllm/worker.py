"""What our engine asks of a vLLM worker, in the worker's own process.

vLLM mixes `WeightLoader` into its worker class (`worker_extension_cls`), so that `collective_rpc` reaches its methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

SUFFIX = ".safetensors"


class WeightLoader:
    """Takes new weights from files on the same machine."""

    model_runner: Any
    reload_weights: Any

    def take_weights(self, folder: str) -> None:
        """Load all `*.safetensors` of a folder, Hugging Face names, into the running model."""
        self.reload_weights(weights_iterator=_tensors(Path(folder)))
        repack_tied_heads(self.model_runner.get_model())


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    for file in sorted(folder.glob(f"*{SUFFIX}")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping, it has only this method)
                yield name, opened.get_tensor(name)


def repack_tied_heads(model: nn.Module) -> None:
    """Pack the output head again where it computes with a copy of the embedding.

    On CPUs a layer multiplies with a packed copy of its weights, made when it is loaded. A tied head is not loaded:
    its weight changes with the embedding, its packed copy would stay the old one.
    """
    for module in model.modules():
        if hasattr(module, "cpu_linear") and module.weight.numel():
            module.quant_method.process_weights_after_loading(module)
