"""From a vLLM layer's parameters to Hugging Face tensors: which rows and columns of which tensor a worker holds.

Knows vLLM's layer classes by their attributes alone, so that it can be tested without vLLM. A worker of a parallel
engine holds a part of a tensor; checksums of parts add up (`agent_rl.weights.checksum`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `start` to `stop` of a worker's parameter are a part of tensor `name`."""

    name: str
    start: int
    stop: int
    row: int
    """Place of the first row in the whole tensor."""
    column: int
    """Place of the first column."""
    shape: tuple[int, ...]
    """Of the whole tensor."""


def pieces(module: Any, name: str, local: tuple[int, ...], parts: Sequence[str], worker: int = 0) -> Iterator[Piece]:
    """What the parameter `name` (`prefix.leaf`) of `module`, with shape `local`, holds.

    Args:
        parts: names of the layers that are fused in this one, in order; empty if it stands for itself.
        worker: number of this worker among those that an engine is cut over.

    A tensor that several workers hold alike is told by the first of them alone.
    """
    owner, _, leaf = name.rpartition(".")
    rank, size = getattr(module, "tp_rank", 0), getattr(module, "tp_size", 1)
    if len(parts) > 1:
        yield from _fused(module, owner, leaf, local, parts, rank)
    elif hasattr(module, "shard_indices"):
        own = module.shard_indices
        first, last = own.org_vocab_start_index, min(own.org_vocab_end_index, module.org_vocab_size)
        if last > first:
            yield Piece(name, 0, last - first, first, 0, (module.org_vocab_size, *local[1:]))
    elif size > 1 and leaf == "weight" and hasattr(module, "input_size_per_partition") and _cut(module) == "rows":
        yield Piece(name, 0, local[0], rank * local[0], 0, (module.output_size, *local[1:]))
    elif size > 1 and leaf == "bias" and _cut(module) == "rows":
        yield Piece(name, 0, local[0], rank * local[0], 0, (module.output_size,))
    elif size > 1 and leaf == "weight" and _cut(module) == "columns":
        yield Piece(name, 0, local[0], 0, rank * local[1], (local[0], module.input_size))
    elif worker == 0:
        yield Piece(name, 0, local[0] if local else 1, 0, 0, local)


def _cut(module: Any) -> str:
    """How a tensor-parallel linear layer's weight is cut."""
    if getattr(module, "input_size", None) != getattr(module, "input_size_per_partition", None):
        return "columns"
    if getattr(module, "output_size", None) != getattr(module, "output_size_per_partition", None):
        return "rows"
    return "no"


def _fused(
    module: Any, owner: str, leaf: str, local: tuple[int, ...], parts: Sequence[str], rank: int
) -> Iterator[Piece]:
    above = owner.rpartition(".")[0]
    start = 0
    for part, (rows, place, whole) in zip(parts, _shares(module, rank), strict=True):
        if place is not None:
            yield Piece(f"{above}.{part}.{leaf}", start, start + rows, place, 0, (whole, *local[1:]))
        start += rows


def _shares(module: Any, rank: int) -> list[tuple[int, int | None, int]]:
    """Of each fused layer: this worker's rows, the place of the first (None: another worker tells it), all rows."""
    if hasattr(module, "total_num_kv_heads"):
        head, replicas = module.head_size, module.num_kv_head_replicas
        value_head = getattr(module, "v_head_size", head)
        query = module.num_heads * head
        shares: list[tuple[int, int | None, int]] = [(query, rank * query, module.total_num_heads * head)]
        for width in (head, value_head):
            rows = module.num_kv_heads * width
            place = (rank // replicas) * rows if rank % replicas == 0 else None
            shares.append((rows, place, module.total_num_kv_heads * width))
        return shares
    size = module.tp_size
    return [(whole // size, rank * (whole // size), whole) for whole in module.output_sizes]


def fused_parts(owner: str, mapping: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Names of the layers that are fused in the layer `owner`, from the model's `packed_modules_mapping`."""
    return mapping.get(owner.rpartition(".")[2], ())
