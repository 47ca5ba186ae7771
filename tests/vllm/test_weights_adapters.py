"""Adapters through vLLM's own LoRA: what is served is what was sent, and one that never arrived is caught by name."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agent_rl.engines.base import GenerationRequest
from agent_rl.weights.build import weight_sync
from agent_rl.weights.errors import SyncError
from agent_rl.weights.settings import SyncSettings
from tests.engine_models import EOS
from tests.vllm.conftest import SETTINGS
from tests.weights_cases import lora_learner, move


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def adapted(requires_vllm: None, untied: Any) -> AsyncIterator[Any]:
    """vLLM with room for one adapter."""
    from agent_rl.engines.vllm.engine import VllmEngine

    _, tokenizer, folder = untied
    own = SETTINGS.vllm.model_copy(update={"extra": {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1}})
    running = VllmEngine(folder, tokenizer, eos_ids=[EOS], settings=SETTINGS.model_copy(update={"vllm": own}))
    await running.start()
    yield running
    await running.close()


async def test_adapters_are_served_version_after_version_and_a_lost_one_is_named(adapted: Any, untied: Any) -> None:
    model, tokenizer, _ = untied
    owner = lora_learner(copy.deepcopy(model))
    given = SyncSettings(adapters="separate", timeout_s=300)
    sync = weight_sync(owner, adapted, given, vocabulary=len(tokenizer))
    for version in range(1, 5):
        if version > 1:
            move(owner, version)
        proof = await sync.hand_over(version)
        assert proof.ok
        assert proof.engines[0].total == proof.total
        assert len(proof.tensors) == (28 if version > 1 else 28 + 21)  # base weights come once
        assert proof.engines[0].tensors == 28 + 21
        assert proof.engines[0].canary.mean < 2e-5

    class Lost:
        async def carry(self, weights: Any, version: int) -> None:
            async with adapted.new_weights(version):
                list(weights)

    own, sync._carrier = sync._carrier, Lost()
    move(owner, 9)
    with pytest.raises(SyncError, match="adapter_missing: the adapter of version 5 is not the one that is served"):
        await sync.hand_over(5)

    class Removed:
        async def carry(self, weights: Any, version: int) -> None:
            async with adapted.new_weights(version):
                list(weights)
                await adapted.llm.remove_lora(1)
                adapted.adapter = None

    sync._carrier = Removed()
    with pytest.raises(SyncError, match=r"adapter_missing: the adapter of version 6 never arrived.*"):
        await sync.hand_over(6)
    sync._carrier = own
    assert (await sync.hand_over(7)).ok


async def test_a_running_turn_goes_on_with_the_new_adapter(adapted: Any, untied: Any) -> None:
    model, tokenizer, _ = untied
    owner = lora_learner(copy.deepcopy(model))
    given = SyncSettings(adapters="separate", timeout_s=300, canary_prompts=0)
    sync = weight_sync(owner, adapted, given, vocabulary=len(tokenizer))
    await sync.hand_over(10)
    move(owner, 3)
    request = GenerationRequest("long", (65, 66, 67), 400, 0, stop_at_fence=False)
    turn = asyncio.create_task(adapted.generate(request))
    while adapted.counters["sampled_tokens"] == 0 and not turn.done():
        await asyncio.sleep(0.05)
        if adapted._running.get("long") is not None:
            break
    await asyncio.sleep(0.3)
    assert (await sync.hand_over(11)).ok
    versions = list((await turn).weight_versions)
    assert versions == sorted(versions)
    assert set(versions) <= {10, 11}
    assert versions[-1] == 11
