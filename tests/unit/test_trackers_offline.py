"""Trackers without a network: the real packages where they are installed, and a plain refusal where they are not."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agent_rl.config import ConfigError
from agent_rl.training.settings import TrackerSettings
from agent_rl.training.trackers import trackers

ROOT = Path(__file__).parents[2]
LOGGING = """
import sys
from pathlib import Path
from agent_rl.training.settings import TrackerSettings
from agent_rl.training.trackers import trackers
run = Path(sys.argv[2])
settings = TrackerSettings(tensorboard=False, project="toy", **{sys.argv[1]: True})
for start in (1, 3):  # the second time is a resumed run
    (tracker,) = trackers(settings, run, resumed_after=None if start == 1 else 2)
    for step in range(start, start + 2):
        tracker.log(step, {"eval/accuracy": step / 8, "policy/kl": float("nan") if step == 2 else 0.5})
    tracker.close()
"""


@pytest.fixture
def run(tmp_path) -> Path:
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("steps: 4\ntir:\n  max_turns: 5\n")
    return folder


def log_with(package: str, run: Path) -> str:
    """Two starts of two steps each, in a process of their own: these packages keep global state."""
    pytest.importorskip(package, reason=f"{package} is not installed (extra `trackers`)")
    done = subprocess.run(
        [sys.executable, "-c", LOGGING, package, str(run)],
        env={**os.environ, "TRACKIO_DIR": str(run / "trackio"), "WANDB_API_KEY": "", "HF_HUB_OFFLINE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wandb_writes_an_offline_run_that_holds_metrics_and_configuration(run):
    log_with("wandb", run)
    files = sorted(run.glob("wandb/offline-run-*/run-*.wandb"))
    assert files
    contents = b"".join(file.read_bytes() for file in files)
    assert b"eval/accuracy" in contents
    assert b"max_turns" in contents
    assert len({file.name for file in files}) == 1, "a resumed run goes on under its own id"


def test_mlflow_keeps_one_run_with_every_step(run, monkeypatch):
    log_with("mlflow", run)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    store = run / "mlflow.db"
    client = MlflowClient(f"sqlite:///{store}" if store.exists() else (run / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("toy")
    (kept,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(kept.info.run_id, "eval/accuracy")
    assert [(m.step, m.value) for m in history] == [(s, s / 8) for s in (1, 2, 3, 4)]
    assert kept.data.params["tir.max_turns"] == "5"
    assert [m.step for m in client.get_metric_history(kept.info.run_id, "policy/kl")] == [1, 3, 4]


def test_trackio_keeps_every_step_in_its_database(run):
    log_with("trackio", run)
    (database,) = (run / "trackio").glob("toy*.db")
    with sqlite3.connect(database) as connection:
        steps = [row[0] for row in connection.execute("select step from metrics order by step")]
    assert steps == [1, 2, 3, 4]


def test_tensorboard_drops_steps_that_are_made_again(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start, resumed in ((1, None), (2, 1)):
        (tracker,) = trackers(TrackerSettings(), run, resumed_after=resumed)
        for step in range(start, start + 2):
            tracker.log(step, {"reward": float(start)})
        tracker.close()
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward")] == [(1, 1.0), (2, 2.0), (3, 2.0)]
    assert all(math.isfinite(e.value) for e in events.Scalars("reward"))


@pytest.mark.parametrize("package", ["wandb", "trackio", "mlflow"])
def test_a_missing_package_is_refused_with_the_extra_that_brings_it(run, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)  # what the import system takes for "not there"
    settings = TrackerSettings(**{package: True})
    with pytest.raises(ConfigError, match=rf"trackers\.{package} = true needs .*agent-rl\[trackers\]"):
        trackers(settings, run, resumed_after=None)
