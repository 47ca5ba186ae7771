"""The hand-over to vLLM engines."""

from __future__ import annotations

from agent_rl.config import ConfigError
from agent_rl.engines.vllm.arguments import transport
from agent_rl.engines.vllm.engine import VllmEngine
from agent_rl.learner.update import Learner
from agent_rl.weights.manifest import described
from agent_rl.weights.settings import SyncSettings
from agent_rl.weights.sync import Source
from agent_rl.weights.target import Target
from agent_rl.weights.vllm.adapters import NUMBER, AdapterCarrier, AdapterSource
from agent_rl.weights.vllm.carriers import TransferCarrier
from agent_rl.weights.vllm.target import VllmTarget


def to_vllm(
    learner: Learner, engine: VllmEngine, settings: SyncSettings
) -> tuple[Source, list[Target], TransferCarrier | AdapterCarrier]:
    """What is sent, the engines that serve it, and the way between; ConfigError if the engine takes no adapters."""
    separate = settings.adapters == "separate"
    targets: list[Target] = [
        VllmTarget(engine, rank, adapter=NUMBER if separate else 0) for rank in range(engine.settings.vllm.engines)
    ]
    whole = TransferCarrier(
        engine,
        lambda: described(learner.model, targets[0].dtype_for),
        backend=transport(engine.settings, cpu=learner.policy.device.type == "cpu"),
    )
    if not separate:
        return learner, targets, whole
    if not engine.settings.vllm.extra.get("enable_lora"):
        rank = 0 if learner.settings.lora is None else learner.settings.lora.rank
        raise ConfigError(
            "sync.adapters = separate needs an engine with room for adapters: set engine.vllm.extra to "
            f"{{enable_lora: true, max_lora_rank: {rank}}}"
        )
    return AdapterSource(learner), targets, AdapterCarrier(engine, whole)
