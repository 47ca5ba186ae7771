"""Configuration files: extends, overrides, refusals that name the key, the value and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.config import ConfigError, dump, keys, load
from agent_rl.training.settings import RunConfig

ROOT = Path(__file__).parents[2]
MINIMAL = {"data": {"families": []}}


def written(folder: Path, name: str = "run.yaml", **values) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump({**MINIMAL, **values}))
    return path


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides, model=RunConfig)
    return str(caught.value)


def test_an_unknown_key_is_refused_with_the_nearest_name(tmp_path):
    assert "unknown key 'tir.max_turn'; did you mean 'tir.max_turns'?" in refusal(written(tmp_path), "tir.max_turn=5")


def test_an_unknown_key_that_belongs_elsewhere_is_pointed_there(tmp_path):
    assert "did you mean 'tir.max_turns'?" in refusal(written(tmp_path), "max_turns=5")


def test_every_fault_is_told_at_once(tmp_path):
    message = refusal(written(tmp_path), "steps=0", "learner.optimizer.lr=x", "bogus_key=1")
    assert "steps = 0" in message
    assert "learner.optimizer.lr = 'x'" in message
    assert "'bogus_key'" in message


def test_a_batch_that_does_not_divide_is_explained_in_one_sentence(tmp_path):
    message = refusal(written(tmp_path), "problems_per_step=3", "samples_per_problem=5", "learner.updates_per_batch=4")
    assert (
        "3 problems x 5 samples = 15 trajectories cannot be cut into learner.updates_per_batch = 4 equal updates; "
        "3 updates of 5 would do"
    ) in message


def test_later_files_and_overrides_win(tmp_path):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump({"steps": 7, "tir": {"max_turns": 2, "max_turn_tokens": 64}}))
    path = written(tmp_path, extends="base.yaml", tir={"max_turns": 3})
    config = load(path, ["tir.max_turn_tokens=96"], model=RunConfig)
    assert (config.steps, config.tir.max_turns, config.tir.max_turn_tokens) == (7, 3, 96)


def test_extends_in_a_circle_is_refused(tmp_path):
    written(tmp_path, "a.yaml", extends="b.yaml")
    written(tmp_path, "b.yaml", extends="a.yaml")
    assert "extends goes in a circle" in refusal(tmp_path / "a.yaml")


@pytest.mark.parametrize("override", ["steps", "=3", "steps.x=3", "tir=[", "steps=[1, 2]"])
def test_broken_overrides_are_refused_by_name(tmp_path, override):
    assert override.split("=")[0] in refusal(written(tmp_path, steps=5), override)


def test_a_missing_file_and_broken_yaml_are_refused_by_path(tmp_path):
    assert "absent.yaml" in refusal(tmp_path / "absent.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1")
    assert "not valid YAML" in refusal(tmp_path / "broken.yaml")


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_configurations_are_valid_and_their_dump_reads_back_equal(path, tmp_path):
    from agent_rl.evaluation.command import EvalConfig
    from agent_rl.sft.settings import SftSettings

    keys_of = yaml.safe_load(path.read_text())
    model = SftSettings if "output" in keys_of else EvalConfig if "evaluation" in keys_of else RunConfig
    config = load(path, model=model)
    (tmp_path / "resolved.yaml").write_text(dump(config))
    assert load(tmp_path / "resolved.yaml", model=model) == config


@given(st.sampled_from([k for k in keys(RunConfig) if k != "data"]), st.data())
def test_a_key_with_one_letter_missing_never_passes(key, data):
    leaf = key.rsplit(".", 1)[-1]
    at = data.draw(st.integers(0, len(leaf) - 1))
    bad = key[: len(key) - len(leaf)] + leaf[:at] + leaf[at + 1 :]
    if bad in keys(RunConfig) or bad.endswith(".") or not bad:
        return
    with pytest.raises(ConfigError):
        from agent_rl.config import _apply, validate

        values = {"data": {"families": []}}
        _apply(values, f"{bad}=1")
        validate(values, model=RunConfig)


def test_an_override_with_a_mapping_replaces_the_whole_mapping(tmp_path):
    evals = {"a": {"data": {"families": []}}, "b": {"data": {"families": []}}}
    path = written(tmp_path, evals=evals)
    assert load(path, ["evals={}"], model=RunConfig).evals == {}
    assert list(load(path, ["evals={c: {data: {families: []}}}"], model=RunConfig).evals) == ["c"]
