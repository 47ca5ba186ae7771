"""Tensors in anonymous shared memory that another process of the same user maps.

The memory is a `memfd`: it has no name in any folder, counts against no size of `/dev/shm`, and is gone when the last
process that maps it ends, however that happens. The other process opens it through `/proc/PID/fd`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

_ALIGNED = 64


@dataclass(frozen=True, slots=True)
class Parcel:
    """Where one tensor lies in a segment."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


class Segment:
    """Shared memory that its owner writes tensors into, again and again."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("agent-rl-weights", os.MFD_CLOEXEC)
        self._map: mmap.mmap | None = None
        self._size = 0

    @property
    def path(self) -> str:
        """What other processes of this user open."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def write(self, tensors: Sequence[tuple[str, Tensor]]) -> list[dict[str, Any]]:
        """Put tensors into the segment over what was there; where each lies, as plain data."""
        parcels = []
        offset = 0
        for name, tensor in tensors:
            parcels.append(
                Parcel(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset, tensor.nbytes)
            )
            offset += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        self._reserve(max(offset, 1))
        for parcel, (_, tensor) in zip(parcels, tensors, strict=True):
            if parcel.bytes:
                _view(self._map, parcel).copy_(tensor)
        return [asdict(parcel) for parcel in parcels]

    def _reserve(self, size: int) -> None:
        if size <= self._size:
            return
        if self._map is not None:
            self._map.close()
        # Reserved now, so that lack of memory is an error here and not a signal in the middle of a write.
        os.posix_fallocate(self._fd, 0, size)
        self._map, self._size = mmap.mmap(self._fd, size), size

    def close(self) -> None:
        """Give the memory back; idempotent."""
        if self._fd >= 0:
            if self._map is not None:
                self._map.close()
            os.close(self._fd)
            self._map, self._fd = None, -1


def received(path: str, parcels: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    """Copies of the tensors of a segment, one at a time."""
    if not parcels:
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        for plain in parcels:
            parcel = Parcel(**{**plain, "shape": tuple(plain["shape"])})
            dtype = getattr(torch, parcel.dtype)
            raw = bytearray(mapped[parcel.offset : parcel.offset + parcel.bytes])
            found = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
            yield parcel.name, found.reshape(parcel.shape)


def _view(mapped: mmap.mmap | None, parcel: Parcel) -> Tensor:
    assert mapped is not None
    dtype = getattr(torch, parcel.dtype)
    count = parcel.bytes // dtype.itemsize
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=parcel.offset).reshape(parcel.shape)
