"""An asynchronous run on the shipped policy: staleness, kills at any moment, and what a resumed run says."""

from __future__ import annotations

import os
import random
import re
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest

from agent_rl.records.schema import Record
from agent_rl.records.shards import read_records
from tests.e2e.test_train_command import SMALL, left_over, rows, started, train, wait_for_step

ASYNC = [
    *SMALL,
    "sandbox.backend=bwrap",
    "mode=async",
    "data.count=256",
    "evals={}",
    "learner.checkpoint.every=1",
    "records.level=tokens",
]
KILLS = int(os.environ.get("AGENT_RL_KILLS", "1"))
"""Kills at random moments; more of them with a larger number."""


def trained(run: Path) -> list[Record]:
    """Every record of training, in order of steps."""
    paths = sorted((run / "trajectories").glob("train-*.zst"))
    return [Record.model_validate(row) for path in paths for row in read_records(path)]


def check(run: Path, steps: int, limit: int) -> None:
    """No step is missing, no trajectory is too old, and no problem of the first epoch was trained on twice."""
    metrics = [r for r in rows(run) if "time/step" in r]
    assert [r["step"] for r in metrics] == list(range(1, steps + 1))
    assert all(r["staleness/max"] <= limit for r in metrics)
    records = trained(run)
    for record in records:
        versions = [v for segment in record.segments for v in segment.weight_versions]
        assert all(record.step - 1 - limit <= v <= record.step - 1 for v in versions)
    seen = Counter((r.problem.id, r.sample) for r in records)
    assert set(seen.values()) == {1}
    assert len(seen) == steps * 16
    assert metrics[-1]["async/trained"] == (steps - 1) * 4


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("requires_bwrap")
def test_an_asynchronous_run_keeps_its_promises_and_a_killed_one_loses_and_repeats_nothing(tmp_path):
    rng = random.Random(os.environ.get("AGENT_RL_KILL_SEED", "7"))
    run, said, killed = tmp_path / "killed", "", 0
    process = started(tmp_path, "configs/quickstart.yaml", *ASYNC, f"steps={4 + 2 * KILLS}", "name=killed")
    for number in range(KILLS):
        wait_for_step(run, 2 + 2 * number, process)  # its first checkpoint is written
        try:
            process.wait(timeout=rng.uniform(0.0, 1.5))
        except Exception as still_running:
            assert "timed out" in str(still_running)
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            killed += 1
            process.wait()
            assert not left_over(children)
        process = started(tmp_path, "--resume", str(run))
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    check(run, 4 + 2 * KILLS, limit=2)
    if killed:
        assert re.search(
            r"\d+ finished trajectories that were not trained on are restored; \d+ that were in flight", said
        )


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("requires_bwrap")
def test_ctrl_c_keeps_what_is_finished_and_more_than_one_version_is_seen_in_a_trajectory(tmp_path):
    run = tmp_path / "stopped"
    process = started(tmp_path, "configs/quickstart.yaml", *ASYNC, "steps=40", "name=stopped")
    wait_for_step(run, 3, process)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    step = max(r["step"] for r in rows(run))
    (kept,) = (run / "unfinished").glob(f"unfinished-{step:06}-*.zst")
    waiting = {(r["problem"]["id"], r["sample"]): r["segments"] for r in read_records(kept)}
    resumed = train(tmp_path, "--resume", str(run), f"steps={step + 3}")
    assert resumed.returncode == 0, resumed.stderr
    assert f"{len(waiting)} finished trajectories that were not trained on are restored" in resumed.stdout
    check(run, step + 3, limit=2)
    again = {(r["problem"]["id"], r["sample"]): r["segments"]
             for p in sorted((run / "trajectories").glob("train-*.zst")) for r in read_records(p)}  # fmt: skip
    assert all(again[key] == segments for key, segments in waiting.items())
    versions = [{v for s in r.segments for v in s.weight_versions} for r in trained(run)]
    assert any(len(found) > 1 for found in versions), "no rollout went on over a change of weights"


def test_an_order_that_cannot_be_kept_is_refused(tmp_path):
    done = train(tmp_path, "configs/quickstart.yaml", "--dry-run", "mode=async", "deterministic=true")
    assert done.returncode == 2
    assert "mode = async depends on when rollouts end" in done.stderr
