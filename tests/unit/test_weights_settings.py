"""Which way weights travel, and what is refused before a run begins."""

from __future__ import annotations

import pytest

from agent_rl.config import ConfigError
from agent_rl.engines.settings import EngineSettings, VllmSettings
from agent_rl.engines.vllm.arguments import SHARED_MEMORY, engine_arguments, transport
from agent_rl.weights.build import weight_sync
from agent_rl.weights.settings import SyncSettings
from tests.weights_cases import embedded, lora_learner, tiny_model


@pytest.mark.parametrize(
    ("chosen", "placement", "cpu", "backend"),
    [
        ("auto", "side_by_side", True, SHARED_MEMORY),
        ("auto", "colocated", True, SHARED_MEMORY),
        ("auto", "side_by_side", False, "nccl"),
        ("auto", "colocated", False, "ipc"),
        ("shared_memory", "side_by_side", False, SHARED_MEMORY),
        ("nccl", "colocated", False, "nccl"),
    ],
)
def test_the_transport_follows_device_and_placement(chosen: str, placement: str, cpu: bool, backend: str) -> None:
    settings = EngineSettings(kind="vllm", vllm=VllmSettings(transport=chosen, placement=placement))
    assert transport(settings, cpu=cpu) == backend
    arguments = engine_arguments("m", settings, cpu=cpu, can_sleep=True)
    assert arguments["weight_transfer_config"] == {"backend": backend}


async def test_adapters_apart_are_refused_where_nothing_serves_them() -> None:
    _, engine, _ = embedded()
    given = SyncSettings(adapters="separate")
    with pytest.raises(ConfigError, match=r"sync.adapters = separate needs learner.lora and engine.kind = vllm"):
        weight_sync(lora_learner(tiny_model()), engine, given, vocabulary=260)
    await engine.close()
