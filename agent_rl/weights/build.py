"""The hand-over that fits an engine."""

from __future__ import annotations

import torch

from agent_rl.config import ConfigError
from agent_rl.engines.base import Engine
from agent_rl.engines.transformers import TransformersEngine
from agent_rl.learner.update import Learner
from agent_rl.weights.proof import SyncLog
from agent_rl.weights.settings import SyncSettings
from agent_rl.weights.sync import Source, WeightSync
from agent_rl.weights.target import Carrier, DirectCarrier, EmbeddedTarget, OpaqueTarget, Target


def weight_sync(
    learner: Learner, engine: Engine, settings: SyncSettings, *, vocabulary: int, log: SyncLog | None = None
) -> WeightSync:
    """The hand-over from `learner` to `engine`; `vocabulary` is the number of ids that the tokenizer has.

    Raises:
        ConfigError: the settings ask for what this engine or learner does not have.
    """
    source: Source = learner
    targets: list[Target]
    carrier: Carrier
    serves = getattr(getattr(engine, "settings", None), "kind", "")
    if settings.adapters == "separate" and (learner.settings.lora is None or serves != "vllm"):
        raise ConfigError("sync.adapters = separate needs learner.lora and engine.kind = vllm; set it to merged")
    if isinstance(engine, TransformersEngine):
        targets, carrier = [EmbeddedTarget(engine)], DirectCarrier([engine])
    elif serves == "vllm":
        from agent_rl.weights.vllm.build import to_vllm

        source, targets, carrier = to_vllm(learner, engine, settings)
    else:
        targets, carrier = [OpaqueTarget(engine)], DirectCarrier([engine])
    positions = getattr(learner.model.config.get_text_config(decoder=True), "max_position_embeddings", None) or 1 << 20
    return WeightSync(
        source,
        targets,
        carrier,
        settings,
        vocabulary=vocabulary,
        max_length=getattr(engine, "max_length", None) or positions,
        autocast=torch.bfloat16 if learner.settings.autocast == "bfloat16" else None,
        log=log,
    )


def target_of(engine: Engine) -> tuple[Target, dict[str, torch.dtype]]:
    """A started engine as the proof sees it, and the number format of each tensor that it keeps.

    For a process that holds the engine and not the learner.
    """
    if isinstance(engine, TransformersEngine):
        return EmbeddedTarget(engine), {name: tensor.dtype for name, tensor in engine.model.state_dict().items()}
    if getattr(getattr(engine, "settings", None), "kind", "") == "vllm":
        from agent_rl.engines.vllm.handover import needed_shapes
        from agent_rl.weights.vllm.target import VllmTarget

        target = VllmTarget(engine)
        return target, dict.fromkeys(needed_shapes(target.model), target.dtype)
    return OpaqueTarget(engine), {}
