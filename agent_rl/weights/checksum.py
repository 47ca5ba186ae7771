"""A checksum of a tensor's bits that can be computed where the tensor lies, and added up over its shards.

    sum over r, c of  g(r) h(c) bits(r, c)     modulo 2**64

with odd pseudo-random multipliers g and h (the finaliser of SplitMix64, Steele, Lea and Flood, OOPSLA 2014). An odd
multiplier has an inverse modulo 2**64 and two elements' bits differ by less than that, so that a change of one element
always changes the sum, and any other change goes unseen with a chance of about 2**-64. Addition modulo 2**64 does
not depend on its order: every device gives the same sum, and the parts of a tensor that is cut by rows or columns
add up to the sum of the whole.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_BLOCK = 1 << 20
"""Elements that are widened to 64 bits at a time."""
_ROWS, _COLUMNS = 0x243F6A8885A308D3, 0x13198A2E03707344
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: Tensor, *, row: int = 0, column: int = 0) -> int:
    """The sum of a tensor, 0 <= sum < 2**64.

    The first axis counts rows, all others together columns. Negative zeros count as zeros, since engines that repack
    weights may turn one into the other.

    Args:
        row: place of the first row in the whole tensor, for a shard.
        column: place of the first column.
    """
    if tensor.numel() == 0:
        return 0
    flat = tensor.detach()
    flat = flat.reshape(flat.shape[0], -1) if flat.ndim > 1 else flat.reshape(-1, 1)
    rows, columns = flat.shape
    across = _multipliers(_COLUMNS, column, columns, flat.device)
    down = _multipliers(_ROWS, row, rows, flat.device)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    height = max(1, _BLOCK // columns)
    for start in range(0, rows, height):
        part = (_bits(flat[start : start + height]).to(torch.int64) * across).sum(1)
        total += (part * down[start : start + height]).sum()
    return int(total) % (1 << 64)


def _bits(block: Tensor) -> Tensor:
    if block.dtype == torch.bool:
        return block.to(torch.uint8)
    if block.is_floating_point() and block.element_size() > 1:
        block = block + 0
    return block.contiguous().view(_INTEGERS[block.element_size()])


@lru_cache(maxsize=64)
def _multipliers(seed: int, start: int, count: int, device: torch.device) -> Tensor:
    """[count] int64, odd."""
    x = torch.arange(start, start + count, dtype=torch.int64, device=device) * _signed(0x9E3779B97F4A7C15)
    x = x + _signed(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    return (x ^ _shifted(x, 31)) | 1


def _shifted(x: Tensor, by: int) -> Tensor:
    """Logical shift to the right."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
