"""`agent-rl tasks check`: what it finds, how it says so, and its exit status."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from agent_rl.tasks.check import check, verifier_audit
from agent_rl.tasks.cli import app


@pytest.fixture
def flawed(tmp_path):
    rows = [
        {"question": "1+1?", "answer": "2"},
        {"question": "1 + 1?", "answer": "2"},
        {"question": "no answer"},
        {"question": "odd", "answer": "fails here", "level": 2},
    ]
    file = tmp_path / "flawed.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows) + "{torn\n")
    return file


def _audit(problems):
    return {i: "because" for i, p in enumerate(problems) if "fails" in p.gold}


def test_findings_name_their_lines(flawed):
    (report,) = check([str(flawed)], audit=_audit).files
    assert (report.rows, report.problems, report.schema) == (5, 3, "question-answer")
    assert [(f.where, f.reason.split(":")[0]) for f in report.bad_rows] == [
        ("line 3", "the gold answer is missing"),
        ("line 5", "not JSON"),
    ]
    assert [(f.where, f.reason) for f in report.duplicates] == [("line 2", "the same question as line 1")]
    assert [f.where.split()[:2] for f in report.failing_golds] == [["line", "4"]]
    assert report.levels == {"2": 1}


def test_shared_problems_of_two_files(flawed, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text('{"question": "1+1?", "answer": "2"}\n{"question": "1-1?", "answer": "0"}\n')
    report = check([str(flawed), str(other)])
    assert len(report.overlaps) == 2
    assert not report.files[0].golds_audited
    assert len(check([str(other)]).overlaps) == 0


def test_command_prints_a_table_and_fails_on_bad_rows(flawed):
    result = CliRunner().invoke(app, ["check", "--no-audit", str(flawed)])
    assert result.exit_code == 1
    for text in ("line 3", "not JSON", "the same question as line 1", "duplicate"):
        assert text in result.stdout


def test_command_with_columns_and_clean_rows(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"frage": "1+1?", "antwort": 2}\n')
    arguments = ["check", "--json", "--no-audit", str(file), "--question", "frage", "--gold", "antwort"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and json.loads(result.stdout)["ok"]
    assert CliRunner().invoke(app, arguments[:-2]).exit_code == 2


def test_command_refuses_what_it_cannot_read(tmp_path):
    result = CliRunner().invoke(app, ["check", "--no-audit", str(tmp_path / "none.jsonl")])
    assert result.exit_code == 2
    assert "no such file" in result.output
    result = CliRunner().invoke(app, ["check", "--no-audit", "owner/name"])
    assert result.exit_code == 2 and "download" in result.output


def test_listings_name_benchmarks_families_and_generators(tmp_path):
    result = CliRunner().invoke(app, ["benchmarks", str(tmp_path)], env={"COLUMNS": "300"})
    assert result.exit_code == 0 and "aime24" in result.stdout and "absent" in result.stdout
    result = CliRunner().invoke(app, ["families"], env={"COLUMNS": "300"})
    assert result.exit_code == 0 and "arithmetic" in result.stdout and "scaled_words" in result.stdout


def test_gold_answers_meet_their_own_verifier(tmp_path):
    file = tmp_path / "a.jsonl"
    rows = [
        {"question": "a", "gold": "\\frac{1}{2}", "kind": "math"},
        {"question": "b", "gold": "Paris", "kind": "string"},
        {"question": "c", "gold": "\\boxed{", "kind": "numeric"},
    ]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    (report,) = check([str(file)], audit=verifier_audit).files
    assert [f.where.split(" (")[0] for f in report.failing_golds] == ["line 3"]
