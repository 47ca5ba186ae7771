"""Recorded trajectories: complete when appended, never half read."""

from __future__ import annotations

import json
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.records.recorder import SUFFIX, TrajectoryRecorder, read_records, record, shards
from agent_rl.types import (
    FinishReason,
    Origin,
    Problem,
    Segment,
    StopReason,
    ToolOutcome,
    ToolStatus,
    Trajectory,
    Turn,
    Verdict,
    VerdictKind,
)


def trajectory(sample: int, text: str = "x") -> Trajectory:
    outcome = ToolOutcome(ToolStatus.OK, stdout=text)
    return Trajectory(
        Problem("p", "q?", "1", metadata={"level": 3}),
        sample,
        [Segment(Origin.PROMPT, (1,)), Segment(Origin.MODEL, (2, 3), (-0.25, -1.5), (4, 4))],
        [Turn(text, FinishReason.FENCE, code="print(1)", outcome=outcome, observation="1")],
        stop=StopReason.ANSWER,
        answer="1",
        verdict=Verdict(VerdictKind.CORRECT, "equal", "1", "1", "math/1"),
        reward=1.0,
    )


def test_what_is_read_is_what_was_appended(tmp_path):
    recorder = TrajectoryRecorder(tmp_path)
    recorder.append("train-000001", [trajectory(0), trajectory(1)], step=1)
    recorder.append("train-000001", [trajectory(2)], step=1)
    (path,) = shards(tmp_path)
    rows = list(read_records(path))
    fields = {"step": 1, "split": "train", "level": "full"}
    expected = [json.loads(json.dumps(record(trajectory(i), **fields))) for i in range(3)]
    assert rows == expected
    assert rows[0]["segments"][1] == {
        "origin": "model",
        "ids": [2, 3],
        "logprobs": [-0.25, -1.5],
        "weight_versions": [4, 4],
    }


@settings(deadline=None, max_examples=25)
@given(text=st.text(max_size=30), cut=st.integers(0, 5000))
def test_a_record_that_a_crash_cut_short_is_left_out_and_the_others_are_whole(tmp_path_factory, text, cut):
    folder = tmp_path_factory.mktemp("records")
    recorder = TrajectoryRecorder(folder)
    recorder.append("train-000001", [trajectory(0, text)], step=1)
    path = folder / ("train-000001" + SUFFIX)
    whole = path.stat().st_size
    recorder.append("train-000001", [trajectory(1, text)], step=1)
    data = path.read_bytes()
    keep = whole + cut % (len(data) - whole)
    path.write_bytes(data[:keep])
    assert [row["sample"] for row in read_records(path)] == [0]


def test_a_resumed_run_drops_what_it_will_make_again(tmp_path):
    recorder = TrajectoryRecorder(tmp_path)
    for step in (1, 2, 3):
        recorder.append(f"train-{step:06}", [trajectory(step)], step=step)
    recorder.append("eval_unseen-000003", [trajectory(9)], step=3)
    recorder.drop_after(2)
    assert [p.name for p in shards(tmp_path)] == ["train-000001" + SUFFIX, "train-000002" + SUFFIX]


def test_a_record_of_another_schema_is_refused_by_number(tmp_path):
    import zstandard

    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(b'{"schema": 99}\n'))
    with pytest.raises(ValueError, match="schema 99"):
        list(read_records(tmp_path / "a.jsonl.zst"))


def test_lone_surrogates_and_nul_in_tool_output_are_kept_readable(tmp_path):
    recorder = TrajectoryRecorder(tmp_path)
    recorder.append("train-000001", [trajectory(0, "a\ud800\x00b")], step=1)
    (row,) = read_records(shards(tmp_path)[0])
    assert row["turns"][0]["text"].startswith("a")
    assert row["turns"][0]["text"].endswith("\x00b")


def test_the_standard_tool_reads_a_shard(tmp_path):
    recorder = TrajectoryRecorder(tmp_path)
    recorder.append("train-000001", [trajectory(0)], step=1)
    recorder.append("train-000001", [trajectory(1)], step=1)
    zstd = subprocess.run(["sh", "-c", "command -v zstdcat"], capture_output=True, check=False)
    if zstd.returncode:
        pytest.skip("zstd is not installed")
    out = subprocess.run(["zstdcat", str(shards(tmp_path)[0])], capture_output=True, check=True).stdout
    assert len(out.splitlines()) == 2
