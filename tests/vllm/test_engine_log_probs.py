"""vLLM samples what it says: tokens and log-probs against plain forwards of the transformers model."""

from __future__ import annotations

import asyncio

import pytest
import torch
from scipy.stats import chisquare

from agent_rl.engines.base import GenerationRequest, Sampling
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.transformers import TransformersEngine
from agent_rl.tir.episode import stream_seed
from agent_rl.tir.fence import FenceScanner
from tests.engine_models import plain_logprobs

TOLERANCE = 2e-5
"""Nats a token, float32 on both sides; the largest seen is 5e-6."""

QUESTIONS = ("What is 12 + 13?", "Tom has 5 apples and eats 2. How many are left?", "What is 7 * 8 - 9?")


def prompts(tokenizer) -> list[tuple[int, ...]]:
    rendered = [
        tokenizer.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, tokenize=False)
        for q in QUESTIONS
    ]
    return [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in rendered]


def ask(number: int, ids: tuple[int, ...], temperature: float, **changes) -> GenerationRequest:
    return GenerationRequest(f"{temperature}/{number}", ids, 40, number, Sampling(temperature), **changes)


async def test_greedy_tokens_and_log_probs_are_those_of_the_transformers_engine(engine, shipped):
    model, tokenizer = shipped
    other = TransformersEngine(
        model, tokenizer, settings=EngineSettings(), scanner=FenceScanner, eos_ids=engine.eos_ids
    )
    requests = [ask(number, ids, 0.0) for number, ids in enumerate(prompts(tokenizer))]
    ours = await asyncio.gather(*(engine.generate(request) for request in requests))
    theirs = await asyncio.gather(*(other.generate(request) for request in requests))
    await other.close()
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine.ids == reference.ids
        assert mine.finish == reference.finish
        assert mine.logprobs == pytest.approx(reference.logprobs, abs=TOLERANCE)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.6])
async def test_log_probs_are_of_the_distribution_sampled_from(engine, shipped, temperature):
    model, tokenizer = shipped
    requests = [ask(number, ids, temperature, stop_at_fence=False) for number, ids in enumerate(prompts(tokenizer))]
    for request, turn in zip(
        requests, await asyncio.gather(*(engine.generate(request) for request in requests)), strict=True
    ):
        expected = plain_logprobs(model, list(request.ids), list(turn.ids), temperature)
        assert turn.logprobs == pytest.approx(expected, abs=TOLERANCE)


async def test_temperatures_that_share_a_batch_keep_their_own_distributions(engine, shipped):
    model, tokenizer = shipped
    ids = prompts(tokenizer)[0]
    temperatures = [0.0, 0.5, 1.0, 1.5] * 4
    requests = [ask(number, ids, t, stop_at_fence=False) for number, t in enumerate(temperatures)]
    turns = await asyncio.gather(*(engine.generate(request) for request in requests))
    for temperature, turn in zip(temperatures, turns, strict=True):
        assert turn.logprobs == pytest.approx(
            plain_logprobs(model, list(ids), list(turn.ids), temperature), abs=TOLERANCE
        )


async def test_top_p_and_top_k_renormalise_over_what_is_kept(engine, shipped):
    model, tokenizer = shipped
    ids = prompts(tokenizer)[1]
    sampling = Sampling(temperature=1.3, top_k=3)
    turn = await engine.generate(GenerationRequest("k", ids, 20, 5, sampling, stop_at_fence=False))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*ids, *turn.ids]])).logits[0, len(ids) - 1 : -1].float() / 1.3
    kept = logits.topk(3, dim=-1)
    expected = kept.values.log_softmax(-1)
    for place, token in enumerate(turn.ids):
        rank = kept.indices[place].tolist().index(token)
        assert turn.logprobs[place] == pytest.approx(float(expected[place, rank]), abs=TOLERANCE)


async def test_a_seed_names_the_draws_whatever_shares_the_batch(engine, shipped):
    ids = prompts(shipped[1])[2]
    alone = await engine.generate(ask(7, ids, 1.0))
    crowd = await asyncio.gather(*(engine.generate(ask(number, ids, 1.0)) for number in range(12)))
    assert crowd[7].ids == alone.ids
    assert len({turn.ids for turn in crowd}) > 1


async def test_draws_are_as_frequent_as_their_probabilities(engine, shipped):
    model, count = shipped[0], 1500
    ids, temperature = (5, 6, 7, 8), 2.0
    turns = await asyncio.gather(
        *(
            engine.generate(
                GenerationRequest(
                    f"d{n}", ids, 1, stream_seed("draws", "p", n, 0), Sampling(temperature), stop_at_fence=False
                )
            )
            for n in range(count)
        )
    )
    with torch.no_grad():
        expected = count * (model(torch.tensor([ids])).logits[0, -1].double() / temperature).softmax(-1)
    found = torch.bincount(torch.tensor([turn.ids[0] for turn in turns]), minlength=len(expected)).double()
    rare = expected < 5
    assert (~rare).sum() >= 10
    observed = torch.cat([found[~rare], found[rare].sum()[None]])
    wanted = torch.cat([expected[~rare], expected[rare].sum()[None]])
    assert chisquare(observed.numpy(), (wanted * observed.sum() / wanted.sum()).numpy()).pvalue > 1e-4
