"""Sets up what plays episodes: a sandbox, a verifier, an engine over a loaded model; and takes it down again."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agent_rl.config import ConfigError
from agent_rl.engines.base import Engine
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.transformers import default_eos_ids
from agent_rl.rewards.settings import RewardSettings
from agent_rl.rewards.verifier import Verifier
from agent_rl.rollout.answers import ExtractionRules
from agent_rl.rollout.engine import open_engine
from agent_rl.rollout.run import Rollout
from agent_rl.rollout.settings import ModelSettings, RolloutSettings, SandboxSettings
from agent_rl.tir.formats import PromptFormat, prompt_format
from agent_rl.tir.settings import TirSettings
from agent_rl.tir.tool import SandboxTool
from agent_rl.types import Problem
from sandbox.client import SandboxClient
from sandbox.embedded import EmbeddedSandbox
from sandbox.settings import EmbeddedSettings, ServiceSettings


@dataclass(frozen=True)
class Served:
    """What is running while the block of `serve` lasts."""

    rollout: Rollout
    engine: Engine
    sandbox: str
    """The isolation that programs run in, in words."""


def format_of(model: Any, tokenizer: Any, tir: TirSettings, settings: ModelSettings) -> PromptFormat:
    """The prompt format, with the ids that end this model's turns; TemplateError if its template will not do."""
    return prompt_format(tokenizer, tir, frozenset(settings.eos_ids or default_eos_ids(model, tokenizer)))


@asynccontextmanager
async def serve(
    model: Any | None,
    tokenizer: Any,
    form: PromptFormat,
    *,
    source: str | None = None,
    tir: TirSettings,
    engine: EngineSettings,
    rewards: RewardSettings,
    rollout: RolloutSettings,
    sandbox: SandboxSettings,
    deterministic: bool = False,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> AsyncIterator[Served]:
    """Play episodes of `model`, which the embedded engine owns from here on.

    Args:
        source: folder or hub name of the same model, for an engine that loads it itself.
        deterministic: lockstep batches.
        seed: of the random numbers that the model's programs draw.
        say: told which isolation is used.

    Raises:
        ConfigError, SandboxUnavailableError: no sandbox of the strength asked for, or settings of the engine that do
            not fit.
        InfrastructureError: the engine does not start.
    """
    async with AsyncExitStack() as stack:
        client, isolation = await open_sandbox(stack, sandbox)
        say(f"sandbox: {isolation}")
        verifier = await stack.enter_async_context(Verifier(rewards.verifier))
        settings = engine.model_copy(update={"deterministic": deterministic})
        running = await open_engine(
            stack, model, tokenizer, form, settings, source=source, longest=tir.max_total_tokens
        )
        if settings.kind != "transformers":
            say(f"engine: {settings.description}")

        def open_tool(problem: Problem, sample: int) -> SandboxTool:
            return SandboxTool(client, tir.tool, seed=seed)

        episodes = Rollout(
            engine=running,
            format=form,
            answers=ExtractionRules(rewards),
            verifier=verifier,
            open_tool=open_tool,
            tir=tir,
            rewards=rewards,
            settings=rollout,
            lockstep=deterministic,
        )
        yield Served(episodes, running, isolation)


async def open_sandbox(stack: AsyncExitStack, settings: SandboxSettings) -> tuple[SandboxClient, str]:
    """A client, and the isolation in words."""
    if settings.url is None:
        service = ServiceSettings(
            port=0, backend=settings.backend, min_tier=settings.min_tier, slots=settings.slots or None
        )
        owner = EmbeddedSandbox(EmbeddedSettings(service=service))
        client = await stack.enter_async_context(owner)
        return client, f"our own service, {owner.backend} ({owner.tier}), {owner.slots} slots"
    client = await stack.enter_async_context(SandboxClient(settings.url, os.environ.get(settings.token_env)))
    return client, await isolation_of_service(client, settings)


async def isolation_of_service(client: SandboxClient, settings: SandboxSettings) -> str:
    """What the running service at `settings.url` offers, in words; ConfigError if it is not ready or too weak."""
    ready = await client.ready()
    if ready.state != "ready":
        raise ConfigError(f"the sandbox service at sandbox.url = {settings.url} is {ready.state}, not ready")
    if ready.tier < settings.min_tier:
        raise ConfigError(
            f"the sandbox service at sandbox.url = {settings.url} offers tier {ready.tier}, below "
            f"sandbox.min_tier = {settings.min_tier}; start it on a stronger tier or lower min_tier"
        )
    return f"service at {settings.url}, {ready.backend} ({ready.tier})"
