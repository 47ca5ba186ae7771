"""The scripted engine keeps the contract of a real one."""

from __future__ import annotations

import asyncio
import time

import pytest

from agent_rl.engines.base import GenerationRequest
from agent_rl.engines.scripted import ScriptedEngine
from agent_rl.tir.fence import FenceScanner
from agent_rl.types import FinishReason, InfrastructureError
from tests.engine_models import EOS, byte_tokenizer

TOKENIZER = byte_tokenizer()
BLOCK = "```py\nprint(1)\n```"


def _ask(name: str = "t", cap: int = 100, **changes: object) -> GenerationRequest:
    return GenerationRequest(name, (65,), cap, seed=0, **changes)


async def test_the_replies_of_a_list_answer_the_turns_of_every_trajectory() -> None:
    engine = ScriptedEngine(TOKENIZER, ["one", "two"], scanner=FenceScanner)
    for name in ("a", "b"):
        for text in ("one", "two"):
            generation = await engine.generate(_ask(name))
            assert TOKENIZER.decode(generation.ids) == text + "<eos>"
            assert generation.finish is FinishReason.EOS
    with pytest.raises(InfrastructureError, match=r"2 replies.*turn 3"):
        await engine.generate(_ask("a"))
    assert [request.trajectory for request in engine.requests] == ["a", "a", "b", "b", "a"]


async def test_fence_cap_and_ids_are_honoured() -> None:
    engine = ScriptedEngine(TOKENIZER, {"f": [BLOCK + "tail"], "c": ["abcdef"], "i": [[70, 71]]}, scanner=FenceScanner)
    fence = await engine.generate(_ask("f"))
    assert (fence.finish, TOKENIZER.decode(fence.ids)) == (FinishReason.FENCE, BLOCK)
    cap = await engine.generate(_ask("c", cap=3))
    assert (cap.finish, TOKENIZER.decode(cap.ids)) == (FinishReason.LENGTH, "abc")
    ids = await engine.generate(_ask("i"))
    assert (ids.finish, ids.ids) == (FinishReason.LENGTH, (70, 71))
    free = ScriptedEngine(TOKENIZER, [BLOCK + "x"])
    assert (await free.generate(_ask(stop_at_fence=False))).ids[-1] == EOS
    with pytest.raises(ValueError, match="scanner"):
        await free.generate(_ask())


async def test_functions_logprobs_versions_and_errors() -> None:
    async def script(request: GenerationRequest, turn: int) -> str | Exception:
        return InfrastructureError("engine", "planned") if turn == 1 else f"turn {turn}"

    engine = ScriptedEngine(
        TOKENIZER, script, scanner=FenceScanner, logprob=lambda name, turn, index: -float(index), version=3
    )
    first = await engine.generate(_ask())
    assert first.logprobs == tuple(-float(i) for i in range(len(first.ids)))
    assert set(first.weight_versions) == {3}
    with pytest.raises(InfrastructureError, match="planned"):
        await engine.generate(_ask())
    await engine.load_weights((), 4)
    assert set((await engine.generate(_ask())).weight_versions) == {4} == {engine.weight_version}
    engine.expect(["t"])
    engine.release("t")
    assert (engine.expected, engine.released) == (["t"], ["t"])
    await engine.close()
    with pytest.raises(InfrastructureError, match="closed"):
        await engine.generate(_ask())


async def test_latency_and_deadline() -> None:
    engine = ScriptedEngine(
        TOKENIZER,
        ["x"] * 9,
        scanner=FenceScanner,
        latency=lambda request, turn: 0.05 if request.trajectory == "t" else 60,
    )
    begun = time.monotonic()
    await asyncio.gather(*(engine.generate(_ask()) for _ in range(5)))
    assert time.monotonic() - begun >= 0.05
    late = await asyncio.wait_for(engine.generate(_ask("slow", deadline=time.monotonic() + 0.05)), 30)
    assert (late.finish, late.ids) == (FinishReason.ABORTED, ())
