"""Weights from the ranks to the rollout actors through Ray's object store, proved like any other hand-over.

The first rank puts the weights into the object store; every node fetches them once. This process reads them there to
know their checksums, and asks the actors for theirs and for the canary, which all ranks then score.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from agent_rl.cluster.ranks import Ranks
from agent_rl.cluster.remote_rollout import RemoteRollout
from agent_rl.cluster.rollout_actor import Place
from agent_rl.engines.base import Generation, GenerationRequest
from agent_rl.learner.batch import TrainBatch
from agent_rl.training.settings import RunConfig
from agent_rl.weights.errors import SyncError
from agent_rl.weights.manifest import Served
from agent_rl.weights.proof import SyncLog, SyncProof
from agent_rl.weights.sync import WeightSync


@dataclass
class RemoteSource:
    """The ranks, as a hand-over sees its learner."""

    ranks: Ranks
    model: Any
    temperature: float
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """Number formats that the engines keep."""
    refs: list[Any] = field(default_factory=list)
    """The weights of the moment, in the object store."""

    def full_state(self) -> Iterator[tuple[str, Tensor]]:
        self.refs = self.ranks.call("weights", dict(self.dtypes))[0]
        for ref in self.refs:
            yield from self.ranks.ray.get(ref)

    def old_logprobs(self, batch: TrainBatch) -> Mapping[str, Tensor]:
        return self.ranks.call("old_logprobs", batch)[0]


@dataclass
class RemoteHandOver:
    """Weights from the ranks to every rollout actor that is there, with proof (`HandOver`)."""

    source: RemoteSource
    rollout: RemoteRollout
    config: RunConfig
    vocabulary: int
    log: SyncLog

    def __post_init__(self) -> None:
        self._syncs: dict[tuple[int, ...], WeightSync] = {}

    async def hand_over(self, version: int) -> SyncProof | None:
        """An actor that is lost meanwhile is left out; it gets its weights when it is back."""
        self.rollout.wanted = version
        while True:
            await self.rollout.someone()
            proof = await self._to(self.rollout.places())
            if proof is not None:
                self.rollout.weight_version = version
                return proof

    async def to(self, place: Place) -> int | None:
        """The weights of the moment to an actor that is back; their version, None if it was lost again.

        Raises:
            SyncError: its engine does not serve what was sent.
            PartLost: a rank is gone.
        """
        proof = await self._to([place])
        return None if proof is None else proof.version

    async def _to(self, places: Sequence[Place]) -> SyncProof | None:
        """Weights to these actors; None if one of them was lost, which the rollout then knows."""
        ranks = self.source.ranks
        failures = (ranks.ray.exceptions.RayActorError, ranks.ray.exceptions.RayTaskError, SyncError)
        async with _held(ranks.turn):
            try:
                return await self._sync(places).hand_over(ranks.version)
            except failures as error:
                if await self.rollout.find_lost(places):
                    return None
                if isinstance(error, SyncError):
                    raise
                text = f"a rollout actor failed while it took weights of version {ranks.version}: {error}"
                raise SyncError(text) from error

    def drop_after(self, version: int) -> None:
        self.log.drop_after(version)

    async def close(self) -> None:
        for sync in self._syncs.values():
            await sync.close()

    def _sync(self, places: Sequence[Place]) -> WeightSync:
        """The hand-over to a set of actors; it remembers what it sent them."""
        # A restarted actor is another one: its process says so.
        names = tuple(place.about.pid for place in places)
        if names not in self._syncs:
            self.source.dtypes = places[0].about.dtypes
            text = self.source.model.config.get_text_config(decoder=True)
            self._syncs[names] = WeightSync(
                self.source,
                [_RemoteTarget(place) for place in places],
                _ObjectStore(self.source, places),
                self.config.sync,
                vocabulary=self.vocabulary,
                max_length=getattr(text, "max_position_embeddings", None) or 1 << 20,
                autocast=torch.bfloat16 if self.config.learner.autocast == "bfloat16" else None,
                log=self.log,
            )
        return self._syncs[names]


@dataclass(frozen=True)
class _ObjectStore:
    """Tells all actors where the weights are (`agent_rl.weights.target.Carrier`)."""

    source: RemoteSource
    places: Sequence[Place]

    async def carry(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        # Reading them to the end notes their checksums, and puts them where the actors find them.
        await asyncio.to_thread(lambda: [None for _ in weights])
        refs = self.source.refs
        await asyncio.gather(*(_answer(place.actor.load_weights.remote(version, *refs)) for place in self.places))


class _RemoteTarget:
    """A rollout actor's engine, as the proof of a hand-over sees it (`agent_rl.weights.target.Target`)."""

    def __init__(self, place: Place):
        self.name = f"of rollout actor {place.number}"
        self.engine: Any = _RemoteEngine(place.actor)
        self.dtype = place.about.dtype
        self._place = place

    def dtype_for(self, name: str) -> torch.dtype | None:
        return self._place.about.dtypes.get(name)

    async def served(self) -> Served:
        found = await self._place.actor.served.remote()
        self.engine.weight_version = found.version
        return found


class _RemoteEngine:
    """The part of `Engine` that the canary asks for."""

    def __init__(self, actor: Any):
        self._actor = actor
        self.weight_version = 0

    async def generate(self, request: GenerationRequest) -> Generation:
        seconds = None if request.deadline is None else request.deadline - time.monotonic()
        return await self._actor.generate.remote(replace(request, deadline=None), seconds)

    def expect(self, trajectories: Iterable[str]) -> None:
        """Only lockstep engines wait for those that are announced."""

    def release(self, trajectory: str) -> None:
        self._actor.release.remote(trajectory)


@asynccontextmanager
async def _held(lock: threading.Lock) -> AsyncIterator[None]:
    """A lock of threads, held by a coroutine that leaves the loop free while it waits."""
    while not lock.acquire(blocking=False):
        await asyncio.sleep(0.02)
    try:
        yield
    finally:
        lock.release()


async def _answer(ref: Any) -> Any:
    return await ref
