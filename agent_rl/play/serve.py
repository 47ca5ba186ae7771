"""Loads a policy and serves it, with plain errors, until the work is done or the user stops it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from agent_rl.engines.loading import (
    load_description,
    load_model,
    loadable,
    model_fingerprint,
    weights_fingerprint,
)
from agent_rl.engines.pieces import TokenPieces
from agent_rl.play.settings import PlaySettings
from agent_rl.rollout.run import Rollout
from agent_rl.rollout.serve import Served, format_of, serve
from agent_rl.tir.formats import PromptFormat
from agent_rl.tir.settings import TirSettings

INTERRUPTED = 130
"""Exit status after Ctrl-C, by the shell's convention."""


@dataclass(frozen=True)
class Playing:
    """A policy that is being served."""

    served: Served
    form: PromptFormat
    tir: TirSettings
    """The episode's settings as they are played: within the model's context."""
    fingerprint: str
    """Checksum of the weights; of a remote server, where it is."""
    tokenizer: Any

    @property
    def piece(self) -> Callable[[int], str]:
        """Text of one token."""
        return TokenPieces(self.tokenizer).__getitem__

    @property
    def rollout(self) -> Rollout:
        return self.served.rollout


@asynccontextmanager
async def playing(settings: PlaySettings, *, say: Callable[[str], None], seed: int = 0) -> AsyncIterator[Playing]:
    """Load the model and serve it.

    Raises:
        ConfigError, ModelError, TemplateError, SandboxClientError, InfrastructureError: what cannot work, in plain
            words.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    disable_progress_bar()  # of loading, which would stand in the middle of what the command says
    model, tokenizer, fingerprint = _loaded(settings)
    tir = within_context(settings.tir, model, say)
    form = format_of(model, tokenizer, tir, settings.model)
    async with serve(
        model,
        tokenizer,
        form,
        source=loadable(settings.model.path),
        tir=tir,
        engine=settings.engine,
        rewards=settings.rewards,
        rollout=settings.rollout,
        sandbox=settings.sandbox,
        deterministic=settings.deterministic,
        seed=seed,
        say=say,
    ) as served:
        yield Playing(served, form, tir, fingerprint, tokenizer)


def _loaded(settings: PlaySettings) -> tuple[Any, Any, str]:
    """Model, tokenizer and fingerprint; only the description of a model whose weights the engine loads itself."""
    path, engine = settings.model.path, settings.engine
    location = loadable(path)
    if engine.kind == "remote":
        return *load_description(path), f"{engine.remote.model or 'the model'} at {', '.join(engine.remote.urls)}"
    if engine.kind == "vllm" and location is not None:
        return *load_description(path), weights_fingerprint(location)
    device = engine.device if engine.kind == "transformers" else "cpu"
    model, tokenizer = load_model(path, dtype=engine.dtype, device=device)
    return model, tokenizer, model_fingerprint(model)


def within_context(tir: TirSettings, model: Any, say: Callable[[str], None]) -> TirSettings:
    """The settings, with caps that fit the model's context; says what it lowered."""
    text = model.config.get_text_config(decoder=True)
    positions = getattr(text, "max_position_embeddings", None)
    if positions is None or tir.max_total_tokens <= positions:
        return tir
    turn = min(tir.max_turn_tokens, positions // 2)
    say(
        f"tir.max_total_tokens = {tir.max_total_tokens} is more than the model's context: {positions} is used, and "
        f"tir.max_turn_tokens = {turn}"
    )
    return TirSettings(**{**tir.model_dump(), "max_total_tokens": positions, "max_turn_tokens": turn})


def run_interruptibly(work: Coroutine[Any, Any, int]) -> int:
    """Run the work; Ctrl-C and SIGTERM cancel it, so that children end, and give the status `INTERRUPTED`."""

    async def guarded() -> int:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        stopped = False

        def stop() -> None:
            nonlocal stopped
            stopped = True
            task.cancel()

        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, stop)
        try:
            return await task
        except asyncio.CancelledError:
            if stopped:
                return INTERRUPTED
            raise
        finally:
            for name in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(name)

    return asyncio.run(guarded())
