"""The configurations of the papers resolve, say what they do, and fit the hardware that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_rl.algorithms.settings import resolve
from agent_rl.config import load
from agent_rl.training.elsewhere import plan_elsewhere, shape_of
from agent_rl.training.entry import REFUSED, dry_run
from agent_rl.training.settings import RunConfig

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "papers"
SHARED = {"simpletir.yaml", "ctpo.yaml", "cppo.yaml"}
RUNS = sorted(path.name for path in FOLDER.glob("*.yaml") if path.name not in SHARED)
BATCHES = {
    "simpletir_qwen2.5_7b.yaml": (512, 16, 4, 16000),
    "simpletir_qwen2.5_32b.yaml": (512, 16, 4, 16000),
    "ctpo_qwen3_4b.yaml": (512, 8, 16, 9024),
    "ctpo_qwen3_14b.yaml": (512, 8, 16, 9024),
    "cppo_qwen3_1.7b.yaml": (64, 8, 2, 9216),
    "cppo_qwen3_1.7b_base.yaml": (64, 8, 2, 9216),
    "cppo_qwen3_8b_base.yaml": (128, 8, 4, 9216),
    "cppo_qwen3_30b_a3b_base.yaml": (256, 16, 8, 17408),
}
"""Problems, samples, updates a batch, tokens of a trajectory."""
PARAMETERS = {
    "Qwen/Qwen2.5-7B": 7.62e9,
    "Qwen/Qwen2.5-32B": 32.76e9,
    "Qwen/Qwen3-1.7B": 1.72e9,
    "Qwen/Qwen3-4B": 4.02e9,
    "Qwen/Qwen3-8B-Base": 8.19e9,
    "Qwen/Qwen3-14B": 14.77e9,
    "Qwen/Qwen3-30B-A3B-Base": 30.53e9,
}
"""As their model cards say."""


def config(name: str, *overrides: str) -> RunConfig:
    return load(FOLDER / name, overrides, model=RunConfig)


def test_every_configuration_is_covered() -> None:
    assert sorted(BATCHES) == RUNS


@pytest.mark.parametrize("name", RUNS)
def test_a_configuration_is_planned_without_the_model_the_data_or_the_hub(name: str, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = config(name)
    problems, samples, updates, tokens = BATCHES[name]
    assert (found.problems_per_step, found.samples_per_problem) == (problems, samples)
    assert (found.learner.updates_per_batch, found.tir.max_total_tokens) == (updates, tokens)
    plan = plan_elsewhere(found)
    assert plan.refusals == []
    said = "\n".join(plan.lines)
    total = problems * samples
    assert f"{problems} problems x {samples} samples = {total} trajectories -> {updates} updates of" in said
    assert f"updates of {total // updates}" in said
    assert "learner ranks (FSDP2)" in said
    assert "memory of a learner's GPU" in said
    assert "not checked here" in said


@pytest.mark.parametrize("name", RUNS)
def test_a_configuration_says_that_it_was_not_run_yet(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert "NOT YET RUN" in text
    assert f"configs/papers/{name} --dry-run" in text


def test_methods_are_those_of_the_papers() -> None:
    simpletir = resolve(config("simpletir_qwen2.5_7b.yaml").method)
    assert (simpletir.clip.eps_lo, simpletir.clip.eps_hi, simpletir.clip.dual) == (0.2, 0.28, 3.0)
    assert simpletir.aggregation.mode == "seq_mean_token_mean"
    ctpo = resolve(config("ctpo_qwen3_4b.yaml").method)
    assert (ctpo.ratio.kind, ctpo.mismatch.kind, ctpo.mismatch.cap) == ("prefix", "sequence_tis", 5.0)
    budgets = {name: resolve(config(name).method).prefix_budget for name in RUNS if name.startswith("cppo")}
    given = {name: (b.delta, b.delta_b, b.adaptive, b.w_min) for name, b in budgets.items()}
    assert given == {
        "cppo_qwen3_1.7b.yaml": (0.15, 0.015, False, 0.8),
        "cppo_qwen3_1.7b_base.yaml": (0.15, 0.02, True, 0.8),
        "cppo_qwen3_8b_base.yaml": (0.15, 0.02, True, 0.8),
        "cppo_qwen3_30b_a3b_base.yaml": (0.2, 0.02, True, 0.8),
    }


@pytest.mark.parametrize(("model", "count"), PARAMETERS.items())
def test_known_models_have_the_size_of_their_cards(model: str, count: float) -> None:
    shape, origin = shape_of(model)
    assert shape.parameters == pytest.approx(count, rel=0.004)
    assert origin == "its published configuration"


def test_a_run_that_does_not_fit_is_refused_with_what_to_change() -> None:
    small = plan_elsewhere(config("ctpo_qwen3_14b.yaml", "hardware.gpu_memory_gib=24"))
    assert any("cluster.learner_ranks" in reason for reason in small.refusals)
    assert any("tensor_parallel_size" in reason for reason in small.refusals)
    crowded = plan_elsewhere(config("ctpo_qwen3_14b.yaml", "engine.vllm.gpu_memory_utilization=0.9"))
    assert any("beside a learner's" in reason for reason in crowded.refusals)
    long = plan_elsewhere(config("ctpo_qwen3_4b.yaml", "tir.max_total_tokens=50000"))
    assert any("40960" in reason for reason in long.refusals)


def test_a_model_of_unknown_size_is_refused_in_words(monkeypatch, capsys) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = config("ctpo_qwen3_4b.yaml", "model.path=nobody/unknown-9B")
    assert dry_run(found) == REFUSED
    assert "model 'nobody/unknown-9B' is not on this machine" in capsys.readouterr().err
