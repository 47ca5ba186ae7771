"""Who shares a batch, what is evicted and how a trajectory is cut into turns change nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.engines.base import Generation, GenerationRequest, Sampling
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.transformers import TransformersEngine
from tests.engine_models import byte_tokenizer, tiny_model

MODEL = tiny_model("qwen3")
WIDE = tiny_model("llama-tied", num_key_value_heads=4, head_dim=80)
"""Its keys and values take 5 KiB a token: a budget of 1 MiB holds 204 tokens, less than most plans want."""
TOKENIZER = byte_tokenizer()

Plan = list[tuple[list[int], list[int]]]
"""Of each trajectory: its prompt, and the lengths of its turns."""

plans = st.lists(
    st.tuples(
        st.lists(st.integers(65, 90), min_size=1, max_size=24),
        st.lists(st.integers(1, 12), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=9,
)


async def _trajectory(
    engine: TransformersEngine, name: str, prompt: list[int], turns: list[int], sampling: Sampling
) -> list[Generation]:
    ids, generations = list(prompt), []
    for turn, length in enumerate(turns):
        request = GenerationRequest(name, tuple(ids), length, seed=turn, sampling=sampling, stop_at_fence=False)
        generations.append(await engine.generate(request))
        ids = [*ids, *generations[-1].ids, 97, 98, 99]
    engine.release(name)
    return generations


async def _all(
    plan: Plan, together: bool, sampling: Sampling, model: Any = MODEL, **changes: Any
) -> list[list[Generation]]:
    engine = TransformersEngine(model, TOKENIZER, settings=EngineSettings(**changes), eos_ids=())
    runs = [_trajectory(engine, f"t{i}", prompt, turns, sampling) for i, (prompt, turns) in enumerate(plan)]
    results = await asyncio.gather(*runs) if together else [await run for run in runs]
    await engine.close()
    return results


def _ids(results: list[list[Generation]]) -> list[list[tuple[int, ...]]]:
    return [[generation.ids for generation in turns] for turns in results]


@settings(deadline=None, max_examples=8)
@given(plans, st.sampled_from([Sampling(0.0), Sampling(1.0)]))
def test_tokens_do_not_depend_on_who_shares_the_batch(plan: Plan, sampling: Sampling) -> None:
    alone = asyncio.run(_all(plan, False, sampling))
    together = asyncio.run(_all(plan, True, sampling, max_rows=4, prefill_tokens=64))
    assert _ids(alone) == _ids(together)


@settings(deadline=None, max_examples=8)
@given(plans)
def test_tokens_do_not_depend_on_eviction_and_preemption(plan: Plan) -> None:
    roomy = asyncio.run(_all(plan, True, Sampling(0.0), WIDE))
    tight = asyncio.run(_all(plan, True, Sampling(0.0), WIDE, kv_budget_mb=1))
    without = asyncio.run(_all(plan, True, Sampling(0.0), WIDE, keep_cache=False))
    assert _ids(roomy) == _ids(tight) == _ids(without)


async def test_little_memory_evicts_idle_and_preempts_running_trajectories() -> None:
    plan = [([65 + i] * 10, [40, 30]) for i in range(5)]
    results, counters = [], []
    for megabytes in (64, 1):
        engine = TransformersEngine(WIDE, TOKENIZER, settings=EngineSettings(kv_budget_mb=megabytes), eos_ids=())
        runs = [_trajectory(engine, f"t{i}", prompt, turns, Sampling(1.0)) for i, (prompt, turns) in enumerate(plan)]
        results.append(_ids(await asyncio.gather(*runs)))
        counters.append(engine.counters)
        await engine.close()
    assert results[0] == results[1]
    assert counters[0]["evictions"] == counters[0]["preemptions"] == 0
    assert counters[1]["evictions"] > 0
    assert counters[1]["preemptions"] > 0
    assert counters[1]["sampled_tokens"] == counters[0]["sampled_tokens"] == 5 * 70
    assert counters[1]["prefill_tokens"] > counters[0]["prefill_tokens"]


@settings(deadline=None, max_examples=8)
@given(st.lists(st.integers(65, 90), min_size=1, max_size=20), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_tokens_do_not_depend_on_how_a_trajectory_is_cut_into_turns(prompt: list[int], turns: list[int]) -> None:
    async def run(lengths: list[int]) -> list[int]:
        engine = TransformersEngine(MODEL, TOKENIZER, eos_ids=())
        ids: list[int] = []
        for length in lengths:
            request = GenerationRequest(
                "t", (*prompt, *ids), length, seed=0, sampling=Sampling(0.0), stop_at_fence=False
            )
            ids += (await engine.generate(request)).ids
        await engine.close()
        return ids

    assert asyncio.run(run(turns)) == asyncio.run(run([sum(turns)]))
