"""The random-number states of this process, as JSON."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """States of Python's, NumPy's and torch's global generators (of each CUDA device too)."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    version, internal, gauss = random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": [version, list(internal), gauss],
        "numpy": [name, keys.tolist(), int(position), int(has_gauss), float(cached)],
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(state) for state in cuda],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """The inverse of `random_state`. Raises ValueError if the number of CUDA devices differs."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_tensor(state["torch"]))
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if devices != len(state["cuda"]):
        raise ValueError(f"the random state is of {len(state['cuda'])} CUDA devices; this process sees {devices}")
    if devices:
        torch.cuda.set_rng_state_all([_tensor(text) for text in state["cuda"]])


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
