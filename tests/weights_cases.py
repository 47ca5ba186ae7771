"""Learners that change between hand-overs, and carriers that spoil what they carry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from agent_rl.algorithms.settings import MethodSettings, resolve
from agent_rl.engines.transformers import TransformersEngine
from agent_rl.learner.settings import LearnerSettings, LoraSettings
from agent_rl.learner.update import Learner
from agent_rl.weights.build import weight_sync
from agent_rl.weights.settings import SyncSettings
from agent_rl.weights.sync import WeightSync
from agent_rl.weights.target import DirectCarrier
from tests.engine_models import VOCABULARY, byte_tokenizer, tiny_model

Weights = Iterable[tuple[str, Tensor]]


def learner(model: Any, **settings: Any) -> Learner:
    return Learner(model, resolve(MethodSettings(preset="ctpo")), LearnerSettings(**settings))


def lora_learner(model: Any) -> Learner:
    return learner(model, lora=LoraSettings(rank=4, alpha=8))


def move(owner: Learner, seed: int, size: float = 0.02) -> None:
    """Change every trained weight a little, as an update would."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in owner.model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=random) * size)


def embedded(
    kind: str = "llama-tied", *, lora: bool = False, dtype: torch.dtype = torch.float32, **settings: Any
) -> tuple[Learner, Any, WeightSync]:
    """A learner, an embedded engine with a model of its own, and the hand-over between them."""
    owner = (lora_learner if lora else learner)(tiny_model(kind))
    engine = TransformersEngine(tiny_model(kind).to(dtype), byte_tokenizer(), eos_ids=())
    given = SyncSettings(**{"timeout_s": 120, **settings})
    return owner, engine, weight_sync(owner, engine, given, vocabulary=VOCABULARY)


class Spoiled:
    """A direct carrier whose stream and engine may be tampered with, silently.

    Args:
        stream: what the engine is given instead of the weights.
        after: called when the engine has taken them.
    """

    def __init__(
        self,
        engine: TransformersEngine,
        stream: Callable[[list[tuple[str, Tensor]]], Weights] = lambda weights: weights,
        after: Callable[[Any], None] = lambda model: None,
    ):
        self._engine, self._stream, self._after = engine, stream, after

    async def carry(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        whole = [(name, tensor.clone()) for name, tensor in weights]
        await DirectCarrier([self._engine]).carry(iter(list(self._stream(whole))), version)
        with torch.no_grad():
            self._after(self._engine.model)
