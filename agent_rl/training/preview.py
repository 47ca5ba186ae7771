"""What a dry run needs to know, found without loading weights or running programs of a model."""

from __future__ import annotations

import os
from typing import Any

from agent_rl.config import ConfigError
from agent_rl.engines.loading import resolve_model
from agent_rl.rollout.settings import SandboxSettings
from agent_rl.training.data import load_run_data, without_long_prompts
from agent_rl.training.plan import ModelShape
from agent_rl.training.settings import RunConfig


def shape_and_data(config: RunConfig) -> tuple[ModelShape, int]:
    """The model's sizes and how many problems there are to train on; the template is tried out on the way.

    Raises:
        ModelError, ConfigError, TemplateError: what is wrong with model, data or template.
    """
    from transformers import AutoConfig, AutoTokenizer

    from agent_rl.tir.formats import prompt_format

    source = resolve_model(config.model.path)
    options: dict[str, Any] = {} if source.gguf_file is None else {"gguf_file": source.gguf_file}
    tokenizer = AutoTokenizer.from_pretrained(source.location, **options)
    shape = model_shape(AutoConfig.from_pretrained(source.location, **options))
    form = prompt_format(tokenizer, config.tir, frozenset(config.model.eos_ids or ()) or None)
    try:
        data = load_run_data(config, tokenizer)
        return shape, len(without_long_prompts(data.train, form, config))
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(f"data: {error}") from error


def model_shape(model_config: Any) -> ModelShape:
    """Sizes of the model that the configuration describes, counted on a model without memory."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config)
    text = model_config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    head_size = getattr(text, "head_dim", None) or text.hidden_size // heads
    return ModelShape(
        parameters=sum(p.numel() for p in model.parameters()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        kv_width=(getattr(text, "num_key_value_heads", None) or heads) * head_size,
        max_positions=getattr(text, "max_position_embeddings", None) or 1 << 30,
    )


async def isolation_of(settings: SandboxSettings) -> str:
    """The isolation that programs would run in, found by trying it; ConfigError if it is too weak."""
    if settings.url is not None:
        from agent_rl.rollout.serve import isolation_of_service
        from sandbox.client import SandboxClient

        async with SandboxClient(settings.url, os.environ.get(settings.token_env)) as client:
            return await isolation_of_service(client, settings)
    from sandbox.backends.base import Tier
    from sandbox.backends.select import SandboxUnavailable, choose_backend

    try:
        backend, probes = await choose_backend(settings.backend, Tier[settings.min_tier])
    except SandboxUnavailable as error:
        raise ConfigError(str(error)) from error
    tier = next(probe.tier for probe in probes if probe.backend == backend.name)
    return f"our own service, {backend.name} ({tier.name if tier is not None else 'none'})"
