"""Recordings as chat messages, and back."""

from __future__ import annotations

import json

import pytest

from agent_rl.records import trajectories
from agent_rl.records.messages import export, import_messages
from agent_rl.records.shards import RecordError
from tests.recordings import make_run


def test_what_is_exported_and_imported_says_the_same(tmp_path):
    run = make_run(tmp_path / "run", steps=1)
    file = tmp_path / "rows.jsonl"
    count = export(trajectories(run), file)
    assert count == 16
    assert import_messages(file, tmp_path / "back" / "trajectories") == count
    for a, b in zip(trajectories(run), trajectories(tmp_path / "back"), strict=True):
        assert a.problem.question == b.problem.question and a.problem.gold == b.problem.gold
        assert [(t.text, t.code, t.observation) for t in a.turns] == [(t.text, t.code, t.observation) for t in b.turns]
        assert (a.answer, a.reward, a.stop, a.key) == (b.answer, b.reward, b.stop, b.key)
        assert b.level == "text" and not b.segments


def test_only_right_ones(tmp_path):
    run = make_run(tmp_path / "run", steps=1)
    right = sum(r.verdict.score for r in trajectories(run))
    assert 0 < export(trajectories(run), tmp_path / "rows.jsonl", correct_only=True) == right


def test_the_warm_up_reads_what_was_exported(tmp_path):
    from agent_rl.sft.jsonl import jsonl_dialogues
    from agent_rl.sft.settings import JsonlDemonstrations
    from agent_rl.tir.settings import TirSettings

    run = make_run(tmp_path / "run", steps=1)
    count = export(trajectories(run), tmp_path / "rows.jsonl")
    dialogues, _ = jsonl_dialogues(JsonlDemonstrations(path=str(tmp_path / "rows.jsonl")), TirSettings())
    assert len(dialogues) == count and dialogues[0].turns[0].observation == "17"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{", "line 1: not valid JSON"),
        (json.dumps({"text": "x"}), "needs `messages`"),
        (json.dumps({"messages": [{"role": "assistant", "content": "x"}]}), "roles must be"),
    ],
)
def test_what_is_no_conversation_is_refused_by_line(tmp_path, row, why):
    (tmp_path / "rows.jsonl").write_text(row + "\n")
    with pytest.raises(RecordError, match=why):
        import_messages(tmp_path / "rows.jsonl", tmp_path / "out")
