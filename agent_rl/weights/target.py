"""Engines whose served weights can be read back, and the embedded one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from agent_rl.engines.base import Engine
from agent_rl.engines.transformers import TransformersEngine
from agent_rl.weights.manifest import Served, TensorSum


class Target(Protocol):
    """One engine, as the proof sees it."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def engine(self) -> Engine:
        """The engine itself, for the canary."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The coarsest number format it computes in."""
        ...

    def dtype_for(self, name: str) -> torch.dtype | None:
        """Number format in which it keeps the floating-point tensor of that name; None if it has none."""
        ...

    async def served(self) -> Served:
        """Checksums of what it computes with, from its live parameters."""
        ...


class Carrier(Protocol):
    """A way by which weights travel to all engines of a run."""

    async def carry(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Bring the weights to every engine; when this returns, the next token is sampled with them."""
        ...


class EmbeddedTarget:
    """A transformers engine in this process."""

    def __init__(self, engine: TransformersEngine, name: str = "transformers"):
        self.engine = engine
        self.name = name
        self._dtypes = {key: value.dtype for key, value in engine.model.state_dict().items()}

    @property
    def dtype(self) -> torch.dtype:
        return next(self.engine.model.parameters()).dtype

    def dtype_for(self, name: str) -> torch.dtype | None:
        return self._dtypes.get(name)

    async def served(self) -> Served:
        return await asyncio.to_thread(self._read)

    def _read(self) -> Served:
        # A tied tensor is summed once, and stands under each of its names as long as they are one tensor.
        done: dict[int, TensorSum] = {}
        tensors = {}
        for name, tensor in self.engine.model.state_dict(keep_vars=True).items():
            if id(tensor) not in done:
                done[id(tensor)] = TensorSum.of(tensor)
            tensors[name] = done[id(tensor)]
        return Served(self.engine.weight_version, tensors)


class OpaqueTarget:
    """An engine whose weights cannot be read back: for all of them the canary alone speaks."""

    def __init__(self, engine: Engine, name: str = "", dtype: torch.dtype = torch.float32):
        self.engine = engine
        self.name = name or type(engine).__name__
        self.dtype = dtype

    def dtype_for(self, name: str) -> torch.dtype | None:
        return None

    async def served(self) -> Served:
        return Served(self.engine.weight_version, {}, unread=("",))


class DirectCarrier:
    """Hands the tensors to each engine's `load_weights`."""

    def __init__(self, engines: Sequence[Engine]):
        self._engines = engines

    async def carry(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        if len(self._engines) == 1:
            await self._engines[0].load_weights(weights, version)
            return
        whole = list(weights)
        await asyncio.gather(*(engine.load_weights(whole, version) for engine in self._engines))
