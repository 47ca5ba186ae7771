"""Weights from this process to the engine's workers, through files in shared memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from agent_rl.engines.vllm.worker import SUFFIX

SHARED = Path("/dev/shm")
FILE_BYTES = 1 << 30
"""A file is written when so many bytes have come."""


@contextmanager
def written(weights: Iterable[tuple[str, Tensor]], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Path]:
    """The weights as files of a folder that is removed when the block is left.

    Args:
        shapes: of all the parameters that the model needs, tied ones under their first name.

    Raises:
        ValueError: a parameter is missing or has another shape. Nothing has been sent then.
    """
    folder = Path(tempfile.mkdtemp(prefix="agent-rl-weights-", dir=SHARED if os.access(SHARED, os.W_OK) else None))
    try:
        missing = dict(shapes)
        pending: dict[str, Tensor] = {}
        held, files = 0, 0
        for name, tensor in weights:
            needed = missing.pop(name, None)
            if needed is not None and tuple(tensor.shape) != needed:
                raise ValueError(f"the weight {name!r} has shape {tuple(tensor.shape)}, the engine needs {needed}")
            pending[name] = tensor.detach().to("cpu").contiguous()
            held += tensor.numel() * tensor.element_size()
            if held >= FILE_BYTES:
                save_file(pending, folder / f"{files:05d}{SUFFIX}")
                pending, held, files = {}, 0, files + 1
        if missing:
            names = sorted(missing)
            raise ValueError(f"{len(names)} parameters were not given, such as {', '.join(names[:3])}")
        if pending:
            save_file(pending, folder / f"{files:05d}{SUFFIX}")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def needed_shapes(location: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters of the model in that folder, without loading it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(location))
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
