"""Builds what a run is made of, in an order that fails early, and takes it down again."""

from __future__ import annotations

import copy
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import torch

from agent_rl.algorithms.settings import resolve
from agent_rl.config import ConfigError
from agent_rl.engines.base import Engine
from agent_rl.engines.loading import load_model, model_fingerprint
from agent_rl.engines.pieces import TokenPieces
from agent_rl.engines.transformers import TransformersEngine, default_eos_ids
from agent_rl.learner.update import Learner
from agent_rl.rewards.verifier import Verifier
from agent_rl.rollout.answers import ExtractionRules
from agent_rl.rollout.run import Rollout
from agent_rl.tir.fence import FenceScanner
from agent_rl.tir.formats import PromptFormat, prompt_format
from agent_rl.tir.tool import SandboxTool
from agent_rl.training.data import RunData, load_run_data, without_long_prompts
from agent_rl.training.settings import RunConfig, SandboxSettings
from agent_rl.types import Problem
from sandbox.client import SandboxClient
from sandbox.embedded import EmbeddedSandbox
from sandbox.settings import EmbeddedSettings, ServiceSettings


@dataclass
class Parts:
    """What the training loop works with."""

    tokenizer: Any
    piece: Callable[[int], str]
    """Text of one token."""
    learner: Learner
    engine: Engine
    rollout: Rollout
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
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    model, tokenizer = load_model(config.model.path, dtype="float32", device=config.engine.device)
    eos_ids = frozenset(config.model.eos_ids or default_eos_ids(model, tokenizer))
    form = prompt_format(tokenizer, config.tir, eos_ids)
    data = _data(config, tokenizer, form)
    fingerprints = {"data": data.train.fingerprint, "base model": model_fingerprint(model)}
    async with AsyncExitStack() as stack:
        client, isolation = await _sandbox(stack, config.sandbox)
        say(f"sandbox: {isolation}")
        verifier = await stack.enter_async_context(Verifier(config.rewards.verifier))
        engine = _engine(config, model, tokenizer, eos_ids)
        stack.push_async_callback(engine.close)
        await engine.start()
        learner = Learner(
            model,
            resolve(config.method),
            config.learner,
            temperature=config.temperature,
            horizon=config.tir.max_total_tokens,
            total_updates=config.steps * config.learner.updates_per_batch * config.learner.epochs,
        )
        rollout = Rollout(
            engine=engine,
            format=form,
            answers=ExtractionRules(config.rewards),
            verifier=verifier,
            open_tool=_tools(client, config),
            tir=config.tir,
            rewards=config.rewards,
            settings=config.rollout,
            lockstep=config.deterministic,
        )
        yield Parts(
            tokenizer=tokenizer,
            piece=TokenPieces(tokenizer).__getitem__,
            learner=learner,
            engine=engine,
            rollout=rollout,
            data=data,
            sandbox=isolation,
            fingerprints=fingerprints,
        )


def _data(config: RunConfig, tokenizer: Any, form: PromptFormat) -> RunData:
    try:
        data = load_run_data(config, tokenizer)
        return RunData(without_long_prompts(data.train, form, config), data.held_out)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(f"data: {error}") from error


def _tools(client: SandboxClient, config: RunConfig) -> Callable[[Problem, int], SandboxTool]:
    def open_tool(problem: Problem, sample: int) -> SandboxTool:
        return SandboxTool(client, config.tir.tool, seed=config.seed)

    return open_tool


def _engine(config: RunConfig, model: Any, tokenizer: Any, eos_ids: frozenset[int]) -> TransformersEngine:
    settings = config.engine.model_copy(update={"deterministic": config.deterministic})
    own = copy.deepcopy(model)
    if settings.dtype != "auto":
        own = own.to(getattr(torch, settings.dtype))
    return TransformersEngine(own, tokenizer, settings=settings, scanner=FenceScanner, eos_ids=eos_ids)


async def _sandbox(stack: AsyncExitStack, settings: SandboxSettings) -> tuple[SandboxClient, str]:
    """A client, and the isolation in words."""
    if settings.url is None:
        service = ServiceSettings(
            port=0, backend=settings.backend, min_tier=settings.min_tier, slots=settings.slots or None
        )
        owner = EmbeddedSandbox(EmbeddedSettings(service=service))
        client = await stack.enter_async_context(owner)
        return client, f"our own service, {owner.backend} ({owner.tier}), {owner.slots} slots"
    client = await stack.enter_async_context(SandboxClient(settings.url, os.environ.get(settings.token_env)))
    ready = await client.ready()
    if ready.state != "ready":
        raise ConfigError(f"the sandbox service at sandbox.url = {settings.url} is {ready.state}, not ready")
    if ready.tier < settings.min_tier:
        raise ConfigError(
            f"the sandbox service at sandbox.url = {settings.url} offers tier {ready.tier}, below "
            f"sandbox.min_tier = {settings.min_tier}; start it on a stronger tier or lower min_tier"
        )
    return client, f"service at {settings.url}, {ready.backend} ({ready.tier})"
