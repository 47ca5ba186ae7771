"""Two FSDP2 ranks over gloo do what one rank does, to 1e-6, and write the same checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.ranks import said_by_ranks

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """{ranks: what rank 0 reports}, from one run of this file with one process and one with two."""
    found = {}
    for ranks in (1, 2):
        folder = tmp_path_factory.mktemp(f"ranks-{ranks}")
        said = said_by_ranks(__file__, ranks, folder)
        found[ranks] = {**said[0], "folder": folder}
        for other in said[1:]:
            assert other["reports"] == found[ranks]["reports"]
    return found


def test_weights_are_really_sharded(results):
    assert results[2]["local_share"] == pytest.approx(0.5, abs=0.02) and results[1]["local_share"] == 1.0


def test_losses_norms_and_diagnostics_are_equal(results):
    one, two = results[1]["reports"], results[2]["reports"]
    assert len(one) == 8
    for mine, theirs in zip(one, two, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            if name.startswith("log_ratio_m"):
                continue  # extremes: which of nearly equal ratios is the largest may differ
            assert mine[name] == pytest.approx(theirs[name], abs=1e-6, rel=1e-5), name


def test_gradients_and_first_weights_are_equal(results):
    for file, tolerance in (("gradients.pt", 1e-6), ("logprobs.pt", 1e-5)):
        one, two = (torch.load(results[ranks]["folder"] / file) for ranks in (1, 2))
        assert one.keys() == two.keys() and one
        for name in one:
            torch.testing.assert_close(
                one[name], two[name], atol=tolerance, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_what_each_update_did_to_each_token_is_known_of_all_ranks_rows(results):
    one, two = (torch.load(results[ranks]["folder"] / "details.pt") for ranks in (1, 2))
    for mine, theirs in zip(one, two, strict=True):
        assert mine.keys() == theirs.keys() and mine
        for row in mine:
            assert mine[row].keys() == theirs[row].keys()
            for name in mine[row]:
                torch.testing.assert_close(
                    mine[row][name], theirs[row][name], atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
                )


def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_update_on_all(results):
    for ranks in (1, 2):
        assert results[ranks]["poisoned"] == {"applied": False, "nonfinite": True, "skipped": 1}


def test_the_checkpoint_of_two_ranks_resumes_on_two_and_loads_anywhere(results):
    from transformers import AutoModelForCausalLM

    assert results[2]["resumed_equal"] and results[1]["resumed_equal"]
    models = [AutoModelForCausalLM.from_pretrained(results[r]["folder"] / "step-00000001" / "model") for r in (1, 2)]
    for mine, theirs in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)


def test_resuming_with_another_number_of_ranks_is_refused(results):
    from agent_rl.learner.checkpoint import CheckpointError, load
    from agent_rl.learner.update import Learner
    from tests.learner_cases import recipe, settings, tiny_llama

    with pytest.raises(CheckpointError, match="was made by 2 ranks and is resumed by 1"):
        load(results[2]["folder"] / "step-00000001", Learner(tiny_llama(), recipe(), settings()), {"data": "d"})


def main(rank: int, ranks: int, folder: Path) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    from agent_rl.learner import sharding
    from agent_rl.learner.checkpoint import load, save
    from agent_rl.learner.update import Learner
    from tests.learner_cases import recipe, settings, tiny_llama, uneven_batch

    if ranks > 1:
        store = dist.FileStore(str(folder / "store"), ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
    chosen = recipe("ctpo_cppo", reference_kl={"beta": 0.1})
    given = settings(updates_per_batch=4, epochs=2, micro_batch_tokens=60)

    def learner() -> Learner:
        return Learner(tiny_llama(), chosen, given)

    def whole_weights(owner: Learner) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in owner.full_state()}

    found: dict[str, torch.Tensor] = {}
    owner = learner()
    local = sum(sharding_local(p).numel() for p in owner.model.parameters())
    total = sum(p.numel() for p in owner.model.parameters())

    def keep(*_: object) -> None:
        if not found:
            found.update({name: sharding.whole(p.grad).clone() for name, p in owner.model.named_parameters()})

    owner.optimizer.register_step_pre_hook(keep)
    # 13 rows: the ranks get different numbers of passes, and one of them a filler.
    batch = uneven_batch([40, 12, 33, 12, 25, 40, 17, 9, 50, 11, 21, 8, 30])
    before = owner.old_logprobs(batch)
    reports = owner.train_on(batch, seed=0, with_details=True)
    save(folder, 1, owner, None, {"at": 1}, fingerprints={"data": "d"})
    if rank == 0:
        torch.save(found, folder / "gradients.pt")
        torch.save(before, folder / "logprobs.pt")
        torch.save([report.details for report in reports], folder / "details.pt")

    other = learner()
    load(folder / "step-00000001", other, {"data": "d"})
    next_batch = uneven_batch([22, 9, 31, 14, 60], seed=4)
    owner.train_on(next_batch, seed=1)
    other.train_on(next_batch, seed=1)
    mine, theirs = whole_weights(owner), whole_weights(other)
    resumed_equal = all(torch.equal(mine[name], theirs[name]) for name in mine)

    if rank == ranks - 1:
        other.model.model.norm.register_forward_hook(lambda *found: found[-1] * float("nan"))
    poisoned = other.update(batch, reference=other.reference_logprobs(batch))
    numbers = [{"loss": r.loss, "grad_norm": r.grad_norm, "lr": r.lr, **r.diagnostics} for r in reports]
    print(
        json.dumps(
            {
                "reports": numbers,
                "local_share": local / total,
                "resumed_equal": resumed_equal,
                "poisoned": {
                    "applied": poisoned.applied, "nonfinite": poisoned.nonfinite, "skipped": other.skipped,
                },
            }
        )
    )  # fmt: skip
    if ranks > 1:
        dist.destroy_process_group()


def sharding_local(parameter: torch.Tensor) -> torch.Tensor:
    """This rank's part of a parameter."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
