"""The page of a run: one file, offline, whose packed arrays are the recording's."""

from __future__ import annotations

import base64
import gzip
import json
import re

import numpy as np

from agent_rl.records import summaries, trajectories, updates
from agent_rl.records.inspect.command import Asked, chosen, inspect, run_page
from agent_rl.records.inspect.page import REASONS
from tests.recordings import make_run


def unpacked(page: str, name: str) -> bytes:
    found = re.search(rf'<script type="text/plain" id="{name}">([^<]*)</script>', page)
    return gzip.decompress(base64.b64decode(found.group(1)))


def test_what_is_packed_is_what_was_recorded(tmp_path):
    run = make_run(tmp_path, steps=1)
    rows = summaries(run)
    assert run_page(tmp_path / "page.html", run, rows) == len(rows)
    page = (tmp_path / "page.html").read_text()
    index = json.loads(unpacked(page, "index"))
    data = unpacked(page, "c0")
    size = int(np.frombuffer(data, np.uint32, 1)[0])
    heads = json.loads(data[4 : 4 + size])
    words = np.frombuffer(data, np.uint32, offset=4 + -(-size // 4) * 4)
    tokens = {key: values for update in updates(run, 1) for key, values in update.tokens.items()}
    for row, record, head in zip(rows, trajectories(run), heads, strict=True):
        start, count = head["ids"]
        assert words[start : start + count].view(np.int32).tolist() == record.trajectory().ids
        for update in head["passes"]:
            for name, (start, count) in update["q"].items():
                kept = words[start : start + count].view(np.float32)
                assert np.allclose(kept, tokens[row.key][name], rtol=1e-4)
    assert index["columns"]["key"] == [row.key for row in rows]
    assert all(str(i) in index["pieces"] for record in trajectories(run) for i in record.trajectory().ids)


def test_the_page_asks_nothing_of_the_network(tmp_path):
    run = make_run(tmp_path, steps=1)
    run_page(tmp_path / "page.html", run, summaries(run))
    page = (tmp_path / "page.html").read_text()
    assert not re.search(r"https?://|src=|@import|url\(", page)


def test_text_of_programs_cannot_break_out_of_the_page(tmp_path):
    from agent_rl.records.recorder import TrajectoryRecorder
    from agent_rl.types import FinishReason, Problem, StopReason, Trajectory, Turn

    evil = "</script><script>alert(1)</script>"
    turn = Turn(evil, FinishReason.EOS, answer=evil)
    trajectory = Trajectory(Problem(evil, evil, evil), 0, [], [turn], stop=StopReason.ANSWER, answer=evil)
    TrajectoryRecorder(tmp_path / "trajectories").append("train-000001", [trajectory], step=1)
    run_page(tmp_path / "page.html", tmp_path, summaries(tmp_path))
    assert "alert(1)" not in (tmp_path / "page.html").read_text()


def test_reasons_are_those_of_the_algorithms(tmp_path):
    from agent_rl.algorithms.evaluation import Reason

    assert [name.replace(" ", "_").upper() for name, _ in REASONS] == [reason.name for reason in Reason]


def test_filters_and_orders_of_the_terminal(tmp_path):
    rows = summaries(make_run(tmp_path))
    assert all(r.void for r in chosen(rows, Asked(flags=("void",)), {}))
    assert len(chosen(rows, Asked(flags=("void",)), {})) == sum(r.void for r in rows)
    assert all(r.timed_out and not r.correct for r in chosen(rows, Asked(flags=("timed_out", "wrong")), {}))
    rewards = [r.reward for r in chosen(rows, Asked(sort="reward"), {})]
    assert rewards == sorted(rewards, reverse=True)
    assert [r.key for r in chosen(rows, Asked(key="p1-0#2"), {})] == ["p1-0#2"]


def test_the_command_shows_a_run_and_says_when_nothing_passes(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    assert inspect(run, Asked(key="p1-1#0")) == 0
    assert "print(8 + 9)" not in capsys.readouterr().err
    assert (run / "inspect.html").exists()
    assert inspect(run, Asked(search="nosuchword")) == 1
    assert inspect(tmp_path / "nothing", Asked()) == 2
