"""Two vLLM engines behind one client: both serve, both take new weights, and the death of one is told plainly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
import pytest_asyncio

from agent_rl.engines.base import GenerationRequest, Sampling
from agent_rl.engines.vllm.engine import VllmEngine
from agent_rl.types import InfrastructureError
from tests.engine_models import EOS, plain_logprobs
from tests.vllm.conftest import SETTINGS
from tests.vllm.models import untied_model
from tests.vllm.test_engine_log_probs import TOLERANCE


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(requires_vllm: None, untied: tuple[Any, Any, str]) -> AsyncIterator[VllmEngine]:
    settings = SETTINGS.model_copy(update={"vllm": SETTINGS.vllm.model_copy(update={"engines": 2})})
    running = VllmEngine(untied[2], untied[1], eos_ids=[EOS], settings=settings)
    await running.start()
    yield running
    await running.close()


def ask(name: str, ids: tuple[int, ...], cap: int = 30) -> GenerationRequest:
    return GenerationRequest(name, ids, cap, seed=len(name), sampling=Sampling(0.7), stop_at_fence=False)


async def check(engine: VllmEngine, model: Any, version: int) -> None:
    """Two turns of eight trajectories, each on the engine of its first turn."""
    for turn in range(2):
        ids = {f"v{version}/{n}": (n, 2, 3, *range(10 * turn)) for n in range(8)}
        turns = await asyncio.gather(*(engine.generate(ask(name, context)) for name, context in ids.items()))
        ranks = [engine._routes.rank(name) for name in ids]
        assert ranks.count(0) == ranks.count(1) == 4
        for context, found in zip(ids.values(), turns, strict=True):
            assert set(found.weight_versions) == {version}
            assert found.logprobs == pytest.approx(
                plain_logprobs(model, list(context), list(found.ids), 0.7), abs=TOLERANCE
            )
    for name in ids:
        engine.release(name)


async def test_trajectories_are_shared_out_and_new_weights_reach_both_engines(pair, untied):
    await check(pair, untied[0], 0)
    other = untied_model(seed=9)
    await pair.load_weights(other.named_parameters(), 1)
    await check(pair, other, 1)


async def test_the_death_of_an_engine_process_fails_what_waits_for_it_and_what_comes(pair):
    waiting = [asyncio.create_task(pair.generate(ask(f"w{n}", (n, 1), 1900))) for n in range(4)]
    await asyncio.sleep(0.3)
    cores = [p for p in psutil.Process().children(recursive=True) if "EngineCore" in " ".join(p.cmdline())]
    assert len(cores) >= 2, [p.cmdline() for p in psutil.Process().children(recursive=True)]
    # Of all engines of this process the last ones started are this test's.
    max(cores, key=lambda process: process.create_time()).kill()
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
    assert any(isinstance(result, InfrastructureError) and "has died" in str(result) for result in results)
    with pytest.raises(InfrastructureError, match="has died"):
        await asyncio.wait_for(pair.generate(ask("late", (1, 2))), 60)
