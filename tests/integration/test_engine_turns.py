"""How a turn ends: end of sequence, fence, caps, deadline, cancellation, release."""

from __future__ import annotations

import asyncio
import time

import pytest

from agent_rl.engines.base import GenerationRequest, Sampling
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.transformers import TransformersEngine
from agent_rl.tir.fence import FenceScanner
from agent_rl.types import FinishReason
from tests.engine_models import EOS, byte_tokenizer, say, tiny_model

TOKENIZER = byte_tokenizer()
PROMPT = (65, 66, 67)


def _saying(ids: list[int], **changes: object) -> TransformersEngine:
    """An engine whose greedy reply to `PROMPT` is `ids`."""
    model = tiny_model()
    say(model, ids, start=len(PROMPT) - 1)
    return TransformersEngine(model, TOKENIZER, scanner=FenceScanner, settings=EngineSettings(**changes))


def _ask(name: str = "t", cap: int = 100, **changes: object) -> GenerationRequest:
    return GenerationRequest(name, PROMPT, cap, seed=0, sampling=Sampling(0.0), **changes)


def _encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


async def test_the_end_of_sequence_token_ends_the_turn_and_is_part_of_it() -> None:
    engine = _saying([*_encode("hello"), EOS])
    generation = await engine.generate(_ask())
    await engine.close()
    assert generation.finish is FinishReason.EOS
    assert list(generation.ids) == [*_encode("hello"), EOS]


async def test_each_of_several_end_ids_ends_the_turn() -> None:
    for end in (EOS, 33):
        model = tiny_model()
        say(model, [70, 71, end], start=len(PROMPT) - 1)
        engine = TransformersEngine(model, TOKENIZER, eos_ids=[EOS, 33], scanner=FenceScanner)
        generation = await engine.generate(_ask())
        await engine.close()
        assert (generation.finish, generation.ids) == (FinishReason.EOS, (70, 71, end))


BLOCK = "so\n```python\nprint('`')\nx = '```'\n"


@pytest.mark.parametrize(
    "closing",
    [_encode("`") * 3, [258, *_encode("`")], [*_encode("`"), 258], [257], [258, 259]],
    ids=["one by one", "two and one", "one and two", "at once", "with surplus"],
)
async def test_generation_stops_at_the_token_that_completes_the_closing_fence(closing: list[int]) -> None:
    said = [*_encode(BLOCK), *closing]
    engine = _saying([*said, *_encode("\nmore"), EOS])
    generation = await engine.generate(_ask())
    await engine.close()
    assert generation.finish is FinishReason.FENCE
    assert list(generation.ids) == said
    assert TOKENIZER.decode(generation.ids).startswith(BLOCK + "```")


async def test_a_block_that_is_not_executable_does_not_stop_generation() -> None:
    said = [*_encode("```text\nx\n```\n"), EOS]
    engine = _saying(said)
    generation = await engine.generate(_ask())
    await engine.close()
    assert (generation.finish, list(generation.ids)) == (FinishReason.EOS, said)


async def test_a_request_may_switch_the_fence_off() -> None:
    said = [*_encode(BLOCK + "```"), EOS]
    engine = _saying(said)
    generation = await engine.generate(_ask(stop_at_fence=False))
    await engine.close()
    assert (generation.finish, list(generation.ids)) == (FinishReason.EOS, said)


@pytest.mark.parametrize("cap", [1, 2, 7])
async def test_the_cap_counts_sampled_tokens(cap: int) -> None:
    engine = _saying([70])
    generation = await engine.generate(_ask(cap=cap))
    await engine.close()
    assert (generation.finish, generation.ids) == (FinishReason.LENGTH, (70,) * cap)


async def test_the_context_cap_counts_all_tokens() -> None:
    engine = _saying([70], max_length=10)
    generation = await engine.generate(_ask())
    assert (generation.finish, len(generation.ids)) == (FinishReason.LENGTH, 10 - len(PROMPT))
    with pytest.raises(ValueError, match="max_length"):
        await engine.generate(GenerationRequest("u", (1,) * 10, 1, seed=0, stop_at_fence=False))
    await engine.close()


async def test_a_deadline_returns_what_there_is() -> None:
    model = tiny_model(max_position_embeddings=100_000)
    engine = TransformersEngine(model, TOKENIZER, eos_ids=())
    await engine.generate(GenerationRequest("warm", PROMPT, 2, seed=0, stop_at_fence=False))
    request = GenerationRequest("t", PROMPT, 90_000, seed=0, stop_at_fence=False, deadline=time.monotonic() + 1.0)
    generation = await asyncio.wait_for(engine.generate(request), 60)
    assert generation.finish is FinishReason.ABORTED
    assert 0 < len(generation.ids) == len(generation.logprobs) == len(generation.weight_versions) < 90_000
    late = GenerationRequest("u", PROMPT, 5, seed=0, stop_at_fence=False, deadline=time.monotonic() - 1)
    assert (await engine.generate(late)).finish is FinishReason.ABORTED
    await engine.close()


async def test_a_cancelled_task_frees_its_row() -> None:
    engine = TransformersEngine(
        tiny_model(max_position_embeddings=100_000), TOKENIZER, eos_ids=(), settings=EngineSettings(max_rows=1)
    )
    endless = GenerationRequest("t", PROMPT, 90_000, seed=0, stop_at_fence=False)
    task = asyncio.create_task(engine.generate(endless))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    short = GenerationRequest("u", PROMPT, 3, seed=0, stop_at_fence=False)
    assert len((await asyncio.wait_for(engine.generate(short), 60)).ids) == 3
    await engine.close()


async def test_release_aborts_what_runs_under_the_name() -> None:
    engine = TransformersEngine(tiny_model(max_position_embeddings=100_000), TOKENIZER, eos_ids=())
    task = asyncio.create_task(engine.generate(GenerationRequest("t", PROMPT, 90_000, seed=0, stop_at_fence=False)))
    await asyncio.sleep(0.1)
    engine.release("t")
    assert (await asyncio.wait_for(task, 60)).finish is FinishReason.ABORTED
    await engine.close()


async def test_a_context_that_does_not_extend_the_earlier_one_is_computed_anew() -> None:
    engine = TransformersEngine(tiny_model(), TOKENIZER, eos_ids=())
    first = GenerationRequest("t", (65, 66, 67, 68, 69), 4, seed=1, stop_at_fence=False)
    await engine.generate(first)
    other = GenerationRequest("t", (65, 66, 90, 91), 6, seed=2, stop_at_fence=False)
    changed = await engine.generate(other)
    engine.release("t")
    assert changed.ids == (await engine.generate(other)).ids
    await engine.close()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GenerationRequest("t", (), 3, seed=0, stop_at_fence=False), "no ids"),
        (GenerationRequest("t", (1,), 0, seed=0, stop_at_fence=False), "max_new_tokens is 0"),
        (GenerationRequest("t", (1, 9999), 3, seed=0, stop_at_fence=False), "9999, the model's vocabulary has 264"),
        (GenerationRequest("t", (1,), 3, seed=0), "without a scanner"),
        (GenerationRequest("t", (1,), 3, seed=0, sampling=Sampling(-1.0)), "temperature is -1"),
        (GenerationRequest("t", (1,), 3, seed=0, sampling=Sampling(float("nan"))), "temperature is nan"),
        (GenerationRequest("t", (1,), 3, seed=0, sampling=Sampling(top_p=0.0)), "top_p is 0"),
        (GenerationRequest("t", (1,), 3, seed=0, sampling=Sampling(top_k=-1)), "top_k is -1"),
    ],
)
async def test_bad_requests_are_refused_before_they_reach_the_batch(request_: GenerationRequest, message: str) -> None:
    engine = TransformersEngine(tiny_model(), TOKENIZER)
    with pytest.raises(ValueError, match=message):
        await engine.generate(request_)
    assert (await engine.generate(GenerationRequest("t", (1,), 1, seed=0, stop_at_fence=False))).ids
    await engine.close()
