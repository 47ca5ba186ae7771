"""Reading a recording: lists without tokens, whole records, and what updates did to each token."""

from __future__ import annotations

import json
import os
import random

import numpy as np
import pytest

from agent_rl.records import summaries, trajectories, updates
from agent_rl.records.index import INDEX
from agent_rl.records.recorder import SUFFIX, TrajectoryRecorder, read_records, shards
from agent_rl.records.shards import RecordError
from agent_rl.records.token_updates import path_of, read_extremes, steps_with_updates
from agent_rl.training.recording import filters
from agent_rl.types import Group
from tests.recordings import made_trajectory, make_run


def test_a_list_says_what_the_records_say(tmp_path):
    run = make_run(tmp_path)
    listed = summaries(run)
    whole = list(trajectories(run))
    assert len(listed) == len(whole) == 32
    for row, record in zip(listed, whole, strict=True):
        trajectory = record.trajectory()
        assert (row.key, row.step, row.split) == (record.key, record.step, "train")
        assert (row.reward, row.advantage, row.filters) == (record.reward, record.advantage, record.filters)
        assert (row.length, row.sampled_tokens, row.void) == (
            trajectory.length, trajectory.sampled_tokens, trajectory.void,
        )  # fmt: skip


def test_chosen_rows_are_read_in_the_order_asked_for(tmp_path):
    run = make_run(tmp_path)
    asked = [summaries(run)[n] for n in (20, 3, 4, 31)]
    assert [r.key for r in trajectories(run, only=asked)] == [row.key for row in asked]


def test_records_of_one_set_and_step(tmp_path):
    run = make_run(tmp_path, steps=3)
    assert {r.step for r in trajectories(run, split="train", step=2)} == {2}
    assert list(trajectories(run, split="eval")) == []


def test_what_is_no_recording_is_refused_by_name(tmp_path):
    with pytest.raises(RecordError, match="holds no recorded trajectories"):
        summaries(tmp_path)


@pytest.mark.parametrize("damage", ["gone", "cut", "garbage"])
def test_a_list_does_not_depend_on_the_index(tmp_path, damage):
    run = make_run(tmp_path)
    before = summaries(run)
    index = run / "trajectories" / INDEX
    if damage == "gone":
        index.unlink()
    elif damage == "cut":
        os.truncate(index, index.stat().st_size - 700)
    else:
        index.write_bytes(b"\xff{" + index.read_bytes()[5:])
    assert summaries(run) == before


def test_appending_after_a_crash_loses_no_later_record(tmp_path):
    folder, rng = tmp_path / "trajectories", random.Random(1)
    TrajectoryRecorder(folder).append("train-000001", [made_trajectory("a", 0, 20, rng)], step=1)
    path = folder / ("train-000001" + SUFFIX)
    whole = path.stat().st_size
    TrajectoryRecorder(folder).append("train-000001", [made_trajectory("b", 0, 20, rng)], step=1)
    os.truncate(path, whole + 50)
    with open(folder / INDEX, "ab") as index:
        index.write(b'["train", 1, "half a li')
    TrajectoryRecorder(folder).append("train-000001", [made_trajectory("c", 0, 20, rng)], step=1)
    assert [row["problem"]["id"] for row in read_records(path)] == ["a", "c"]
    assert [row.problem for row in summaries(tmp_path)] == ["a", "c"]


def test_updates_are_read_as_they_were_written_bit_for_bit(tmp_path):
    run = make_run(tmp_path, steps=1)
    records = {r.key: r for r in trajectories(run)}
    first, second = updates(run, 1)
    assert first.loss == 0.125 and first.grad_norm == 1.5 and not set(first.keys) & set(second.keys)
    for key, tokens in first.tokens.items():
        sampled = [p for s in records[key].segments for p in s.logprobs]
        assert np.array_equal(tokens["logp_mu"], np.asarray(sampled, np.float32))
        assert all(len(values) == len(sampled) for values in tokens.values())
        assert first.advantages[key] == records[key].advantage
    assert updates(run, 7) == []


def test_extremes_are_those_of_the_tokens(tmp_path):
    run = make_run(tmp_path, steps=1)
    found = read_extremes(run / "trajectories")
    for update in updates(run, 1):
        for key, tokens in update.tokens.items():
            assert found[1, key]["max_abs_log_ratio"] == pytest.approx(np.abs(tokens["log_ratio"]).max())
            assert found[1, key]["clipped"] == ((tokens["reason"] >= 2) & (tokens["reason"] <= 4)).sum()


def test_a_resumed_run_drops_later_updates_and_drafts(tmp_path):
    run = make_run(tmp_path, steps=3)
    folder = run / "trajectories"
    path_of(folder, 4).with_suffix(".draft").write_bytes(b"half")
    TrajectoryRecorder(folder).drop_after(1)
    assert steps_with_updates(folder) == [1]
    assert {row.step for row in summaries(run)} == {1}
    assert not list(folder.glob("*.draft"))


def test_pandas_and_datasets_read_a_recording_in_two_lines(tmp_path):
    pandas = pytest.importorskip("pandas")
    run = make_run(tmp_path, steps=1)
    shard = shards(run / "trajectories")[0]
    frame = pandas.read_json(shard, lines=True)
    assert len(frame) == 16 and frame.problem[0]["gold"] in ("17", "18")
    tokens = pandas.read_parquet(path_of(run / "trajectories", 1))
    assert set(tokens.key) <= {row.key for row in summaries(run)} and len(tokens.ratio[0]) > 3
    assert len(pandas.DataFrame(summaries(run))) == 16


def test_text_keeps_turns_and_no_ids(tmp_path):
    run = make_run(tmp_path, steps=1, level="text", updates=False)
    for record in trajectories(run):
        assert record.segments == [] and record.level == "text" and record.turns[0].code == "print(8 + 9)"
    assert summaries(run)[0].length > 0


def test_every_line_is_valid_json_on_its_own(tmp_path):
    run = make_run(tmp_path, steps=1)
    lines = (run / "trajectories" / INDEX).read_text().splitlines()
    assert lines
    assert all(isinstance(json.loads(line), dict | list) for line in lines)


def test_sets_of_one_measurement_are_read_each_from_its_own_folder(tmp_path):
    rng = random.Random(2)
    for name in ("gsm", "unseen"):
        recorder = TrajectoryRecorder(tmp_path / "trajectories" / name)
        for n in range(2):  # one frame each, as a measurement that may be killed at any moment
            recorder.append("eval-000000", [made_trajectory(f"{name}{n}", 0, 20, rng)], set=name)
    listed = summaries(tmp_path)
    assert [(row.split, row.problem) for row in listed] == [
        ("gsm", "gsm0"), ("gsm", "gsm1"), ("unseen", "unseen0"), ("unseen", "unseen1"),
    ]  # fmt: skip
    assert [r.problem.id for r in trajectories(tmp_path, only=listed[::-1])] == [r.problem for r in listed[::-1]]


def test_why_a_trajectory_is_not_in_the_loss_is_told_in_full():
    rng = random.Random(3)
    members = [made_trajectory("p", n, 20, rng) for n in range(30)]
    void = next(t for t in members if t.void)
    fine = next(t for t in members if not t.void)
    group = Group(fine.problem, members)
    assert filters(fine, group, void_filter=True) == []
    assert filters(void, group, void_filter=True) == ["void"]
    assert filters(void, group, void_filter=False) == []
    group.dead = True
    assert filters(void, group, void_filter=True) == ["void", "dead_group"]
    fine.reward = None
    fine.segments = fine.segments[:1]
    assert filters(fine, group, void_filter=True) == ["failed", "nothing_sampled", "dead_group"]
