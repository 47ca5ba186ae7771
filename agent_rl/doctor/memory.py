"""Whether the run fits into memory, and what to turn down if it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agent_rl.doctor.findings import Finding, fault, ok, warning
from agent_rl.learner.settings import LoraSettings
from agent_rl.training.plan import ModelShape, estimate_memory
from agent_rl.training.settings import RunConfig

_GIB = 2**30
_SMALLEST_PASS = 256
_SMALLEST_CACHE_MB = 64


def check_memory(config: RunConfig, shape: ModelShape, total: int, free: int) -> list[Finding]:
    """Compare the estimate with what the machine (or accelerator) has.

    Args:
        total, free: bytes of the memory that model and learner live in.
    """
    need = estimate_memory(config, shape)
    parts = ", ".join(
        f"{name} {getattr(need, name) / _GIB:.1f}"
        for name in ("weights", "optimizer", "gradients", "activations", "kv_cache")
    )
    sentence = f"about {need.total / _GIB:.1f} GiB at the peak ({parts}) of {total / _GIB:.1f}"
    if need.total > total:
        return [fault("memory", f"the run does not fit: {sentence}", _remedy(config, shape, total))]
    if need.total > free:
        return [
            warning(
                "memory",
                f"{sentence}, of which {free / _GIB:.1f} GiB are free now",
                "end other programs, or turn down: " + _remedy(config, shape, free),
            )
        ]
    return [ok("memory", sentence)]


def _remedy(config: RunConfig, shape: ModelShape, room: int) -> str:
    """The mildest changes that make it fit, each on top of those before it."""
    taken: list[str] = []
    for name, changed in _milder(config):
        before = estimate_memory(config, shape).total
        after = estimate_memory(changed, shape).total
        if after >= before:
            continue
        config = changed
        taken.append(name)
        if after <= room:
            return f"{'; '.join(taken)} (then about {after / _GIB:.1f} GiB)"
    least = estimate_memory(config, shape).total / _GIB
    return f"{'; '.join(taken)} would still need {least:.1f} GiB: use a smaller model or a larger machine"


def _milder(config: RunConfig) -> Iterator[tuple[str, RunConfig]]:
    """Changes to the configuration so far, from those that cost least to those that change the training."""
    learner, engine = config.learner, config.engine
    learner = learner.model_copy(update={"gradient_checkpointing": True})
    yield "learner.gradient_checkpointing = true", _with(config, learner=learner)
    learner = learner.model_copy(update={"micro_batch_tokens": _SMALLEST_PASS})
    yield f"learner.micro_batch_tokens = {_SMALLEST_PASS}", _with(config, learner=learner)
    engine = engine.model_copy(update={"kv_budget_mb": min(engine.kv_budget_mb, _SMALLEST_CACHE_MB)})
    yield f"engine.kv_budget_mb = {_SMALLEST_CACHE_MB}", _with(config, learner=learner, engine=engine)
    engine = engine.model_copy(update={"dtype": "bfloat16"})
    yield "engine.dtype = bfloat16", _with(config, learner=learner, engine=engine)
    learner = learner.model_copy(update={"lora": learner.lora or LoraSettings()})
    yield "learner.lora = {rank: 16}", _with(config, learner=learner, engine=engine)


def _with(config: RunConfig, **changes: Any) -> RunConfig:
    return config.model_copy(update=changes)


def memory_of_device(device: str) -> tuple[int, int]:
    """(total, free) bytes of the device that a run with this `engine.device` uses."""
    import psutil
    import torch

    from sandbox.settings import free_memory_mb

    if device != "cpu" and device != "mps" and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info(torch.device(device) if device.startswith("cuda") else None)
        return total, free
    return psutil.virtual_memory().total, free_memory_mb() << 20
