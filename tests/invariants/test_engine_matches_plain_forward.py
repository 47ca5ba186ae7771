"""What the engine reports is what a plain forward over the whole context gives, at every turn."""

from __future__ import annotations

import asyncio

import pytest
import torch

from agent_rl.engines.base import GenerationRequest, Sampling
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.transformers import TransformersEngine
from tests.engine_models import KINDS, byte_tokenizer, plain_logprobs, tiny_model

TURNS = 3


async def _episode(engine: TransformersEngine, name: str, sampling: Sampling) -> list[tuple[list[int], object]]:
    number = int(name[1:])
    ids = [65 + number % 7, *range(70, 74 + number % 5)]
    turns = []
    for turn in range(TURNS):
        request = GenerationRequest(
            name, tuple(ids), 4 + number % 9, seed=100 * number + turn, sampling=sampling, stop_at_fence=False
        )
        generation = await engine.generate(request)
        turns.append((ids, generation))
        # An observation of another length in each trajectory, so that prefills are ragged.
        ids = [*ids, *generation.ids, *range(90, 93 + (number + turn) % 6)]
    engine.release(name)
    return turns


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("kind", KINDS)
async def test_logprobs_at_every_turn_equal_those_of_one_uncached_forward(kind: str, temperature: float) -> None:
    model = tiny_model(kind)
    engine = TransformersEngine(model, byte_tokenizer(), settings=EngineSettings(max_rows=6))
    episodes = await asyncio.gather(*(_episode(engine, f"t{k}", Sampling(temperature)) for k in range(10)))
    await engine.close()
    assert len(episodes) == 10
    for turns in episodes:
        for context, generation in turns:
            ids = list(generation.ids)
            assert 1 <= len(ids) == len(generation.logprobs) == len(generation.weight_versions)
            expected = plain_logprobs(model, context, ids, temperature)
            assert generation.logprobs == pytest.approx(expected, abs=1e-4)
            if temperature == 0.0:
                with torch.no_grad():
                    logits = model(input_ids=torch.tensor([context + ids]), use_cache=False).logits[0]
                best = logits[len(context) - 1 : -1].max(-1).values
                chosen = logits[len(context) - 1 : -1].gather(-1, torch.tensor(ids)[:, None])[:, 0]
                assert torch.allclose(best, chosen, atol=1e-4)


async def test_half_precision_models_report_the_logprobs_of_their_own_logits() -> None:
    model = tiny_model("llama-tied").to(torch.bfloat16)
    engine = TransformersEngine(model, byte_tokenizer())
    turns = await _episode(engine, "t3", Sampling(1.0))
    await engine.close()
    for context, generation in turns:
        expected = plain_logprobs(model, context, list(generation.ids))
        # bfloat16 keeps 8 bits, and the cached path adds up in another order.
        assert generation.logprobs == pytest.approx(expected, abs=0.3)
