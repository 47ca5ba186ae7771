"""Which engine plays, by the settings."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from typing import Any

from agent_rl.config import ConfigError
from agent_rl.engines.base import Engine
from agent_rl.engines.settings import EngineSettings
from agent_rl.tir.fence import FenceScanner
from agent_rl.tir.formats import PromptFormat


async def open_engine(
    stack: AsyncExitStack,
    model: Any | None,
    tokenizer: Any,
    form: PromptFormat,
    settings: EngineSettings,
    *,
    source: str | None = None,
    longest: int | None = None,
) -> Engine:
    """A started engine, closed with the stack.

    Args:
        model: the module. The embedded engine owns it from here on; a vLLM engine reads its weights if there is no
            `source`; a remote one has its own.
        source: folder or hub name of the same model, for vLLM.
        longest: most tokens that a trajectory will have.

    Raises:
        ConfigError: the settings do not fit each other, or a package is missing.
        InfrastructureError: the engine does not start.
    """
    if settings.kind == "transformers":
        engine = _transformers(model, tokenizer, form, settings)
    else:
        _refuse_lockstep(settings)
        if settings.max_length is None and longest is not None:
            settings = settings.model_copy(update={"max_length": longest})
        if settings.kind == "remote":
            engine = _remote(tokenizer, form, settings)
        else:
            engine = _vllm(source or _saved(stack, model, tokenizer), tokenizer, form, settings)
    stack.push_async_callback(engine.close)
    await engine.start()
    return engine


def _transformers(model: Any, tokenizer: Any, form: PromptFormat, settings: EngineSettings) -> Engine:
    import torch

    from agent_rl.engines.transformers import TransformersEngine

    if settings.dtype != "auto":
        model = model.to(getattr(torch, settings.dtype))
    return TransformersEngine(model, tokenizer, settings=settings, scanner=FenceScanner, eos_ids=form.eos_ids)


def _vllm(source: str, tokenizer: Any, form: PromptFormat, settings: EngineSettings) -> Engine:
    from agent_rl.engines.vllm.starting import require_vllm

    require_vllm()
    from agent_rl.engines.vllm.engine import VllmEngine

    return VllmEngine(source, tokenizer, settings=settings, scanner=FenceScanner, eos_ids=form.eos_ids)


def _remote(tokenizer: Any, form: PromptFormat, settings: EngineSettings) -> Engine:
    from agent_rl.engines.vllm.remote import RemoteEngine

    return RemoteEngine(tokenizer, settings=settings, scanner=FenceScanner, eos_ids=form.eos_ids)


def _refuse_lockstep(settings: EngineSettings) -> None:
    if settings.deterministic:
        raise ConfigError(
            f"deterministic = true needs engine.kind = transformers: the batches of {settings.kind} depend on when "
            "requests come"
        )


def _saved(stack: AsyncExitStack, model: Any, tokenizer: Any) -> str:
    """A folder with the model, for one that is in no folder that vLLM reads (GGUF); removed with the stack."""
    from agent_rl.engines.loading import save_model

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-rl-model-"))
    save_model(model, tokenizer, folder)
    return folder
