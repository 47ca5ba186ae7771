"""How a turn ends with vLLM: fence, end of sequence, caps, deadline, cancellation, release; new weights in between."""

from __future__ import annotations

import asyncio
import time

import pytest

from agent_rl.engines.base import GenerationRequest, Sampling
from agent_rl.types import FinishReason, InfrastructureError
from tests.engine_models import EOS, FENCE, byte_tokenizer, plain_logprobs
from tests.vllm.models import chain_model, untied_model
from tests.vllm.test_engine_log_probs import TOLERANCE

TOKENIZER = byte_tokenizer()
TWO_TICKS, TICK_AND_LINES, LINES = 258, 259, 260
START = ord("s")


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


async def say(engine, chain: list[int]) -> None:
    """Have the engine's greedy text be `chain` behind the prompt `s`."""
    await engine.load_weights(chain_model([START, *chain]).named_parameters(), engine.weight_version + 1)


def ask(name: str = "t", cap: int = 100, **changes) -> GenerationRequest:
    return GenerationRequest(name, (65, START), cap, seed=0, sampling=Sampling(0.0), **changes)


BLOCK = [FENCE, *encode("py"), *encode("\n"), *encode("1+2"), LINES]


@pytest.mark.parametrize(
    "closing",
    [[*encode("`"), TWO_TICKS], [TWO_TICKS, *encode("`")], [TWO_TICKS, TICK_AND_LINES]],
    ids=["one and two", "two and one", "with surplus in the token"],
)
async def test_a_turn_ends_at_the_token_that_completes_the_closing_fence(untied_engine, closing):
    await say(untied_engine, [*BLOCK, *closing, *encode("more text")[:4]])
    surplus = untied_engine.counters["surplus_tokens"]
    turn = await untied_engine.generate(ask())
    assert turn.finish is FinishReason.FENCE
    assert list(turn.ids) == [*BLOCK, *closing]
    assert len(turn.logprobs) == len(turn.weight_versions) == len(turn.ids)
    assert untied_engine.counters["surplus_tokens"] - surplus <= 3


async def test_a_request_may_switch_the_fence_off(untied_engine):
    said = [*BLOCK, TWO_TICKS, *encode("`"), *encode("end"), EOS]
    await say(untied_engine, said)
    turn = await untied_engine.generate(ask(stop_at_fence=False))
    assert (turn.finish, list(turn.ids)) == (FinishReason.EOS, said)


@pytest.mark.parametrize("end", [EOS, ord("!")])
async def test_each_end_of_sequence_id_ends_the_turn_and_is_part_of_it(untied_engine, end):
    said = [*encode("done"), end]
    await say(untied_engine, [*said, *encode("xyz")])
    turn = await untied_engine.generate(ask())
    assert (turn.finish, list(turn.ids)) == (FinishReason.EOS, said)


@pytest.mark.parametrize("cap", [1, 7])
async def test_the_cap_counts_sampled_tokens(untied_engine, cap):
    await say(untied_engine, encode("abc"))
    turn = await untied_engine.generate(ask(cap=cap))
    assert (turn.finish, len(turn.ids)) == (FinishReason.LENGTH, cap)


async def test_the_context_cap_counts_all_tokens(untied_engine):
    await say(untied_engine, encode("abc"))
    full = untied_engine.max_length
    request = GenerationRequest("t", (65,) * (full - 6) + (START,), 100, seed=0, sampling=Sampling(0.0))
    turn = await untied_engine.generate(request)
    assert (turn.finish, len(turn.ids)) == (FinishReason.LENGTH, 5)
    with pytest.raises(ValueError, match=r"engine.max_length"):
        await untied_engine.generate(GenerationRequest("t", (65,) * full, 1, seed=0))


async def test_a_deadline_returns_what_there_is(untied_engine):
    await say(untied_engine, encode("abc"))
    begun = time.monotonic()
    turn = await untied_engine.generate(ask(cap=2000, deadline=begun + 0.5))
    assert turn.finish is FinishReason.ABORTED
    assert 0 < len(turn.ids) == len(turn.logprobs) == len(turn.weight_versions) < 2000
    late = await untied_engine.generate(ask(deadline=begun - 1))
    assert (late.finish, late.ids) == (FinishReason.ABORTED, ())
    assert await unfinished(untied_engine) == 0


async def test_cancelling_and_releasing_give_the_request_up(untied_engine):
    await say(untied_engine, encode("abc"))
    cancelled = asyncio.create_task(untied_engine.generate(ask("cancelled", cap=2000)))
    released = asyncio.create_task(untied_engine.generate(ask("released", cap=2000)))
    await asyncio.sleep(0.3)
    cancelled.cancel()
    untied_engine.release("released")
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert (await released).finish is FinishReason.ABORTED
    assert await unfinished(untied_engine) == 0


async def unfinished(engine) -> int:
    """Requests that vLLM still works on."""
    await asyncio.sleep(0.2)
    return engine.llm.get_num_unfinished_requests()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GenerationRequest("t", (), 3, seed=0), "no ids"),
        (GenerationRequest("t", (1,), 0, seed=0), "max_new_tokens is 0"),
        (GenerationRequest("t", (1, 9999), 3, seed=0), "9999, the model's vocabulary has 264"),
        (GenerationRequest("t", (1,), 3, seed=0, sampling=Sampling(-1.0)), "temperature is -1"),
    ],
)
async def test_bad_requests_are_refused(untied_engine, request_, message):
    with pytest.raises(ValueError, match=message):
        await untied_engine.generate(request_)


async def test_new_weights_reach_a_running_turn_and_each_token_keeps_the_version_that_sampled_it(untied_engine):
    before, after = untied_model(seed=4), untied_model(seed=5)
    version = untied_engine.weight_version + 1
    await untied_engine.load_weights(before.named_parameters(), version)
    request = GenerationRequest("t", (1, 2, 3, 4), 400, seed=1, stop_at_fence=False)
    running = [
        asyncio.create_task(untied_engine.generate(GenerationRequest(f"t{n}", (n, 2, 3), 400, n, stop_at_fence=False)))
        for n in range(4)
    ]
    await asyncio.sleep(0.4)
    await untied_engine.load_weights(after.named_parameters(), version + 1)
    turns = await asyncio.gather(*running)
    assert any(set(turn.weight_versions) == {version, version + 1} for turn in turns)
    for number, turn in enumerate(turns):
        assert list(turn.weight_versions) == sorted(turn.weight_versions)
        old = plain_logprobs(before, [number, 2, 3], list(turn.ids))
        new = plain_logprobs(after, [number, 2, 3], list(turn.ids))
        expected = [(old if v == version else new)[place] for place, v in enumerate(turn.weight_versions)]
        assert turn.logprobs == pytest.approx(expected, abs=TOLERANCE)
    fresh = await untied_engine.generate(request)
    assert set(fresh.weight_versions) == {version + 1}


async def test_incomplete_weights_stop_the_engine_until_a_whole_set_comes(untied_engine):
    model = untied_model(seed=6)
    version = untied_engine.weight_version
    some = [(name, value) for name, value in model.named_parameters() if "layers.1.mlp.up" not in name]
    with pytest.raises(InfrastructureError, match=r"layers\.1\.mlp\.up_proj"):
        await untied_engine.load_weights(some, version + 1)
    with pytest.raises(InfrastructureError, match="loading weights of version"):
        await untied_engine.generate(ask())
    await untied_engine.load_weights(model.named_parameters(), version + 2)
    turn = await untied_engine.generate(ask(cap=5, stop_at_fence=False))
    assert turn.logprobs == pytest.approx(plain_logprobs(model, [65, START], list(turn.ids)), abs=TOLERANCE)


async def test_log_probs_of_an_untied_model_at_other_temperatures(untied_engine):
    model = untied_model(seed=7)
    await untied_engine.load_weights(model.named_parameters(), untied_engine.weight_version + 1)
    for temperature in (0.0, 0.7, 1.0):
        turn = await untied_engine.generate(
            GenerationRequest("t", (9, 8, 7), 50, 3, Sampling(temperature), stop_at_fence=False)
        )
        expected = plain_logprobs(model, [9, 8, 7], list(turn.ids), temperature)
        assert turn.logprobs == pytest.approx(expected, abs=TOLERANCE)


async def test_tied_weights_change_head_and_embedding_alike(engine, shipped):
    import copy

    import torch

    model = copy.deepcopy(shipped[0])
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    await engine.load_weights(model.named_parameters(), 1)
    turn = await engine.generate(GenerationRequest("t", (5, 6, 7, 8), 40, 0, stop_at_fence=False))
    assert turn.logprobs == pytest.approx(plain_logprobs(model, [5, 6, 7, 8], list(turn.ids)), abs=TOLERANCE)
    await engine.load_weights(shipped[0].named_parameters(), 2)
    turn = await engine.generate(GenerationRequest("t", (5, 6, 7, 8), 40, 0, stop_at_fence=False))
    assert turn.logprobs == pytest.approx(plain_logprobs(shipped[0], [5, 6, 7, 8], list(turn.ids)), abs=TOLERANCE)
