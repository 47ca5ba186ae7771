"""Shares of two tensor-parallel workers, read back from real layers, add up to what was sent."""

from __future__ import annotations

import copy
from typing import Any

from agent_rl.engines.settings import VllmSettings
from agent_rl.engines.sources import resolve_model
from agent_rl.weights.build import weight_sync
from agent_rl.weights.settings import SyncSettings
from tests.vllm.conftest import QUICKSTART, SETTINGS
from tests.weights_cases import learner, move


async def test_an_engine_of_two_workers_serves_what_was_sent(requires_vllm: None, shipped: tuple[Any, Any]) -> None:
    from agent_rl.engines.vllm.engine import VllmEngine

    model, tokenizer = shipped
    settings = SETTINGS.model_copy(update={"vllm": VllmSettings(tensor_parallel_size=2), "kv_budget_mb": 64})
    engine = VllmEngine(resolve_model(QUICKSTART).location, tokenizer, eos_ids=[2], settings=settings)
    await engine.start()
    try:
        owner = learner(copy.deepcopy(model))
        sync = weight_sync(owner, engine, SyncSettings(timeout_s=300), vocabulary=len(tokenizer))
        for version in (1, 2):
            move(owner, version)
            proof = await sync.hand_over(version)
            assert proof.ok
            assert proof.engines[0].total == proof.total
            assert proof.engines[0].tensors == len(proof.tensors) + 1  # the tied head
            assert proof.engines[0].canary.mean < 1e-4
    finally:
        await engine.close()
