"""In lockstep mode reruns are equal bit for bit, however long the tools take."""

from __future__ import annotations

import asyncio
import random

import pytest

from agent_rl.engines.base import Generation, GenerationRequest
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.transformers import TransformersEngine
from agent_rl.types import InfrastructureError
from tests.engine_models import byte_tokenizer, tiny_model


async def _run(
    delays: random.Random, deterministic: bool = True, batches: int = 2, **changes: object
) -> list[Generation]:
    engine = TransformersEngine(
        tiny_model("llama-untied"),
        byte_tokenizer(),
        settings=EngineSettings(deterministic=deterministic, **changes),
    )
    found: dict[str, list[Generation]] = {}

    async def episode(name: str, number: int) -> None:
        await asyncio.sleep(delays.random() * 0.02)
        ids = [65 + number // 4, 66, 67]
        for turn in range(1 + number % 3):
            request = GenerationRequest(name, tuple(ids), 12, seed=number * 1000 + turn, stop_at_fence=False)
            generation = await engine.generate(request)
            found.setdefault(name, []).append(generation)
            ids += [*generation.ids, 80, 81]
            await asyncio.sleep(delays.random() * 0.03)
        engine.release(name)

    for batch in range(batches):
        names = [f"b{batch}-{number}" for number in range(12)]
        engine.expect(names)
        order = list(range(12))
        delays.shuffle(order)
        await asyncio.gather(*(episode(names[number], number) for number in order))
    await engine.close()
    return [generation for name in sorted(found) for generation in found[name]]


def _bits(generations: list[Generation]) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    return [(g.ids, tuple(value.hex() for value in g.logprobs)) for g in generations]


@pytest.mark.parametrize("changes", [{}, {"max_rows": 5}, {"keep_cache": False}], ids=str)
async def test_reruns_are_bit_equal_whatever_the_tools_take(changes: dict[str, object]) -> None:
    first = _bits(await _run(random.Random(1), **changes))
    second = _bits(await _run(random.Random(2), **changes))
    assert len(first) == 2 * (4 * 1 + 4 * 2 + 4 * 3)
    assert first == second


async def test_a_batch_is_the_same_after_another_batch_as_in_a_fresh_engine() -> None:
    both = _bits(await _run(random.Random(3), batches=2))
    first = _bits(await _run(random.Random(4), batches=1))
    # The two batches ask the same with the same seeds, under other names of the same order.
    assert both == first + first


async def test_without_lockstep_the_tokens_are_the_same_too() -> None:
    lockstep = await _run(random.Random(5))
    free = await _run(random.Random(6), deterministic=False)
    assert [g.ids for g in lockstep] == [g.ids for g in free]
    for a, b in zip(lockstep, free, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


async def test_a_batch_waits_for_every_announced_trajectory() -> None:
    engine = TransformersEngine(tiny_model(), byte_tokenizer(), settings=EngineSettings(deterministic=True))
    engine.expect(["a", "b", "c"])
    ask = [
        asyncio.create_task(engine.generate(GenerationRequest(name, (65,), 2, seed=0, stop_at_fence=False)))
        for name in ("a", "b")
    ]
    done, _ = await asyncio.wait(ask, timeout=0.3)
    assert not done
    engine.release("c")
    await asyncio.wait_for(asyncio.gather(*ask), 30)
    await engine.close()


async def test_a_trajectory_that_never_comes_is_named_in_the_error() -> None:
    engine = TransformersEngine(
        tiny_model(), byte_tokenizer(), settings=EngineSettings(deterministic=True, lockstep_timeout_s=0.2)
    )
    engine.expect(["a", "lost"])
    with pytest.raises(InfrastructureError, match=r"lost.*lockstep_timeout_s"):
        await asyncio.wait_for(engine.generate(GenerationRequest("a", (65,), 2, seed=0, stop_at_fence=False)), 30)
    await engine.close()
