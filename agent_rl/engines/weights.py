"""Copying new weights into a module, by Hugging Face parameter names."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def copy_weights(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy named tensors into the model's parameters, one at a time, as they come.

    A tensor may be on another device or of another float type. Tied parameters may be given under any of
    their names. Buffers are taken if given, and may be left out.

    Raises:
        ValueError: an unknown name, a wrong shape, or a parameter that was not given. Weights that came before
            the error are copied already.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    missing = {id(parameter): name for name, parameter in parameters.items()}
    with torch.no_grad():
        for name, tensor in weights:
            target = parameters.get(name, buffers.get(name))
            if target is None:
                raise ValueError(f"the weights name {name!r}, which {type(model).__name__} does not have")
            if target.shape != tensor.shape:
                raise ValueError(
                    f"the weight {name!r} has shape {tuple(tensor.shape)}, "
                    f"{type(model).__name__} needs {tuple(target.shape)}"
                )
            target.copy_(tensor)
            missing.pop(id(target), None)
    if missing:
        names = sorted(missing.values())
        raise ValueError(
            f"{len(names)} parameters of {type(model).__name__} were not given, such as {', '.join(names[:3])}"
        )
