"""`agent-rl eval` on the shipped policy: measures, goes on where it stopped, refuses in plain words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import zstandard
from typer.testing import CliRunner, Result

from agent_rl.cli import app
from agent_rl.evaluation.command import sets_from_options
from agent_rl.play.policy import find_policy
from agent_rl.records import manifest
from agent_rl.records.pieces import read_pieces
from agent_rl.records.recorder import read_records, shards
from tests import broken_setups as setups

POLICY = "package://agent_rl/assets/quickstart"
SMALL = ["sandbox.slots=1", "threads=1", "evaluation.resamples=100", "evaluation.temperature=1.0"]


def measure(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["eval", *arguments])


@pytest.fixture(scope="module")
def problems(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    setups.write_rows(
        folder / "sums.jsonl",
        [{"question": f"What is {a} + {a + 5}?", "answer": str(2 * a + 5)} for a in range(12, 18)],
    )
    return folder / "sums.jsonl"


@pytest.fixture(scope="module")
def measured(problems, tmp_path_factory) -> tuple[Path, Result]:
    output = tmp_path_factory.mktemp("evals") / "first"
    return output, measure(POLICY, *SMALL, "--on", str(problems), "--samples", "2", "--output", str(output))


def test_a_measurement_is_written_as_json_markdown_and_plot(measured):
    output, done = measured
    assert done.exit_code == 0, done.output
    report = json.loads((output / "report.json").read_text())
    (figures,) = report["sets"]
    assert figures["name"] == "sums"
    assert (figures["problems"], figures["attempts"], figures["complete"]) == (6, 12, True)
    assert {"avg@2", "pass@2", "maj@2", "tool_call_rate"} <= figures["estimates"].keys()
    assert "avg@2" in (output / "report.md").read_text()
    assert (output / "report.svg").read_text().startswith("<svg")
    assert "avg@2" in done.output


def test_the_episode_is_the_one_that_the_policy_was_made_for(measured):
    output, _ = measured
    identity = json.loads((output / "evaluation.json").read_text())
    assert identity["tir"]["instruction_role"] == "none"
    assert identity["tir"]["max_total_tokens"] <= 1024


def test_the_same_command_goes_on_and_plays_only_what_is_missing(measured, problems):
    output, _ = measured
    shards = sorted((output / "trajectories" / "sums").iterdir())
    before = json.loads((output / "report.json").read_text())["sets"]
    again = measure(POLICY, *SMALL, "--on", str(problems), "--samples", "2", "--output", str(output))
    assert again.exit_code == 0, again.output
    assert "12 of 12 attempts are there already" in again.output
    assert sorted((output / "trajectories" / "sums").iterdir()) == shards
    assert json.loads((output / "report.json").read_text())["sets"] == before


def test_its_recordings_can_be_read_without_the_tokenizer_and_say_what_made_them(measured):
    output, _ = measured
    folder = output / "trajectories" / "sums"
    texts = read_pieces(folder)
    ids = {i for shard in shards(folder) for row in read_records(shard) for s in row["segments"] for i in s["ids"]}
    assert ids and ids <= texts.keys()
    found = manifest.read(folder)
    assert found["model"] == "package://agent_rl/assets/quickstart"
    assert {"code", "config", "tokenizer", "template", "data", "base model"} <= found["hashes"].keys()


def test_they_replay_and_a_changed_tool_output_is_named(measured, tmp_path):
    output, _ = measured
    again = CliRunner().invoke(app, ["replay", str(output), "--json"])
    assert again.exit_code == 0, again.output
    checked = {stage["name"]: stage["checked"] for stage in json.loads(again.stdout)["stages"]}
    assert checked["rewards"] == 12 and checked["tokens"] > 0 and checked["tools"] > 0
    copy = tmp_path / "tampered"
    shutil.copytree(output, copy)
    shard = next(iter(shards(copy / "trajectories" / "sums")))
    rows = list(read_records(shard))
    turn = next(turn for row in rows for turn in row["turns"] if turn["outcome"])
    turn["outcome"]["stdout"] = "12345\n"
    shard.write_bytes(zstandard.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    differing = CliRunner().invoke(app, ["replay", str(copy), "--json"])
    assert differing.exit_code == 1 and json.loads(differing.stdout)["first_difference"] == "tools"


def test_a_folder_with_another_measurement_is_refused(measured, problems, capfd):
    output, _ = measured
    other = measure(POLICY, *SMALL, "--on", str(problems), "--samples", "3", "--output", str(output))
    assert other.exit_code == 1
    assert "holds a measurement with another evaluation" in other.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([POLICY], "nothing to evaluate"),
        ([], "name a model"),
        ([POLICY, "--on", "aime24", "evaluation.benchmark_dir=/nowhere"], "is not in '/nowhere'. Get it from"),
        ([POLICY, "--on", "no-such-file.jsonl"], "no such file or folder"),
        (["./no/such/model", "--on", "families"], "there is no such folder or file"),
        ([POLICY, "--on", "families", "evaluation.sample=3"], "did you mean 'evaluation.samples'?"),
        ([POLICY, "model.path=x", "--on", "families"], "the model is given twice"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_plain_words(arguments, reason):
    done = measure(*arguments)
    assert done.exit_code == 2
    assert reason in done.output
    assert "Traceback" not in done.output


def test_problem_sets_are_named_by_benchmark_file_or_families():
    found = sets_from_options(["aime24", "families", "data/gsm8k/test.jsonl", "x/sums.jsonl", "y/sums.jsonl"])
    assert found["benchmarks"] == ["aime24"]
    assert set(found["data"]) == {"families", "gsm8k-test", "sums", "sums-2"}
    assert found["data"]["sums-2"] == {"path": "y/sums.jsonl"}


def test_a_run_without_a_checkpoint_is_no_policy(tmp_path):
    (tmp_path / "config.yaml").write_text("steps: 1\n")
    done = measure(str(tmp_path), "--on", "families")
    assert done.exit_code == 2
    assert "has no whole checkpoint" in done.output


def test_a_checkpoint_brings_the_settings_of_its_run(tmp_path):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000003"
    setups.save_model(checkpoint / "model")
    (checkpoint / "complete.json").write_text("{}")
    (tmp_path / "run" / "config.yaml").write_text("steps: 3\ntir: {max_turns: 7}\nmodel: {path: x, eos_ids: [2]}\n")
    for path in (checkpoint, checkpoint / "model"):
        policy = find_policy(str(path))
        assert policy.path == str(checkpoint / "model")
        assert policy.name == "run-step-00000003"
        assert policy.settings == {"tir": {"max_turns": 7}, "model": {"eos_ids": [2]}}
