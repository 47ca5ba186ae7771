"""Our settings as vLLM's arguments and environment. Knows vLLM's names, and imports nothing of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agent_rl.config import ConfigError
from agent_rl.engines.settings import EngineSettings

WORKER = "agent_rl.weights.vllm.worker.WeightWorker"
"""Class whose methods every vLLM worker gets. Importing it there makes our weight transport known."""


SHARED_MEMORY = "agent_rl_shared_memory"
"""Name of our backend among those of vLLM's weight-transfer layer."""


def engine_arguments(model: str, settings: EngineSettings, *, cpu: bool, can_sleep: bool) -> dict[str, Any]:
    """Arguments of `AsyncEngineArgs` for a model's folder or hub name.

    The engine gets token ids and gives token ids, so that it loads no tokenizer; log-probs are those after
    temperature, top_p and top_k. `engine.vllm.engines` is vLLM's own data parallelism: engine processes behind one
    client, which for models without experts know nothing of each other.
    """
    own = settings.vllm
    found: dict[str, Any] = {
        "model": model,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "dtype": "float32" if cpu and settings.dtype == "auto" else settings.dtype,
        "tensor_parallel_size": own.tensor_parallel_size,
        "data_parallel_size": own.engines,
        "max_num_seqs": settings.max_rows,
        "max_num_batched_tokens": max(settings.prefill_tokens, settings.max_rows),
        "enable_prefix_caching": settings.keep_cache,
        "enforce_eager": cpu if own.enforce_eager is None else own.enforce_eager,
        "worker_extension_cls": WORKER,
        "weight_transfer_config": {"backend": transport(settings, cpu=cpu)},
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if settings.max_length is not None:
        found["max_model_len"] = settings.max_length
    if cpu:
        found["kv_cache_memory_bytes"] = settings.kv_budget_mb << 20
    else:
        found["gpu_memory_utilization"] = own.gpu_memory_utilization
    if own.block_size is not None or cpu:
        found["block_size"] = own.block_size or 32
    if own.placement == "colocated" and can_sleep:
        found["enable_sleep_mode"] = True
    if taken := sorted(found.keys() & own.extra.keys()):
        raise ConfigError(f"engine.vllm.extra names {taken[0]!r}, which other settings decide; leave it out")
    return found | own.extra


def transport(settings: EngineSettings, *, cpu: bool) -> str:
    """Backend of vLLM's weight-transfer layer by which new weights come."""
    chosen = settings.vllm.transport
    if chosen == "auto":
        chosen = "shared_memory" if cpu else "ipc" if settings.vllm.placement == "colocated" else "nccl"
    return SHARED_MEMORY if chosen == "shared_memory" else chosen


def check_names(arguments: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse arguments that this vLLM does not have; ConfigError names the nearest."""
    import difflib

    for name in arguments:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"engine.vllm.extra names {name!r}, which vLLM's AsyncEngineArgs does not have{hint}")


@contextmanager
def environment(settings: EngineSettings) -> Iterator[None]:
    """Environment in which vLLM is imported and its processes are started.

    What the user set stays as it is. Usage reports, which vLLM sends by default, are off.
    """
    own = settings.vllm
    defaults = {
        "VLLM_LOGGING_LEVEL": own.log_level.upper(),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(own.startup_timeout_s)),
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if own.devices is None:
        yield
        return
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = own.devices
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
