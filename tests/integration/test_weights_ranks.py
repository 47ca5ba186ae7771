"""Two FSDP2 ranks over gloo hand the same weights over, with the same proof, as one rank does."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.ranks import said_by_ranks

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[int, list[list[dict]]]:
    """{ranks: what each of them reports}."""
    found = {}
    for ranks in (1, 2):
        folder = tmp_path_factory.mktemp(f"ranks-{ranks}")
        found[ranks] = said_by_ranks(__file__, ranks, folder)
    return found


def test_sharded_weights_are_gathered_sent_and_served_as_those_of_one_rank(results) -> None:
    one, two = results[1][0], results[2][0]
    assert len(one) == len(two) == 3
    for mine, theirs in zip(one, two, strict=True):
        assert mine["tensors"] == theirs["tensors"]
        assert mine["total"] == theirs["total"] == theirs["engines"][0]["total"]
        assert theirs["engines"][0]["canary"]["mean"] < 1e-5
        assert theirs["engines"][0]["faults"] == []
    assert len({row["total"] for row in two}) == 3


def test_a_rank_without_engines_takes_part_and_reports_nothing(results) -> None:
    assert results[2][1] == [None, None, None]


async def main(rank: int, ranks: int, folder: Path) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from agent_rl.engines.transformers import TransformersEngine
    from agent_rl.learner.update import Learner
    from agent_rl.weights.settings import SyncSettings
    from agent_rl.weights.sync import WeightSync
    from agent_rl.weights.target import DirectCarrier, EmbeddedTarget
    from tests.engine_models import byte_tokenizer
    from tests.learner_cases import VOCABULARY, recipe, settings, tiny_llama

    if ranks > 1:
        store = dist.FileStore(str(folder / "store"), ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
    owner = Learner(tiny_llama(), recipe(), settings())
    engine = TransformersEngine(tiny_llama(), byte_tokenizer(), eos_ids=()) if rank == 0 else None
    sync = WeightSync(
        owner,
        [EmbeddedTarget(engine)] if engine else [],
        DirectCarrier([engine]) if engine else None,
        SyncSettings(timeout_s=120),
        vocabulary=VOCABULARY,
        max_length=256,
    )
    rows = []
    for version in range(3):
        with torch.no_grad():
            for parameter in owner.model.parameters():
                parameter.mul_(1.0 + 0.125 * version)  # exact, however the tensor is cut
        proof = await sync.hand_over(version)
        if ranks > 1:  # scoring the canary must not leave whole tensors in the place of shards
            assert all(type(parameter.data).__name__ == "DTensor" for parameter in owner.model.parameters())
        rows.append(None if proof is None else proof.model_dump())
    if engine is not None:
        await engine.close()
    print(json.dumps(rows))
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
