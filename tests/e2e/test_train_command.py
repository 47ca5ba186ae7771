"""The command that a user types, on the shipped policy: runs, stops, dies, goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

ROOT = Path(__file__).parents[2]
SMALL = [
    "problems_per_step=4",
    "samples_per_problem=4",
    "learner.updates_per_batch=2",
    "data.count=64",
    "evals={eval: {data: {families: [], count: 8, seed: 2}, every: 2, record: 4}}",
    "tir.max_turns=2",
    "threads=1",
    "sandbox.slots=1",
]


def command(folder: Path, *arguments: str) -> list[str]:
    base = [sys.executable, "-m", "agent_rl.cli", "train", *arguments]
    return base if "--resume" in arguments else [*base, f"runs_dir={folder}"]


def train(folder: Path, *arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(folder, *arguments), capture_output=True, text=True, timeout=280, cwd=ROOT, check=False, **options
    )


def rows(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def started(folder: Path, *arguments: str) -> subprocess.Popen:
    """In a session of its own, so that a signal to its group is what Ctrl-C in a terminal is."""
    return subprocess.Popen(
        command(folder, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def wait_for_step(run: Path, step: int, process: subprocess.Popen, seconds: float = 200) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        if (run / "metrics.jsonl").exists() and any(r["step"] >= step and "time/step" in r for r in rows(run)):
            return
        time.sleep(0.05)
    process.kill()
    pytest.fail(f"step {step} was not reached: {process.stdout.read()}")


def left_over(processes: list[psutil.Process]) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(processes, timeout=20)
    return [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("runs")
    done = train(folder, "configs/quickstart.yaml", *SMALL, "steps=2", "name=small")
    assert done.returncode == 0, done.stderr + done.stdout
    return folder / "small", done.stdout


def test_a_run_says_its_arithmetic_first_and_its_result_last(finished):
    _, said = finished
    lines = said.strip().splitlines()
    assert lines[0] == "4 problems x 4 samples = 16 trajectories -> 2 updates of 8, 2 steps"
    assert lines[1].startswith("method ctpo_cppo: ratio prefix, clip sqrt_clip, prefix_budget")
    assert any(line.startswith("sandbox: our own service") for line in lines)
    assert lines[-3].startswith("held out: eval/accuracy_sampled")
    assert lines[-2].startswith("2 steps in ")
    assert "report.html" in lines[-1]


def test_a_run_folder_holds_what_is_needed_to_look_and_to_go_on(finished):
    run, _ = finished
    assert yaml.safe_load((run / "config.yaml").read_text())["learner"]["updates_per_batch"] == 2
    metrics = rows(run)
    assert [r["step"] for r in metrics if "time/step" in r] == [1, 2]
    measured = [r for r in metrics if "eval/accuracy_sampled" in r]
    assert [r["step"] for r in measured] == [0, 2]
    assert all("eval/accuracy_greedy" in r for r in measured)
    assert sorted(p.name for p in (run / "trajectories").glob("*.zst")) == [
        "eval-000000.jsonl.zst",
        "eval-000002.jsonl.zst",
        "train-000001.jsonl.zst",
        "train-000002.jsonl.zst",
    ]
    assert list((run / "tensorboard").iterdir())
    assert (run / "report.html").stat().st_size > 10_000


def test_a_checkpoint_is_an_ordinary_model_folder(finished):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, _ = finished
    (checkpoint,) = (run / "checkpoints").iterdir()
    model = AutoModelForCausalLM.from_pretrained(checkpoint / "model")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint / "model")
    assert len(tokenizer) <= model.get_input_embeddings().weight.shape[0]


def test_the_report_opens_in_a_browser_and_shows_tokens_by_origin(finished, chromium, tmp_path):
    run, _ = finished
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--virtual-time-budget=20000", f"--user-data-dir={tmp_path}"]
    page = subprocess.run(
        [chromium, *flags, "--dump-dom", (run / "report.html").as_uri() + "#t=0"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert 'data-ready="yes"' in page
    for origin in ("prompt", "model"):
        assert f'<span class="{origin}" data-i=' in page
    assert page.count("<polyline") >= 8


def test_ctrl_c_leaves_a_resumable_run_and_no_child_process(tmp_path):
    run = tmp_path / "stopped"
    process = started(tmp_path, "configs/quickstart.yaml", *SMALL, "steps=40", "name=stopped", "evals={}")
    wait_for_step(run, 1, process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert f"go on with: agent-rl train --resume {run}" in said
    assert not left_over(children)
    step = max(r["step"] for r in rows(run))
    resumed = train(tmp_path, "--resume", str(run), f"steps={step + 1}")
    assert resumed.returncode == 0, resumed.stderr
    assert f"going on after step {step}" in resumed.stdout
    assert [r["step"] for r in rows(run) if "time/step" in r] == list(range(1, step + 2))


def test_a_killed_deterministic_run_goes_on_bit_for_bit(tmp_path):
    """SIGKILL in the middle of a step: metrics and weights equal those of a run that nothing stopped."""
    options = [*SMALL, "deterministic=true", "steps=5", "learner.checkpoint.every=2", "learner.checkpoint.keep_last=9"]
    whole = train(tmp_path, "configs/quickstart.yaml", *options, "name=whole")
    assert whole.returncode == 0, whole.stderr
    process = started(tmp_path, "configs/quickstart.yaml", *options, "name=killed")
    wait_for_step(tmp_path / "killed", 3, process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert not left_over(children), "the sandbox and the verifiers end with their owner, however it ends"
    resumed = train(tmp_path, "--resume", str(tmp_path / "killed"))
    assert resumed.returncode == 0, resumed.stderr

    def comparable(run: Path) -> list[dict]:
        return [{k: v for k, v in r.items() if not k.startswith("time/")} for r in rows(run)]

    assert comparable(tmp_path / "killed") == comparable(tmp_path / "whole")
    weights = [
        (tmp_path / name / "checkpoints" / "step-00000005" / "model" / "model.safetensors").read_bytes()
        for name in ("whole", "killed")
    ]
    assert weights[0] == weights[1]


def test_a_dry_run_says_what_would_happen_and_makes_no_folder(tmp_path):
    done = train(tmp_path, "configs/quickstart.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "32 problems x 8 samples = 256 trajectories -> 4 updates of 64" in done.stdout
    assert "sandbox: our own service" in done.stdout
    assert "memory: about" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("tir.max_turn=5", "did you mean 'tir.max_turns'?"),
        ("learner.updates_per_batch=7", "256 trajectories cannot be cut into learner.updates_per_batch = 7"),
        ("tir.max_total_tokens=5000", "more than the model's context"),
        ("data.count=8", "a step needs 32 different problems"),
        ("model.path=no/such/folder/here", "no/such/folder/here"),
        ("sandbox.min_tier=T4", "T4"),
        ("method.preset=ctpo_cpo", "did you mean 'ctpo_cppo'"),
    ],
)
def test_what_cannot_work_is_refused_in_plain_words_before_anything_starts(tmp_path, override, reason):
    done = train(tmp_path, "configs/quickstart.yaml", "--dry-run", override)
    assert done.returncode == 2, done.stdout
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_help_imports_no_torch():
    probe = "import sys\nsys.argv = ['agent-rl', '--help']\nfrom agent_rl.cli import main\n"
    probe += "try:\n    main()\nexcept SystemExit:\n    print('torch' in sys.modules, 'transformers' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert out.splitlines()[-1] == "False False"
    assert "train" in out
