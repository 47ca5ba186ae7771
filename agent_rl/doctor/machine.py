"""Checks of the machine and of what is installed on it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from agent_rl.doctor.findings import Finding, fault, ok, warning
from agent_rl.training.settings import RunConfig

REQUIRED = ("torch", "transformers", "pydantic", "sympy", "math_verify", "safetensors", "fastapi", "httpx")
"""Modules without which nothing works; the others that the package depends on come with them."""
LARGE_FOR_CPU = 1_000_000_000
"""Parameters above which a CPU needs minutes for one step."""


@dataclass(frozen=True)
class Extra:
    """An optional package: the module, the extra that brings it, and which configurations need it."""

    module: str
    extra: str
    use: str
    needed: Callable[[RunConfig], bool]


EXTRAS = (
    Extra("gguf", "gguf", "models in GGUF files", lambda c: c.model.path.endswith(".gguf")),
    Extra("peft", "lora", "learner.lora", lambda c: c.learner.lora is not None),
    Extra("reasoning_gym", "reasoning-gym", "data.gym", lambda c: any(d.gym for d in _data(c))),
    Extra("wandb", "trackers", "trackers.wandb", lambda c: c.trackers.wandb),
    Extra("trackio", "trackers", "trackers.trackio", lambda c: c.trackers.trackio),
    Extra("mlflow", "trackers", "trackers.mlflow", lambda c: c.trackers.mlflow),
    Extra("vllm", "vllm", "engine.kind = vllm", lambda c: str(c.engine.kind) == "vllm"),
    Extra("ray", "ray", "training on a cluster", lambda c: False),
    Extra("docker", "docker", "the Docker sandbox", lambda c: False),
)


def _data(config: RunConfig) -> list:
    return [config.data, *(e.data for e in config.evals.values())]


def installed(module: str) -> bool:
    """Whether the module is there; it is not imported."""
    return importlib.util.find_spec(module) is not None


def check_python() -> list[Finding]:
    """The interpreter, and the packages that everything needs."""
    found = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if missing := [name for name in REQUIRED if not installed(name)]:
        return [fault("python", f"not installed: {', '.join(missing)}", "pip install agent-rl")]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers"))
    return [ok("python", f"{found}, {versions}")]


def check_extras(config: RunConfig | None, is_installed: Callable[[str], bool] = installed) -> list[Finding]:
    """Optional packages: a fault where the configuration needs one that is missing."""
    found: list[Finding] = []
    present, absent = [], []
    for extra in EXTRAS:
        there = is_installed(extra.module)
        (present if there else absent).append(extra.module)
        if config is not None and not there and extra.needed(config):
            found.append(
                fault(
                    "extras",
                    f"{extra.use} needs the package {extra.module}, which is not installed",
                    f"pip install 'agent-rl[{extra.extra}]'",
                )
            )
    if not found:
        unneeded = f"; not installed and not needed here: {', '.join(absent)}" if absent else ""
        found.append(ok("extras", f"installed: {', '.join(present) or 'none'}{unneeded}"))
    return found


def check_processor(config: RunConfig | None) -> list[Finding]:
    """Cores, and whether more threads are asked for than there are."""
    from sandbox.settings import available_cores, free_memory_mb

    cores = available_cores()
    sentence = f"{cores} cores, {free_memory_mb() / 1024:.1f} GiB of memory free"
    threads = 0 if config is None else config.threads
    if threads > cores:
        return [
            warning(
                "machine",
                f"threads = {threads}, and this process may use {cores} cores",
                f"set threads = {cores}, or 0 for PyTorch's choice",
            )
        ]
    return [ok("machine", sentence)]


def check_accelerator(config: RunConfig | None, parameters: int | None = None) -> list[Finding]:
    """The GPU, if there is one, and if one is asked for."""
    import torch

    wanted = "auto" if config is None else config.engine.device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted.startswith("cuda"):
        index = int(wanted.partition(":")[2] or 0)
        if index >= count:
            remedy = "set engine.device = auto, or install a PyTorch that fits the driver (nvidia-smi shows it)"
            return [fault("gpu", f"engine.device = {wanted}, and PyTorch sees {count} CUDA devices", remedy)]
    if wanted == "mps" and not torch.backends.mps.is_available():
        return [fault("gpu", "engine.device = mps, and PyTorch sees no such device", "set engine.device = auto")]
    if count and wanted != "cpu":
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name(0)
        return [ok("gpu", f"{count} x {name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free on the first")]
    if parameters is not None and parameters > LARGE_FOR_CPU:
        return [
            warning(
                "gpu",
                f"no accelerator is used, and the model has {parameters / 1e9:.1f} billion parameters: a step takes "
                "many minutes on a CPU",
                "use a machine with a GPU, or a smaller model to try things out",
            )
        ]
    return [ok("gpu", "no accelerator is used: generation and learning run on the CPU")]


def check_disk(config: RunConfig, parameters: int) -> list[Finding]:
    """Room for the checkpoints: weights and two moments in float32, for each that is kept and one being written."""
    from pathlib import Path

    kept = config.learner.checkpoint.keep_last + int(config.learner.checkpoint.keep_best) + 1
    needed = 12 * parameters * kept
    folder = Path(config.runs_dir).resolve()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    sentence = f"checkpoints take about {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free in {folder}"
    if needed > free:
        return [fault("disk", sentence, "lower learner.checkpoint.keep_last, or set runs_dir to a larger disk")]
    return [ok("disk", sentence)]
