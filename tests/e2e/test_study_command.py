"""`agent-rl study`: runs, a table, going on where it stopped; a mistake is told before anything runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from agent_rl.cli import app

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file = tmp_path / "study.yaml"
    small = {
        "steps": 1, "problems_per_step": 2, "samples_per_problem": 2, "learner.updates_per_batch": 1, "data.count": 16,
        "evals": {"eval": {"data": {"families": [], "count": 4, "seed": 2}, "every": 0}}, "threads": 1,
        "sandbox.slots": 1, "trackers.tensorboard": False,
    }  # fmt: skip
    study = {
        "output": str(tmp_path / "out"), "base": "configs/quickstart.yaml", "vary": {"method.preset": ["grpo", "none"]},
        "seeds": [0], "overrides": small,
    }  # fmt: skip
    file.write_text(yaml.safe_dump(study))
    return file


def test_a_study_runs_every_variant_writes_the_table_and_does_not_run_again(config, tmp_path):
    done = CliRunner().invoke(app, ["study", str(config)])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "out" / "study.json").read_text())["runs"]
    assert [run["variant"] for run in found] == ["grpo", "none"]
    for run in found:
        assert {"eval/accuracy_sampled", "without tools", "clipped", "processor minutes"} <= run["figures"].keys()
    assert "| grpo | 1 |" in (tmp_path / "out" / "study.md").read_text()
    before = os.stat(tmp_path / "out" / "grpo-seed0.log").st_mtime_ns
    again = CliRunner().invoke(app, ["study", str(config)])
    assert again.exit_code == 0 and again.output.count("is there") == 2
    assert os.stat(tmp_path / "out" / "grpo-seed0.log").st_mtime_ns == before


def test_a_mistake_in_the_last_variant_is_told_before_the_first_runs(config, tmp_path):
    refused = CliRunner().invoke(app, ["study", str(config), "vary={method.preset: [grpo, ctpoo]}"])
    assert refused.exit_code == 2
    assert not (tmp_path / "out").exists()
