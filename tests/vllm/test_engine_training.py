"""`agent-rl train` with vLLM rollouts: two small steps of the quickstart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_rl.cli import app
from agent_rl.records.schema import Record
from agent_rl.records.shards import read_records
from agent_rl.types import Origin

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
SMALL = [
    "engine.kind=vllm", "engine.max_rows=64", "engine.kv_budget_mb=256", "engine.prefill_tokens=2048",
    "engine.vllm.placement=colocated", "steps=2", "problems_per_step=4", "samples_per_problem=4", "evals={}",
    "sandbox.slots=1", "threads=1", "trackers.tensorboard=false",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(requires_vllm, tmp_path_factory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    done = CliRunner().invoke(app, ["train", str(QUICKSTART), *SMALL, f"runs_dir={runs}"])
    assert done.exit_code == 0, done.output
    assert "engine: 1 vLLM engine, colocated with the learner" in done.output
    return runs / "quickstart"


def test_each_step_learns_from_tokens_of_the_weights_before_it(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "learner/grad_norm" in row]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["learner/grad_norm"] > 0 for row in steps)


def test_sampled_tokens_carry_the_version_that_sampled_them(run):
    found: dict[int, set[int]] = {}
    for file in sorted((run / "trajectories").rglob("*.jsonl.zst")):
        for plain in read_records(file):
            record = Record.model_validate(plain)
            for segment in record.trajectory().segments:
                if segment.origin is Origin.MODEL:
                    found.setdefault(record.step, set()).update(segment.weight_versions)
    assert found == {1: {0}, 2: {1}}


def test_a_dry_run_names_the_engine_and_what_it_cannot_do(requires_vllm):
    told = CliRunner().invoke(app, ["train", str(QUICKSTART), "engine.kind=vllm", "engine.vllm.engines=2", "--dry-run"])
    assert told.exit_code == 0, told.output
    assert "engine: 2 vLLM engines, side by side with the learner" in told.output
    refused = CliRunner().invoke(app, ["train", str(QUICKSTART), "engine.kind=remote", "--dry-run"])
    assert refused.exit_code == 2
    assert "training cannot change" in refused.output
