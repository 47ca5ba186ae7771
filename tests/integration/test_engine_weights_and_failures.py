"""New weights at a token boundary, and errors of the engine's own."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import torch

from agent_rl.engines.base import GenerationRequest, Sampling
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.transformers import TransformersEngine
from agent_rl.types import FinishReason, InfrastructureError
from tests.engine_models import byte_tokenizer, plain_logprobs, tiny_model

TOKENIZER = byte_tokenizer()


def _ask(name: str, cap: int, ids: tuple[int, ...] = (65, 66, 67), **changes: Any) -> GenerationRequest:
    return GenerationRequest(name, ids, cap, seed=7, stop_at_fence=False, **changes)


@pytest.mark.parametrize("kind", ["llama-tied", "llama-untied"])
async def test_new_weights_take_effect_between_two_tokens_of_a_running_turn(kind: str) -> None:
    model, old, new = tiny_model(kind), tiny_model(kind), tiny_model(kind, seed=1)
    engine = TransformersEngine(model, TOKENIZER, eos_ids=(), version=4)
    tasks = [asyncio.create_task(engine.generate(_ask(f"t{k}", 200, (65 + k, 66)))) for k in range(3)]
    while engine.counters["decode_steps"] < 5:
        await asyncio.sleep(0.001)
    await engine.load_weights(new.named_parameters(), 5)
    assert engine.weight_version == 5
    for k, generation in enumerate(await asyncio.gather(*tasks)):
        versions = list(generation.weight_versions)
        assert versions == sorted(versions)
        assert set(versions) == {4, 5}
        change, context, ids = versions.index(5), [65 + k, 66], list(generation.ids)
        before = plain_logprobs(old, context, ids[:change])
        after = plain_logprobs(new, context + ids[:change], ids[change:])
        assert generation.logprobs == pytest.approx([*before, *after], abs=1e-4)
    await engine.close()


async def test_kept_caches_of_old_weights_are_not_used() -> None:
    model, new = tiny_model(), tiny_model(seed=1)
    engine = TransformersEngine(model, TOKENIZER, eos_ids=())
    first = await engine.generate(_ask("t", 8))
    context = [65, 66, 67, *first.ids, 70]
    await engine.load_weights(new.named_parameters(), 1)
    second = await engine.generate(_ask("t", 8, tuple(context)))
    assert second.logprobs == pytest.approx(plain_logprobs(new, context, list(second.ids)), abs=1e-4)
    assert set(second.weight_versions) == {1}
    await engine.close()


async def test_a_shared_module_is_served_with_the_weights_it_has() -> None:
    model = tiny_model()
    engine = TransformersEngine(model, TOKENIZER, eos_ids=(), share=True)
    first = await engine.generate(_ask("t", 5))
    model.train()
    loss = model(input_ids=torch.tensor([[65, 66, 67, *first.ids]])).logits.square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.05 * parameter.grad.sign()
    await engine.load_weights((), 1)
    context = [65, 66, 67, *first.ids]
    second = await engine.generate(_ask("t", 5, tuple(context)))
    assert set(second.weight_versions) == {1}
    assert second.logprobs == pytest.approx(plain_logprobs(model, context, list(second.ids)), abs=1e-4)
    await engine.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda named: named | {"model.norm.typo": torch.zeros(3)}, "model.norm.typo"),
        (lambda named: named | {"model.norm.weight": torch.zeros(3)}, r"model.norm.weight.*\(3,\).*\(48,\)"),
        (lambda named: {k: v for k, v in named.items() if "norm" not in k}, r"5 parameters .* not given"),
    ],
    ids=["unknown name", "wrong shape", "missing"],
)
async def test_half_loaded_weights_are_never_sampled_from(change: Any, message: str) -> None:
    engine = TransformersEngine(tiny_model(), TOKENIZER, eos_ids=())
    good = dict(tiny_model(seed=1).named_parameters())
    with pytest.raises(InfrastructureError, match=message):
        await engine.load_weights(change(good).items(), 1)
    with pytest.raises(InfrastructureError, match="loading weights of version 1 failed"):
        await engine.generate(_ask("t", 3))
    await engine.load_weights(good.items(), 2)
    assert (await engine.generate(_ask("t", 3))).weight_versions == (2, 2, 2)
    await engine.close()


async def test_logits_that_are_not_finite_fail_the_request_and_good_weights_heal_it() -> None:
    model = tiny_model()
    engine = TransformersEngine(model, TOKENIZER, eos_ids=())
    broken = {name: torch.full_like(value, torch.nan) for name, value in model.named_parameters()}
    healthy = {name: value.clone() for name, value in model.named_parameters()}
    expected = await engine.generate(_ask("t", 6))
    engine.release("t")
    for sampling in (Sampling(0.0), Sampling(1.0)):
        await engine.load_weights(broken.items(), 1)
        with pytest.raises(InfrastructureError, match=r"not finite.*version 1"):
            await engine.generate(_ask("u", 6, sampling=sampling))
        await engine.load_weights(healthy.items(), 2)
        assert (await engine.generate(_ask("t", 6))).ids == expected.ids
        engine.release("t")
    await engine.close()


def _break(model: Any, after: int, error: Exception) -> None:
    calls = iter(range(10**6))

    def hook(*_: Any) -> None:
        if next(calls) >= after:
            raise error

    model.model.layers[1].register_forward_pre_hook(hook)


@pytest.mark.parametrize("deterministic", [False, True])
async def test_an_error_in_the_worker_reaches_every_request_old_and_new(deterministic: bool) -> None:
    model = tiny_model()
    engine = TransformersEngine(model, TOKENIZER, eos_ids=(), settings=EngineSettings(deterministic=deterministic))
    _break(model, 3, RuntimeError("the kernel went away"))
    asked = [engine.generate(_ask(f"t{k}", 50)) for k in range(4)]
    outcomes = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
    assert len(outcomes) == 4
    for outcome in outcomes:
        assert isinstance(outcome, InfrastructureError)
        assert "the kernel went away" in str(outcome)
    with pytest.raises(InfrastructureError, match="the kernel went away"):
        await asyncio.wait_for(engine.generate(_ask("late", 5)), 60)
    with pytest.raises(InfrastructureError, match="the kernel went away"):
        await asyncio.wait_for(engine.load_weights(model.named_parameters(), 1), 60)
    await engine.close()


async def test_lack_of_memory_names_what_to_turn_down() -> None:
    model = tiny_model()
    engine = TransformersEngine(model, TOKENIZER)
    _break(model, 1, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"))
    with pytest.raises(InfrastructureError, match=r"kv_budget_mb.*max_rows"):
        await asyncio.wait_for(engine.generate(_ask("t", 5)), 60)
    await engine.close()


async def test_a_context_beyond_the_memory_fails_alone() -> None:
    model = tiny_model(num_key_value_heads=4, head_dim=80)
    engine = TransformersEngine(model, TOKENIZER, eos_ids=(), settings=EngineSettings(kv_budget_mb=1))
    long, growing, short = await asyncio.wait_for(
        asyncio.gather(
            engine.generate(_ask("long", 5, (65,) * 220)),
            engine.generate(_ask("growing", 240, (65,) * 4)),
            engine.generate(_ask("short", 5)),
            return_exceptions=True,
        ),
        60,
    )
    for outcome in (long, growing):
        assert isinstance(outcome, InfrastructureError)
        assert "kv_budget_mb" in str(outcome)
    assert not isinstance(short, BaseException)
    assert len(short.ids) == 5
    await engine.close()


async def test_two_turns_of_one_trajectory_at_once_are_refused() -> None:
    engine = TransformersEngine(tiny_model(), TOKENIZER, eos_ids=())
    first, second = await asyncio.gather(
        engine.generate(_ask("t", 20)), engine.generate(_ask("t", 20)), return_exceptions=True
    )
    assert not isinstance(first, BaseException)
    assert isinstance(second, InfrastructureError)
    await engine.close()


async def test_close_ends_the_thread_and_what_waits() -> None:
    engine = TransformersEngine(tiny_model(max_position_embeddings=100_000), TOKENIZER, eos_ids=())
    before = threading.active_count()
    task = asyncio.create_task(engine.generate(_ask("t", 90_000)))
    await asyncio.sleep(0.05)
    assert threading.active_count() == before + 1
    await asyncio.wait_for(engine.close(), 60)
    await engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "generation"]
    with pytest.raises(InfrastructureError, match="closed"):
        await task
    with pytest.raises(InfrastructureError, match="closed"):
        await engine.generate(_ask("t", 5))


async def test_one_engine_serves_several_event_loops() -> None:
    engine = TransformersEngine(tiny_model(), TOKENIZER, eos_ids=())
    here = engine.generate(_ask("a", 30))
    there = asyncio.to_thread(lambda: asyncio.run(engine.generate(_ask("b", 30))))
    first, second = await asyncio.wait_for(asyncio.gather(here, there), 60)
    assert first.finish is second.finish is FinishReason.LENGTH
    assert first.ids == second.ids
    await engine.close()
