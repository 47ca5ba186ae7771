"""The KV cache of many trajectories: one slot a trajectory, all slots in one block of memory.

A slot holds a trajectory's keys and values left-aligned: the token at position p of the context is at index p
of the slot. Decoding reads the leading slots as a view, `block[:rows, part, :, :length]`, so that a step copies
nothing but the new keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Keys and values of one attention layer: heads, and the size of a key and of a value."""

    heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    """Tokens that a query sees, itself included, in a sliding-window layer."""


class KVBlock:
    """Storage of `rows` slots of `length` tokens for all layers.

    Tensors are [rows, parts, heads, length, dim], one for each distinct (heads, dim): for most models a single
    one that holds the keys and values of all layers, so that a slot is moved with one copy.
    """

    def __init__(self, layers: Sequence[LayerShape], dtype: torch.dtype, device: torch.device):
        self.layers = tuple(layers)
        self.rows = 0
        self.length = 0
        self._dtype, self._device = dtype, device
        parts: dict[tuple[int, int], int] = {}
        self._where: list[tuple[tuple[tuple[int, int], int], tuple[tuple[int, int], int]]] = []
        for layer in self.layers:
            places = []
            for shape in ((layer.heads, layer.key_dim), (layer.heads, layer.value_dim)):
                places.append((shape, parts.get(shape, 0)))
                parts[shape] = parts.get(shape, 0) + 1
            self._where.append((places[0], places[1]))
        self._parts = parts
        self._blocks: dict[tuple[int, int], Tensor] = {}
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._allocate(0, 0)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one trajectory takes, all layers together."""
        size = torch.empty((), dtype=self._dtype).element_size()
        return size * sum(count * heads * dim for (heads, dim), count in self._parts.items())

    def resize(self, rows: int, length: int) -> None:
        """Reallocate, keeping what lies in the rows and positions that both sizes have."""
        old, kept_rows, kept = self._blocks, min(rows, self.rows), min(length, self.length)
        self._allocate(rows, length)
        for shape, block in old.items():
            self._blocks[shape][:kept_rows, ..., :kept, :] = block[:kept_rows, ..., :kept, :]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot into another."""
        for block in self._blocks.values():
            block[target, ..., :length, :].copy_(block[source, ..., :length, :])

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange the first `length` tokens of two slots."""
        for block in self._blocks.values():
            spare = block[a, ..., :length, :].clone()
            block[a, ..., :length, :].copy_(block[b, ..., :length, :])
            block[b, ..., :length, :].copy_(spare)

    def clear(self) -> None:
        """Zero everything. Needed after NaN, which would pass through masked positions (0 * NaN = NaN)."""
        for block in self._blocks.values():
            block.zero_()

    def _allocate(self, rows: int, length: int) -> None:
        # Zeros rather than uninitialised memory, which may hold NaN.
        self._blocks = {
            (heads, dim): torch.zeros((rows, count, heads, length, dim), dtype=self._dtype, device=self._device)
            for (heads, dim), count in self._parts.items()
        }
        self.rows, self.length = rows, length
        self.keys = [self._blocks[shape][:, part] for (shape, part), _ in self._where]
        self.values = [self._blocks[shape][:, part] for _, (shape, part) in self._where]


@dataclass(slots=True)
class DecodePlan:
    """One new token in each of the leading rows."""

    rows: Tensor
    """0 .. n - 1."""
    positions: Tensor
    """[n]: index at which each row's token is written."""
    length: int
    """Length that attention reads."""


@dataclass(slots=True)
class PrefillPlan:
    """Several new tokens, right-aligned in a padded batch, in any rows."""

    rows: Tensor
    """[n]: slot of each batch row."""
    batch_index: Tensor
    """[tokens]: batch row of each real token."""
    step_index: Tensor
    """[tokens]: column of each real token."""
    positions: Tensor
    """[tokens]: index in the slot."""
    length: int
    """Length that attention reads; 0 if no row has earlier tokens, and the new keys are all there is."""


class _SlotLayer(CacheLayerMixin):
    """What the modelling code may ask of a layer; the tensors live in the block."""

    def __init__(self, cache: SlotCache, index: int):
        super().__init__()
        self._cache, self._index = cache, index
        self.is_initialized = True
        self.is_sliding = cache.block.layers[index].window is not None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the block is allocated by its owner."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self._cache.update(key_states, value_states, self._index)

    def get_seq_length(self) -> int:
        # Positions and masks are always given explicitly; only a fresh, mask-free prefill is asked, and holds 0.
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_max_length(self) -> int:
        return self._cache.block.length

    def get_max_cache_shape(self) -> int:
        """The name of `get_max_length` in older releases of transformers."""
        return self._cache.block.length


class SlotCache(Cache):
    """The `transformers` cache that writes and reads slots as the current plan says."""

    def __init__(self, block: KVBlock):
        self.block = block
        self.plan: DecodePlan | PrefillPlan | None = None
        super().__init__(layers=[_SlotLayer(self, index) for index in range(len(block.layers))])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values [batch, heads, new, dim]; return all that the batch attends to."""
        keys, values, plan = self.block.keys[layer_idx], self.block.values[layer_idx], self.plan
        if isinstance(plan, DecodePlan):
            keys[plan.rows, :, plan.positions] = key_states[:, :, 0]
            values[plan.rows, :, plan.positions] = value_states[:, :, 0]
            rows = plan.rows.shape[0]
            return keys[:rows, :, : plan.length], values[:rows, :, : plan.length]
        if plan is None:
            raise RuntimeError("the slot cache was used outside a decode or prefill step")
        where = (plan.rows[plan.batch_index], slice(None), plan.positions)
        keys[where] = key_states[plan.batch_index, :, plan.step_index]
        values[where] = value_states[plan.batch_index, :, plan.step_index]
        if plan.length == 0:
            return key_states, value_states
        return (
            keys[:, :, : plan.length].index_select(0, plan.rows),
            values[:, :, : plan.length].index_select(0, plan.rows),
        )
