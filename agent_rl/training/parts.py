"""Builds what a run is made of, in an order that fails early, and takes it down again."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import torch

from agent_rl.algorithms.settings import resolve
from agent_rl.config import ConfigError
from agent_rl.engines.base import Engine
from agent_rl.engines.loading import load_model, loadable, model_fingerprint
from agent_rl.engines.pieces import TokenPieces
from agent_rl.learner.update import Learner
from agent_rl.rollout.run import Player
from agent_rl.rollout.serve import format_of, serve
from agent_rl.tir.formats import PromptFormat
from agent_rl.training.data import RunData, load_run_data, without_long_prompts
from agent_rl.training.learning import Learning, LocalLearning
from agent_rl.training.plan import why_untrainable
from agent_rl.training.settings import RunConfig


@dataclass
class Parts:
    """What the training loop works with."""

    tokenizer: Any
    piece: Callable[[int], str]
    """Text of one token."""
    learning: Learning
    engine: Engine
    rollout: Player
    data: RunData
    sandbox: str
    """Which isolation the programs run in, in words."""
    fingerprints: dict[str, str]
    """Of what a resumed run must find unchanged."""


@asynccontextmanager
async def build(config: RunConfig, say: Callable[[str], None]) -> AsyncIterator[Parts]:
    """Model, data, sandbox, verifier, engine and learner; ended in reverse when the block is left.

    Raises:
        ConfigError: what the configuration asks for is not there or does not fit.
    """
    if reason := why_untrainable(config):
        raise ConfigError(reason)
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    model, tokenizer = load_model(config.model.path, dtype="float32", device=config.engine.device)
    form = format_of(model, tokenizer, config.tir, config.model)
    data = usable_data(config, tokenizer, form)
    fingerprints = {"data": data.train.fingerprint, "base model": model_fingerprint(model)}
    embedded = config.engine.kind == "transformers"
    async with serve(
        copy.deepcopy(model) if embedded else model,
        tokenizer,
        form,
        source=loadable(config.model.path),
        tir=config.tir,
        engine=config.engine,
        rewards=config.rewards,
        rollout=config.rollout,
        sandbox=config.sandbox,
        deterministic=config.deterministic,
        seed=config.seed,
        say=say,
    ) as served:
        learner = make_learner(config, model)
        yield Parts(
            tokenizer=tokenizer,
            piece=TokenPieces(tokenizer).__getitem__,
            learning=LocalLearning(
                learner, served.engine, tokenizer, fingerprints, config.learner.checkpoint, config.sync
            ),
            engine=served.engine,
            rollout=served.rollout,
            data=data,
            sandbox=served.sandbox,
            fingerprints=fingerprints,
        )


def make_learner(config: RunConfig, model: Any) -> Learner:
    """The learner of `model`, which it changes in place; on several ranks called on all of them."""
    return Learner(
        model,
        resolve(config.method),
        config.learner,
        temperature=config.temperature,
        horizon=config.tir.max_total_tokens,
        total_updates=config.steps * config.learner.updates_per_batch * config.learner.epochs,
        reference=_reference(config),
    )


def _reference(config: RunConfig) -> Any | None:
    """The frozen model of the KL penalty, where the settings name one other than the initial policy."""
    if config.learner.reference_model is None or resolve(config.method).reference_kl.beta == 0:
        return None
    return load_model(config.learner.reference_model, dtype="float32", device=config.engine.device)[0]


def usable_data(config: RunConfig, tokenizer: Any, form: PromptFormat) -> RunData:
    """The run's problems, without those whose prompt is too long; ConfigError if they cannot be read."""
    try:
        data = load_run_data(config, tokenizer)
        return RunData(without_long_prompts(data.train, form, config), data.held_out)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(f"data: {error}") from error
