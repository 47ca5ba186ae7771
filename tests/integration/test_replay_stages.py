"""A recorded run, replayed: every stage equal bit for bit, and the first that was tampered with named."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import zstandard

from agent_rl.records import updates
from agent_rl.records.index import INDEX
from agent_rl.records.replay.command import Asked, batches_of, replay_run
from agent_rl.records.replay.stages import Kind
from agent_rl.records.replay.tools import classify
from agent_rl.rewards.verifier import Verifier
from agent_rl.training.run_dir import RunDir
from agent_rl.types import ToolOutcome, ToolStatus, VerdictKind

ROOT = Path(__file__).parents[2]
SMALL = [
    "steps=2", "problems_per_step=4", "samples_per_problem=4", "learner.updates_per_batch=2", "data.count=64",
    "evals={}", "threads=1", "sandbox.slots=1", "deterministic=true", "rewards.tool_call_bonus=0.5",
    "learner.checkpoint.every=1", "learner.optimizer.lr=1.0e-3", "name=small",
]  # fmt: skip


def agent_rl(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "agent_rl.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    done = agent_rl("train", "configs/quickstart.yaml", *SMALL, f"runs_dir={folder}")
    assert done.returncode == 0, done.stderr + done.stdout
    return folder / "small"


def stages(run: Path, **asked) -> dict:
    """In this process, so that libraries are loaded once."""
    _, config = RunDir.open(run)
    torch.set_num_threads(1)
    batches = batches_of(run, asked.get("step"))
    return asyncio.run(replay_run(run, config, batches, Asked(**asked))).as_json()


def tampered(run: Path, folder: Path, change) -> Path:
    """A copy of the run whose first record that `change` accepts was changed by it."""
    copy = folder / "tampered"
    shutil.copytree(run, copy)
    for shard in sorted((copy / "trajectories").glob("*.jsonl.zst")):
        rows = [json.loads(line) for line in zstandard.decompress(shard.read_bytes()).splitlines()]
        if any(change(row) for row in rows):
            text = "".join(json.dumps(row) + "\n" for row in rows).encode()
            shard.write_bytes(zstandard.ZstdCompressor().compress(text))
            (copy / "trajectories" / INDEX).unlink()
            return copy
    raise AssertionError("no record could be changed")


def test_every_stage_is_equal_bit_for_bit(run):
    done = agent_rl("replay", str(run), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["first_difference"] is None
    assert {s["name"]: s["status"] for s in found["stages"]} == {s["name"]: "equal" for s in found["stages"]}
    assert any(update.tokens for step in (1, 2) for update in updates(run, step))


def test_a_changed_tool_output_is_named(run, tmp_path):
    def change(row):
        for turn in row["turns"]:
            if turn["outcome"] and turn["outcome"]["status"] == "ok":
                turn["outcome"]["stdout"] += "1"
                return True
        return False

    found = stages(tampered(run, tmp_path, change), weights=False)
    assert found["first_difference"] == "tools"
    assert "[deterministic]" in found["stages"][0]["differences"][0]


def test_a_changed_log_prob_is_named(run, tmp_path):
    def change(row):
        if row["filters"]:
            return False
        row["segments"][1]["logprobs"][0] -= 0.25
        return True

    found = stages(tampered(run, tmp_path, change), tools=False, weights=False)
    assert found["first_difference"] == "sampler log-probs"
    (stage,) = [s for s in found["stages"] if s["name"] == "sampler log-probs"]
    assert "model token 1 (1 of" in stage["differences"][0]


def test_a_verifier_that_judges_otherwise_is_named(run, monkeypatch):
    class Stricter(Verifier):
        async def verify(self, answer, gold, *, kind="math"):
            verdict = await super().verify(answer, gold, kind=kind)
            return replace(verdict, kind=VerdictKind.WRONG, verifier="math/2")

    monkeypatch.setattr("agent_rl.records.replay.command.Verifier", Stricter)
    found = stages(run, tools=False, weights=False)
    assert found["first_difference"] == "verdicts"
    (stage,) = [s for s in found["stages"] if s["name"] == "verdicts"]
    assert "recorded 'correct', replayed 'wrong'" in stage["differences"][0]
    assert stage["notes"] == ["recorded with verifier math/1, replayed with math/2"]


def test_changed_ids_an_answer_a_reward_and_an_advantage_are_named(run, tmp_path):
    def ids(row):
        row["segments"][0]["ids"][1] += 1
        return True

    def answer(row):
        row["answer"] = "no such answer"
        row["verdict"] = None
        return True

    def reward(row):
        row["reward"] += 1
        row["reward_parts"]["verdict"] += 1
        return True

    def advantage(row):
        row["advantage"] += 1
        return True

    wanted = {"tokens": ids, "answers": answer, "rewards": reward, "advantages": advantage}
    for name, change in wanted.items():
        found = stages(tampered(run, tmp_path / name, change), tools=False, weights=False)
        assert found["first_difference"] == name


def test_other_weights_are_named(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    manifest = copy / "trajectories" / "manifest.json"
    said = json.loads(manifest.read_text())
    said["hashes"]["base model"] = "another"
    manifest.write_text(json.dumps(said))
    found = stages(copy, tools=False, step=1)
    assert found["first_difference"] == "weights"


def test_a_checkpoint_that_was_not_kept_is_told_and_the_rest_is_checked(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / "step-00000001")
    found = stages(copy, tools=False, step=2)
    by_name = {s["name"]: s for s in found["stages"]}
    assert by_name["loss"]["status"] == "not checked" and by_name["token quantities"]["status"] == "equal"
    assert "the checkpoint of step 1 was not kept" in by_name["weights"]["notes"][0]


def test_other_methods_are_held_against_the_recorded_one(run):
    done = agent_rl("replay", str(run), "--with", "grpo,gspo,ctpo,cppo,ctpo_cppo")
    assert done.returncode == 0, done.stderr
    first = done.stdout[done.stdout.index("first updates") :].replace("\n", " ")
    assert "grpo 1.0000" in first and "ctpo_cppo 1.0000" in first
    page = (run / "methods.html").read_text()
    assert "cosine with recorded" in page and "gspo" in page


def test_learning_from_recordings_alone_repeats_the_first_step_and_leaves_a_model(run):
    done = agent_rl("replay", str(run), "--train", "--with", "ctpo_cppo,grpo")
    assert done.returncode == 0, done.stderr
    recorded = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    replayed = [json.loads(line) for line in (run / "replayed/ctpo_cppo/metrics.jsonl").read_text().splitlines()]
    for a, b in zip(recorded, replayed, strict=True):
        assert (a["learner/loss"], a["learner/grad_norm"]) == (b["learner/loss"], b["learner/grad_norm"])
    assert (run / "replayed/grpo/model/config.json").exists()


def outcome(status=ToolStatus.OK, stdout="1", stderr="", tier="T3") -> ToolOutcome:
    return ToolOutcome(status, stdout=stdout, stderr=stderr, tier=tier)


@pytest.mark.parametrize(
    ("code", "first", "second", "kind"),
    [
        ("print(1)", outcome(stdout="2"), outcome(stdout="2"), Kind.DETERMINISTIC),
        ("import os\nprint(os.urandom(1))", outcome(stdout="2"), outcome(stdout="3"), Kind.RANDOM),
        ("import time\nprint(time.time())", outcome(stdout="2"), outcome(stdout="2"), Kind.TIME),
        ("from datetime import date", outcome(stdout="2"), outcome(stdout="3"), Kind.TIME),
        ("print(1)", outcome(ToolStatus.TIMEOUT), outcome(), Kind.TIME),
        ("print(1)", outcome(ToolStatus.OOM), outcome(ToolStatus.OOM), Kind.ENVIRONMENT),
        ("import numpy", *[outcome(ToolStatus.ERROR, "", "ModuleNotFoundError: No module named 'numpy'")] * 2,
         Kind.ENVIRONMENT),
    ],
)  # fmt: skip
def test_differences_of_programs_are_told_apart(code, first, second, kind):
    assert classify([code], outcome(), first, second) is kind
