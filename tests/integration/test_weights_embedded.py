"""Hand-overs to the embedded engine: what arrives is proved, what does not arrive is caught by name."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_rl.engines.base import GenerationRequest
from agent_rl.weights.build import target_of
from agent_rl.weights.errors import SyncError
from agent_rl.weights.proof import SyncLog
from agent_rl.weights.sync import WeightSync
from tests.weights_cases import Spoiled, embedded, move


@pytest.mark.parametrize("kind", ["llama-tied", "llama-untied", "qwen3", "gemma3"])
async def test_four_updates_in_a_row_are_served_as_sent(kind: str) -> None:
    owner, engine, sync = embedded(kind)
    totals = set()
    for version in range(4):
        move(owner, version)
        proof = await sync.hand_over(version)
        assert proof.ok
        assert proof.engines[0].total == proof.total
        assert proof.engines[0].canary.mean < 1e-4
        assert proof.changed == len(proof.tensors)
        assert proof.metrics()["sync/checksum_ok"] == 1.0
        totals.add(proof.total)
    assert len(totals) == 4
    target, dtypes = target_of(engine)
    assert set(dtypes) == set((await target.served()).tensors)
    assert set(dtypes.values()) == {torch.float32}
    assert engine.weight_version == 3
    await engine.close()


async def test_weights_that_did_not_change_are_no_fault() -> None:
    _, engine, sync = embedded()
    for version in range(2):
        proof = await sync.hand_over(version)
    assert proof.ok
    assert proof.changed == 0
    await engine.close()


async def test_a_low_precision_engine_is_compared_in_its_own_format() -> None:
    owner, engine, sync = embedded(dtype=torch.bfloat16, canary_limit=0.3)  # a random model's logits are large
    for version in range(3):
        move(owner, version)
        proof = await sync.hand_over(version)
        assert proof.engines[0].total == proof.total
        assert 1e-4 < proof.engines[0].canary.mean < proof.engines[0].canary.limit == 0.3
    await engine.close()


async def test_merged_adapters_are_served() -> None:
    owner, engine, sync = embedded(lora=True)
    for version in range(3):
        proof = await sync.hand_over(version)
        assert proof.ok
        assert proof.changed == (14 if version else len(proof.tensors))  # 7 linear layers in each of 2 layers
        move(owner, version)
    await engine.close()


def _stale_head(old: dict[str, torch.Tensor]) -> dict[str, Any]:
    def after(model: Any) -> None:
        model.lm_head.weight = torch.nn.Parameter(old["lm_head.weight"])

    return {"after": after}


def _skipped(old: dict[str, torch.Tensor]) -> dict[str, Any]:
    name = "model.layers.1.self_attn.k_proj.weight"
    return {"stream": lambda weights: [(n, old[n] if n == name else t) for n, t in weights]}


def _swapped(old: dict[str, torch.Tensor]) -> dict[str, Any]:
    def swap(name: str) -> str:
        return re.sub(r"layers\.([01])\.", lambda found: f"layers.{1 - int(found[1])}.", name)

    return {"stream": lambda weights: [(swap(name), tensor) for name, tensor in weights]}


def _half(old: dict[str, torch.Tensor]) -> dict[str, Any]:
    def stream(weights: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
        middle = len(weights) // 2
        return [(name, tensor if place < middle else old[name]) for place, (name, tensor) in enumerate(weights)]

    return {"stream": stream}


CASES = [
    (_stale_head, "stale_head: lm_head.weight is tied to model.embed_tokens.weight"),
    (_skipped, "skipped: model.layers.1.self_attn.k_proj.weight"),
    (_swapped, "swapped: model.layers.0.self_attn.q_proj.weight is served with the weights of model.layers.1"),
    (_half, "half_update: the update to version 2 stopped half-way"),
]


@pytest.mark.parametrize(("spoil", "message"), CASES, ids=["stale head", "skipped", "swapped", "half"])
async def test_each_corruption_is_caught_by_name(spoil: Any, message: str, tmp_path: Path) -> None:
    owner, engine, sync = embedded()
    sync.log = SyncLog(tmp_path)
    await sync.hand_over(1)
    old = {name: tensor.clone() for name, tensor in engine.model.state_dict().items()}
    move(owner, 1)
    sync = _with_carrier(sync, Spoiled(engine, **spoil(old)))
    with pytest.raises(SyncError, match="engine transformers") as caught:
        await sync.hand_over(2)
    assert message in str(caught.value)
    assert "--resume" in str(caught.value)
    first, second = sync.log.read()
    assert first.ok
    assert not second.ok
    assert second.engines[0].wrong
    assert second.engines[0].total != second.total
    assert second.metrics()["sync/checksum_ok"] == 0.0
    await engine.close()


async def test_an_adapter_that_never_arrived_is_caught_by_name() -> None:
    owner, engine, sync = embedded(lora=True)
    await sync.hand_over(1)
    old = {name: tensor.clone() for name, tensor in engine.model.state_dict().items()}
    move(owner, 1)
    carrier = Spoiled(engine, stream=lambda weights: [(name, old[name]) for name, _ in weights])
    with pytest.raises(SyncError, match="adapter_missing: the adapter of version 2 never arrived"):
        await _with_carrier(sync, carrier).hand_over(2)
    await engine.close()


@pytest.mark.parametrize(
    ("stream", "named"),
    [
        (lambda weights: weights[:-1], "model.norm.weight"),
        (lambda weights: weights[: len(weights) // 2], "half|parameters of LlamaForCausalLM were not given"),
    ],
    ids=["one left out", "half left out"],
)
async def test_tensors_that_were_not_sent_at_all_are_refused_by_the_engine(stream: Any, named: str) -> None:
    owner, engine, sync = embedded()
    await sync.hand_over(1)
    move(owner, 1)
    with pytest.raises(SyncError, match=named):
        await _with_carrier(sync, Spoiled(engine, stream=stream)).hand_over(2)
    await engine.close()


async def test_the_canary_alone_sees_an_engine_that_computes_something_else() -> None:
    owner, engine, sync = embedded(checksums=False)
    await sync.hand_over(1)
    move(owner, 1, size=0.2)

    def rig(_: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output * 1.5

    engine.model.model.norm.register_forward_hook(rig)
    with pytest.raises(SyncError, match=r"canary: log-probs of \d+ canary tokens differ"):
        await sync.hand_over(2)
    await engine.close()


async def test_a_cache_of_older_weights_is_seen_by_the_canary() -> None:
    """Checksums are right, and yet a part of the context was computed with the weights before."""
    owner, engine, sync = embedded(canary_new_tokens=4)
    await sync.hand_over(1)
    move(owner, 1, size=0.2)
    keep = engine._scheduler._table.drop_all
    await engine.generate(_first_canary(sync))
    engine._scheduler._table.drop_all = list
    with pytest.raises(SyncError, match="canary: log-probs") as caught:
        await sync.hand_over(2)
    assert caught.value.proof.engines[0].wrong == {}
    engine._scheduler._table.drop_all = keep
    await engine.close()


async def test_another_version_than_the_one_sent_is_named() -> None:
    _, engine, sync = embedded()

    class Late:
        async def carry(self, weights: Any, version: int) -> None:
            await engine.load_weights(weights, version - 1)

    with pytest.raises(SyncError, match="version: it says that it serves version 1, 2 was sent"):
        await _with_carrier(sync, Late()).hand_over(2)
    await engine.close()


async def test_an_engine_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    _, engine, sync = embedded(timeout_s=0.3)

    class Never:
        async def carry(self, weights: Any, version: int) -> None:
            await asyncio.Event().wait()

    with pytest.raises(SyncError, match=r"longer than sync.timeout_s = 0.3 s"):
        await _with_carrier(sync, Never()).hand_over(2)
    await engine.close()


def test_the_log_drops_versions_that_are_made_again_and_a_cut_line(tmp_path: Path) -> None:
    async def record() -> None:
        owner, engine, sync = embedded()
        sync.log = SyncLog(tmp_path)
        for version in range(4):
            move(owner, version)
            await sync.hand_over(version)
        await engine.close()

    asyncio.run(record())
    log = SyncLog(tmp_path)
    with open(log.path, "a") as file:
        file.write('{"version": 4, "to')
    log.drop_after(2)
    assert [proof.version for proof in log.read()] == [0, 1, 2]


def _with_carrier(sync: WeightSync, carrier: Any) -> WeightSync:
    sync._carrier = carrier
    return sync


def _first_canary(sync: WeightSync) -> Any:
    return GenerationRequest("canary/2/0", sync._prompts[0], 1, seed=0, stop_at_fence=False)
