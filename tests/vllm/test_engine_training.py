"""`agent-rl train` with vLLM rollouts: small steps of the quickstart, and Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
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
    "engine.vllm.placement=colocated", "steps=1000", "problems_per_step=4", "samples_per_problem=4", "evals={}",
    "sandbox.slots=1", "threads=1", "trackers.tensorboard=false",
]  # fmt: skip


WAIT_S = 600


@pytest.fixture(scope="module")
def ended(requires_vllm, tmp_path_factory) -> tuple[Path, int, str]:
    """A run that was stopped by Ctrl-C, which all its processes get, after two steps: folder, exit status, output."""
    runs = tmp_path_factory.mktemp("runs")
    with (runs / "log").open("w") as out:
        trainer = subprocess.Popen(
            [sys.executable, "-m", "agent_rl.cli", "train", str(QUICKSTART), *SMALL, f"runs_dir={runs}"],
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    limit = time.monotonic() + WAIT_S
    metrics = runs / "quickstart" / "metrics.jsonl"
    try:
        while trainer.poll() is None and len(learnt(metrics)) < 2 and time.monotonic() < limit:
            time.sleep(0.2)
        os.killpg(trainer.pid, signal.SIGINT)
        status = trainer.wait(WAIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(trainer.pid, signal.SIGKILL)
    return runs / "quickstart", status, (runs / "log").read_text()


def learnt(metrics: Path) -> list[dict]:
    """Rows of finished steps."""
    if not metrics.exists():
        return []
    rows = [json.loads(line) for line in metrics.read_text().splitlines() if line.endswith("}")]
    return [row for row in rows if "learner/grad_norm" in row]


@pytest.fixture(scope="module")
def run(ended) -> Path:
    return ended[0]


def test_ctrl_c_ends_it_after_a_whole_step_with_a_checkpoint(ended):
    folder, status, output = ended
    assert status == 130, output
    assert "engine: 1 vLLM engine, colocated with the learner" in output
    assert "go on with: agent-rl train --resume" in output
    assert list((folder / "checkpoints").glob("step-*/complete.json"))


def test_each_step_learns_from_tokens_of_the_weights_before_it(run):
    steps = learnt(run / "metrics.jsonl")[:2]
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
    assert (found[1], found[2]) == ({0}, {1})


def test_a_dry_run_names_the_engine_and_what_it_cannot_do(requires_vllm):
    told = CliRunner().invoke(app, ["train", str(QUICKSTART), "engine.kind=vllm", "engine.vllm.engines=2", "--dry-run"])
    assert told.exit_code == 0, told.output
    assert "engine: 2 vLLM engines, side by side with the learner" in told.output
    refused = CliRunner().invoke(app, ["train", str(QUICKSTART), "engine.kind=remote", "--dry-run"])
    assert refused.exit_code == 2
    assert "training cannot change" in refused.output
