"""What was sent and what is served, tensor by tensor, as plain data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from agent_rl.weights.checksum import checksum


@dataclass(frozen=True, slots=True)
class TensorSum:
    """Shape, number format and checksum of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    sum: int

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSum:
        return cls(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), checksum(tensor))

    def __str__(self) -> str:
        return f"{self.sum:016x}"


def total(tensors: Mapping[str, TensorSum]) -> str:
    """One checksum of all: names, shapes, formats and sums; 32 hexadecimal digits (BLAKE2b)."""
    digest = hashlib.blake2b(digest_size=16)
    for name, entry in sorted(tensors.items()):
        digest.update(f"{name} {entry.shape} {entry.dtype} {entry}\n".encode())
    return digest.hexdigest()


@dataclass(slots=True)
class Sent:
    """What a version of the weights consists of; filled while its tensors are on their way."""

    version: int
    ties: Mapping[str, str] = field(default_factory=dict)
    """Other name of a tied tensor -> the name it is sent under."""
    adapted: frozenset[str] = frozenset()
    """Tensors that an adapter is merged into."""
    tensors: dict[str, TensorSum] = field(default_factory=dict)
    """In the order they were sent."""
    bytes: int = 0
    kept: Mapping[str, TensorSum] = field(default_factory=dict)
    """What was sent before, is not sent again and must still be served."""

    def watch(
        self, weights: Iterable[tuple[str, Tensor]], dtype_for: Callable[[str], torch.dtype | None]
    ) -> Iterator[tuple[str, Tensor]]:
        """The same weights in the number format that the engine keeps, noted down as they pass."""
        for name, tensor in weights:
            dtype = dtype_for(name)
            if dtype is not None and tensor.is_floating_point():
                tensor = tensor.to(dtype)
            self.tensors[name] = TensorSum.of(tensor)
            self.bytes += tensor.nbytes
            yield name, tensor

    @property
    def expected(self) -> dict[str, TensorSum]:
        """What must be served under each name, tied names included."""
        own = {**self.kept, **self.tensors}
        return own | {alias: own[name] for alias, name in self.ties.items() if name in own}


@dataclass(frozen=True, slots=True)
class Served:
    """What an engine computes with, read back from its live parameters, under Hugging Face names."""

    version: int
    """Version that the engine says it serves."""
    tensors: Mapping[str, TensorSum]
    unread: tuple[str, ...] = ()
    """Beginnings of names whose tensors the engine keeps in a form that cannot be read back."""
    open: bool = False
    """An update was begun and not ended."""


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor that will be sent."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def described(model: nn.Module, dtype_for: Callable[[str], torch.dtype | None]) -> list[Described]:
    """What `Learner.full_state` will yield, in its order, known without gathering anything."""
    seen: set[int] = set()
    found = []
    for name, tensor in model.state_dict(keep_vars=True).items():
        if ".lora_" in name or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        plain = name.replace(".base_layer.", ".")
        dtype = dtype_for(plain) if tensor.is_floating_point() else None
        found.append(Described(plain, tuple(tensor.shape), dtype or tensor.dtype))
    return found


def ties_of(model: nn.Module) -> dict[str, str]:
    """{other name: name} of tensors with several names in the model's state, adapters left out."""
    first: dict[int, str] = {}
    ties: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if ".lora_" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        if id(tensor) in first:
            ties[plain] = first[id(tensor)]
        else:
            first[id(tensor)] = plain
    return ties


def adapted_by(model: nn.Module) -> frozenset[str]:
    """Names of the weights that have an adapter beside them."""
    mark = ".base_layer.weight"
    return frozenset(name.replace(mark, ".weight") for name in model.state_dict(keep_vars=True) if name.endswith(mark))
