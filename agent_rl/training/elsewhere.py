"""The dry run of a configuration that is meant for other machines: arithmetic, memory and placement."""

from __future__ import annotations

import os
from typing import Any

from agent_rl.algorithms.settings import resolve
from agent_rl.engines.loading import ModelError, resolve_model
from agent_rl.training.hardware import Layout, Sizes, gpu_need, misfits, size
from agent_rl.training.known_models import KNOWN, known_config
from agent_rl.training.plan import (
    ModelShape,
    Plan,
    batch_sentence,
    engine_sentence,
    recipe_sentence,
    why_untrainable,
)
from agent_rl.training.preview import model_shape
from agent_rl.training.settings import RunConfig


def plan_elsewhere(config: RunConfig) -> Plan:
    """The dry run's text; what only the other machine has is named as not checked.

    Raises:
        ModelError: nothing is known of the model's sizes.
    """
    shape, origin = shape_of(config.model.path)
    layout = layout_of(config)
    memory = (config.hardware.gpu_memory_gib or 0.0) * 2**30
    longest = config.tir.max_total_tokens
    need = gpu_need(
        Sizes(shape.parameters, shape.layers, shape.hidden, shape.kv_width),
        layout,
        tokens=max(config.learner.micro_batch_tokens, longest),
        checkpointing=config.learner.gradient_checkpointing,
        logits=config.learner.logprob_chunk_bytes,
        longest=longest,
        trained=shape.parameters if config.learner.lora is None else shape.parameters // 50,
        engine_bytes=4 if config.engine.dtype == "float32" else 2,
    )
    share = config.engine.vllm.gpu_memory_utilization
    room = max(0.0, share * memory - need.engine_weights)
    nodes = -(-layout.gpus // config.hardware.gpus_per_node)
    plan = Plan()
    plan.lines += [
        batch_sentence(config),
        recipe_sentence(config),
        f"model {config.model.path}: {shape.parameters / 1e9:.2f} G parameters ({origin})",
        f"data: {_data(config)}; not checked here. Held out: {', '.join(config.evals) or 'nothing'}",
        f"episode: at most {config.tir.max_turns} turns of {config.tir.max_turn_tokens} tokens, {longest} in all",
        f"engine: {engine_sentence(config)}",
        f"placement: {_placement(layout)} = {layout.gpus} GPUs on {nodes} node{'s' * (nodes > 1)} "
        f"({config.hardware.gpu or 'GPUs'} of {size(memory)})",
        f"memory of a learner's GPU: weights and moments {size(need.learner_state)}, while it learns "
        f"{size(need.learner_step)} more",
        f"memory of an engine's GPU: weights {size(need.engine_weights)}, room for about "
        f"{int(room // max(need.cache_of_one, 1))} trajectories of full length",
        "this machine is another one: model, tokenizer, template, data and sandbox are checked where it runs",
    ]
    plan.refusals += misfits(need, layout, memory=memory, share=share)
    if reason := why_untrainable(config):
        plan.refusals.append(reason)
    if resolve(config.method).needs_topk():
        plan.refusals.append("the method needs top-k log-probs, which no engine here records; use binary_tv")
    if longest > shape.max_positions:
        plan.refusals.append(
            f"tir.max_total_tokens = {longest} is more than the model's context of {shape.max_positions}; lower it"
        )
    return plan


def shape_of(model: str) -> tuple[ModelShape, str]:
    """Sizes of a model that may not be here, and where they are from; ModelError if nothing is known."""
    from transformers import AutoConfig

    source = resolve_model(model)
    if not source.local and (known := known_config(model)) is not None:
        return model_shape(known), "its published configuration"
    options: dict[str, Any] = {} if source.gguf_file is None else {"gguf_file": source.gguf_file}
    try:
        return model_shape(AutoConfig.from_pretrained(source.location, **options)), "its configuration"
    except OSError as error:
        raise ModelError(
            f"model {model!r} is not on this machine and the hub cannot be asked for its sizes; "
            f"give a folder with its config.json, or one of {', '.join(sorted(KNOWN))}"
        ) from error


def layout_of(config: RunConfig) -> Layout:
    """How the settings spread learner and engines over GPUs."""
    own, cluster = config.engine.vllm, config.cluster
    on_ray = cluster.kind == "ray"
    return Layout(
        ranks=cluster.learner_ranks if on_ray else 1,
        engines=own.engines * (cluster.rollout_actors if on_ray else 1),
        tensor_parallel=own.tensor_parallel_size,
        colocated=cluster.placement == "colocated" if on_ray else own.placement == "colocated",
    )


def _placement(layout: Layout) -> str:
    split = f" over {layout.tensor_parallel} GPUs each" if layout.tensor_parallel > 1 else ""
    joint = "on the same GPUs" if layout.colocated else "on GPUs of their own"
    return f"{layout.ranks} learner ranks (FSDP2) and {layout.engines} engines{split}, {joint}"


def _data(config: RunConfig) -> str:
    given = config.data.path
    if given is None:
        return "generated"
    paths = [given] if isinstance(given, str) else given
    return ", ".join(path if not os.path.exists(path) else f"{path} (here)" for path in paths)
