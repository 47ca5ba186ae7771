"""Hand-overs to vLLM: three in a row move the served log-probs, and each corruption is caught by name."""

from __future__ import annotations

import copy
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
import torch

from agent_rl.learner.adapters import merged_state
from agent_rl.learner.update import Learner
from agent_rl.weights.build import target_of, weight_sync
from agent_rl.weights.canary import ask, batch_of
from agent_rl.weights.errors import SyncError
from agent_rl.weights.proof import SyncProof
from agent_rl.weights.settings import SyncSettings
from agent_rl.weights.sync import WeightSync
from tests.weights_cases import learner, lora_learner, move

Weights = list[tuple[str, torch.Tensor]]


class Case:
    """A learner that starts where the engine's model does, and the hand-over between them."""

    def __init__(self, model: Any, tokenizer: Any, engine: Any, make: Any = learner):
        self.engine, self.model = engine, model
        self.learner: Learner = make(copy.deepcopy(model))
        self.sync: WeightSync = weight_sync(
            self.learner, engine, SyncSettings(timeout_s=120), vocabulary=len(tokenizer)
        )
        self.version = engine.weight_version

    async def hand_over(self, *, seed: int | None = None) -> SyncProof:
        if seed is not None:
            move(self.learner, seed)
        self.version += 1
        return await self.sync.hand_over(self.version)

    def now(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.learner.full_state()}


@pytest_asyncio.fixture(params=["tied", "untied"], loop_scope="session")
async def case(request: Any, engine: Any, shipped: Any, untied_engine: Any, untied: Any) -> AsyncIterator[Case]:
    """The shipped model, or an untied one; afterwards the engine serves what it was started with."""
    running, (model, tokenizer, *_) = (engine, shipped) if request.param == "tied" else (untied_engine, untied)
    found = Case(model, tokenizer, running)
    yield found
    await running.load_weights(merged_state(model), found.version + 1)


async def test_updates_in_a_row_move_the_served_log_probs_to_the_trainers(case: Case) -> None:
    first = await case.hand_over()
    target, dtypes = target_of(case.engine)
    assert set(dtypes.items()) == {(name, torch.float32) for name in first.tensors}
    assert (await target.served()).tensors.keys() == first.tensors.keys() | case.sync._ties.keys()
    prompt = case.sync._prompts[0]
    for seed in range(4):
        batch = batch_of(await ask(case.engine, [prompt], new_tokens=8, temperature=1.0, version=case.version, wait=60))
        before = case.learner.old_logprobs(batch)["canary-0"]
        proof = await case.hand_over(seed=seed)
        assert proof.ok
        assert proof.engines[0].total == proof.total
        assert proof.changed == len(proof.tensors)
        assert proof.engines[0].canary.mean < 2e-5
        shift = float((case.learner.old_logprobs(batch)["canary-0"] - before).abs().max())
        assert shift > 100 * proof.engines[0].canary.mean  # an engine that had kept the old weights would show


class Spoiling:
    """The case's own carrier with another stream."""

    def __init__(self, case: Case, stream: Any):
        self._own, self._stream = case.sync._carrier, stream

    async def carry(self, weights: Iterator[tuple[str, torch.Tensor]], version: int) -> None:
        whole = [(name, tensor.clone()) for name, tensor in weights]
        await self._own.carry(iter(self._stream(whole)), version)


def _skipped(old: dict[str, torch.Tensor]) -> Any:
    name = "model.layers.1.self_attn.k_proj.weight"
    return lambda weights: [(n, old[n] if n == name else t) for n, t in weights]


def _swapped(old: dict[str, torch.Tensor]) -> Any:
    layers = dict(old)

    def stream(weights: Weights) -> Weights:
        given = dict(weights)
        return [(n, given[_other_layer(n)] if _other_layer(n) in layers else t) for n, t in weights]

    return stream


def _other_layer(name: str) -> str:
    return re.sub(r"layers\.([01])\.", lambda found: f"layers.{1 - int(found[1])}.", name)


def _half(old: dict[str, torch.Tensor]) -> Any:
    return lambda weights: [
        (name, tensor if place < len(weights) // 2 else old[name]) for place, (name, tensor) in enumerate(weights)
    ]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_skipped, "skipped: model.layers.1.self_attn.k_proj.weight"),
        (_swapped, "swapped: model.layers.0.self_attn.q_proj.weight is served with the weights of model.layers.1"),
        (_half, r"half_update: the update to version \d+ stopped half-way"),
    ],
    ids=["skipped", "swapped", "half"],
)
async def test_a_corrupted_stream_is_caught_by_name(case: Case, spoil: Any, message: str) -> None:
    await case.hand_over(seed=1)
    old = case.now()
    case.sync._carrier = Spoiling(case, spoil(old))
    with pytest.raises(SyncError, match=message) as caught:
        await case.hand_over(seed=2)
    assert "engine vllm 0" in str(caught.value)
    assert not caught.value.proof.ok


async def test_a_head_whose_packed_copy_was_not_made_anew_is_caught_by_name(case: Case, tmp_path: Any) -> None:
    """vLLM's own `reload_weights` leaves the packed copy of a tied head as it was, and says nothing."""
    await case.hand_over(seed=1)

    class Stock:
        async def carry(self, weights: Any, version: int) -> None:
            from safetensors.torch import save_file

            save_file({name: tensor.contiguous() for name, tensor in weights}, tmp_path / "model.safetensors")
            async with case.engine.new_weights(version):
                await case.engine.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(tmp_path)})

    own, case.sync._carrier = case.sync._carrier, Stock()
    if "lm_head.weight" in case.sync._ties:
        with pytest.raises(
            SyncError, match=r"stale_head: lm_head.weight is tied to model.embed_tokens.weight"
        ) as caught:
            await case.hand_over(seed=2)
        assert list(caught.value.proof.engines[0].wrong) == ["lm_head.weight"]
        assert "canary" in str(caught.value)
    else:
        assert (await case.hand_over(seed=2)).ok
    case.sync._carrier = own
    assert (await case.hand_over(seed=3)).ok  # a whole update heals it


async def test_an_update_that_is_begun_and_never_finished_is_caught_by_name(case: Case) -> None:
    await case.hand_over(seed=1)

    class Unfinished:
        async def carry(self, weights: Any, version: int) -> None:
            async with case.engine.new_weights(version):
                await case.engine.llm.start_weight_update()

    own, case.sync._carrier = case.sync._carrier, Unfinished()
    with pytest.raises(SyncError, match=r"half_update: the update to version .* was begun and never finished"):
        try:
            await case.hand_over(seed=2)
        finally:
            await case.engine.llm.finish_weight_update()
    case.sync._carrier = own
    assert (await case.hand_over(seed=3)).ok


async def test_a_cache_of_older_weights_is_seen_by_the_canary(case: Case) -> None:
    """Checksums are right; the prefix cache was not dropped."""
    await case.hand_over(seed=1)

    class KeepsCache:
        async def carry(self, weights: Any, version: int) -> None:
            hold = case.engine._hold

            async def keeping() -> None:
                await case.engine.llm.pause_generation(mode="keep", clear_cache=False)

            case.engine._hold = keeping
            try:
                await own.carry(weights, version)
            finally:
                case.engine._hold = hold

    own, case.sync._carrier = case.sync._carrier, KeepsCache()
    with pytest.raises(SyncError, match=r"canary: log-probs of \d+ canary tokens differ") as caught:
        await case.hand_over(seed=2)
    assert caught.value.proof.engines[0].wrong == {}


async def test_a_merged_adapter_is_served_and_one_that_never_arrived_is_caught_by_name(
    engine: Any, shipped: tuple[Any, Any]
) -> None:
    model, tokenizer = shipped
    case = Case(model, tokenizer, engine, lora_learner)
    for seed in range(2):
        assert (await case.hand_over(seed=seed)).ok
    old = case.now()
    case.sync._carrier = Spoiling(case, lambda weights: [(name, old[name]) for name, _ in weights])
    with pytest.raises(SyncError, match=r"adapter_missing: the adapter of version \d+ never arrived"):
        await case.hand_over(seed=3)
    await engine.load_weights(merged_state(model), case.version + 1)
