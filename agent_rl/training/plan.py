"""What a run would do, in plain words, before anything heavy starts; and a refusal of what cannot work."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field

from agent_rl.algorithms.settings import resolve
from agent_rl.training.settings import RunConfig


@dataclass
class Plan:
    """Lines for a person, and the reasons why the run cannot work (empty if it can)."""

    lines: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def batch_sentence(config: RunConfig) -> str:
    """`64 problems x 8 samples = 512 trajectories -> 4 updates of 128`."""
    total, updates = config.trajectories_per_step, config.learner.updates_per_batch
    sentence = (
        f"{config.problems_per_step} problems x {config.samples_per_problem} samples = {total} trajectories "
        f"-> {updates} update{'s' * (updates > 1)} of {total // updates}"
    )
    epochs = config.learner.epochs
    return sentence + (f", {epochs} epochs" if epochs > 1 else "") + f", {config.steps} steps"


def recipe_sentence(config: RunConfig) -> str:
    """The method and the choices behind it."""
    recipe = resolve(config.method)
    parts = [f"ratio {recipe.ratio.kind}", f"clip {recipe.clip.kind}"]
    parts += [g for g in ("prefix_budget", "divergence_mask", "sequence_mask") if getattr(recipe, g) is not None]
    parts += [f"mismatch {recipe.mismatch.kind}", f"aggregation {recipe.aggregation.mode}"]
    return f"method {recipe.name}: " + ", ".join(parts)


def engine_sentence(config: RunConfig) -> str:
    """The engine in words."""
    return config.engine.model_copy(update={"deterministic": config.deterministic}).description


def why_untrainable(config: RunConfig) -> str | None:
    """Why a run cannot train with its engine; None if it can."""
    if config.engine.kind == "remote":
        return (
            "engine.kind = remote serves weights that training cannot change; train with engine.kind = vllm or "
            "transformers, and use remote for `agent-rl eval`"
        )
    if config.engine.kind == "vllm" and config.deterministic:
        return (
            "deterministic = true needs engine.kind = transformers: vLLM's batches depend on when requests come; set "
            "deterministic = false"
        )
    if config.engine.kind == "vllm" and config.mode == "async" and config.engine.vllm.placement == "colocated":
        return (
            "mode = async plays while the learner works, and engine.vllm.placement = colocated lets the engine sleep "
            "then; set placement = side_by_side, or mode = sync"
        )
    return None


def schedule_sentence(config: RunConfig) -> str:
    """How rollouts and learning follow each other."""
    if config.mode == "sync":
        return "synchronous: a batch is played to its end, then learnt from"
    rules = config.asynchronous
    return (
        f"asynchronous: rollouts go on while the learner works, at most {rules.max_staleness} weight versions behind"
        + (f", over-sampled by {rules.oversample:g}" if rules.oversample > 1 else "")
    )


def placement_sentence(config: RunConfig) -> str:
    """Which processes there are, and where."""
    cluster = config.cluster
    if cluster.kind == "none":
        return "one process"
    return (
        f"Ray at {cluster.address}: {cluster.rollout_actors} rollout actors ({cluster.rollout_cpus:g} CPUs, "
        f"{cluster.rollout_gpus:g} GPUs each), {cluster.learner_ranks} learner ranks ({cluster.learner_cpus:g} CPUs, "
        f"{cluster.learner_gpus:g} GPUs each), {cluster.placement}"
    )


@dataclass(frozen=True)
class ModelShape:
    """Sizes that decide memory and context."""

    parameters: int
    layers: int
    hidden: int
    kv_width: int
    """Key (or value) numbers a token and layer: key-value heads times head size."""
    max_positions: int


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes, rough: what the run keeps at its peak."""

    weights: int
    optimizer: int
    gradients: int
    activations: int
    kv_cache: int

    @property
    def total(self) -> int:
        return self.weights + self.optimizer + self.gradients + self.activations + self.kv_cache


def estimate_memory(config: RunConfig, shape: ModelShape) -> MemoryEstimate:
    """Peak memory of one process that generates and learns.

    Weights twice (the learner's in float32, the engine's copy in its own type), AdamW's two moments and the
    gradients in float32; activations as 34 hidden-size vectors a token and layer (Korthikanti et al. 2022,
    eq. 1, without the attention matrix) or 2 with gradient checkpointing; the cache of every row at full
    length, bounded by the engine's own budget.
    """
    trained = shape.parameters if config.learner.lora is None else shape.parameters // 50
    engine_bytes = 2 if config.engine.dtype in ("bfloat16", "float16") else 4
    tokens = max(config.learner.micro_batch_tokens, config.tir.max_total_tokens)
    vectors = 2 if config.learner.gradient_checkpointing else 34
    rows = min(config.engine.max_rows, config.trajectories_per_step)
    cache = 2 * shape.layers * shape.kv_width * engine_bytes * rows * config.tir.max_total_tokens
    return MemoryEstimate(
        weights=shape.parameters * (4 + engine_bytes),
        optimizer=8 * trained,
        gradients=4 * trained,
        activations=tokens * shape.hidden * shape.layers * vectors * 2 + config.learner.logprob_chunk_bytes * 3,
        kv_cache=min(cache, config.engine.kv_budget_mb << 20),
    )


def make_plan(config: RunConfig, shape: ModelShape, problems: int, sandbox: str) -> Plan:
    """The dry run's text. `problems` is the size of the training set, `sandbox` what the probe said."""
    plan = Plan()
    memory = estimate_memory(config, shape)
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    plan.lines += [
        batch_sentence(config),
        recipe_sentence(config),
        f"model {config.model.path}: {shape.parameters / 1e6:.2f} M parameters",
        f"data: {problems} problems to train on; held out: {', '.join(config.evals) or 'nothing'}",
        f"episode: at most {config.tir.max_turns} turns of {config.tir.max_turn_tokens} tokens, "
        f"{config.tir.max_total_tokens} tokens in all",
        f"engine: {engine_sentence(config)}",
        f"schedule: {schedule_sentence(config)}",
        f"placement: {placement_sentence(config)}",
        f"sandbox: {sandbox}",
        f"memory: about {_size(memory.total)} at the peak (weights {_size(memory.weights)}, optimiser "
        f"{_size(memory.optimizer)}, gradients {_size(memory.gradients)}, activations {_size(memory.activations)}, "
        f"cache {_size(memory.kv_cache)}) of {_size(available)}",
    ]
    if reason := why_untrainable(config):
        plan.refusals.append(reason)
    if config.engine.kind == "vllm" and importlib.util.find_spec("vllm") is None:
        plan.refusals.append(
            "engine.kind = vllm needs the package vllm, which is not installed: pip install 'agent-rl[vllm]'"
        )
    if resolve(config.method).needs_topk():
        plan.refusals.append(
            f"method {config.method.preset} with a top-k divergence needs top-k log-probs, which no engine here "
            "records; set its divergence to binary_tv or binary_kl"
        )
    if memory.total > available:
        plan.refusals.append(
            f"about {_size(memory.total)} are needed and this machine has {_size(available)}; turn down "
            "learner.micro_batch_tokens or engine.kv_budget_mb, set learner.gradient_checkpointing, or use learner.lora"
        )
    if config.tir.max_total_tokens > shape.max_positions:
        plan.refusals.append(
            f"tir.max_total_tokens = {config.tir.max_total_tokens} is more than the model's context of "
            f"{shape.max_positions} tokens; lower it"
        )
    if problems < config.problems_per_step:
        plan.refusals.append(
            f"a step needs {config.problems_per_step} different problems and the data has {problems}; lower "
            "problems_per_step or give more data"
        )
    return plan


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
