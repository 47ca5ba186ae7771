"""The labelled pairs: each verdict as labelled, and acceptance the same with the two sides swapped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_rl.rewards.audit import audit_golds, main, read_golds
from agent_rl.rewards.extraction import extract_answer
from agent_rl.rewards.settings import VerifierSettings
from agent_rl.rewards.verifier import VERSION, Verifier

PAIRS = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "verifier_pairs.jsonl").read_text("utf-8").splitlines()
]
GROUPS = sorted({pair["group"] for pair in PAIRS})


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(VerifierSettings(wall_seconds=60.0, cpu_seconds=5.0)) as started:
        yield started


def test_there_are_enough_pairs_in_both_directions():
    labels = Counter(pair["label"] for pair in PAIRS)
    assert len(PAIRS) >= 300
    assert labels["correct"] >= 100 and labels["wrong"] >= 100 and labels["undecided"] >= 10


@pytest.mark.parametrize("group", GROUPS)
def test_every_pair_is_judged_as_labelled(verifier, group):
    mistakes = []
    for pair in (pair for pair in PAIRS if pair["group"] == group):
        answer = pair.get("answer")
        if "text" in pair:
            found = extract_answer(pair["text"])
            answer = None if found is None else found.answer
        verdict = verifier.verify_sync(answer, pair["gold"], kind=pair.get("kind", "math"))
        assert verdict.verifier == f"{pair.get('kind', 'math')}/{VERSION}"
        assert verdict.reason
        if verdict.kind != pair["label"]:
            mistakes.append((pair["gold"][:60], str(answer)[:60], pair["label"], verdict.kind, verdict.reason))
    assert not mistakes


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "adversarial"])
def test_acceptance_is_symmetric(verifier, group):
    for pair in (p for p in PAIRS if p["group"] == group and "answer" in p and p.get("kind", "math") == "math"):
        forward = verifier.verify_sync(pair["answer"], pair["gold"]).score
        backward = verifier.verify_sync(pair["gold"], pair["answer"]).score
        assert forward == backward, pair


def test_a_gold_that_cannot_be_read_is_named_as_such(verifier):
    for gold in ("", "   ", "t(0,4]", "np.arcsin(10/13)", "\\frac{1}{"):
        verdict = verifier.verify_sync("5", gold)
        assert verdict.kind == "undecided" and verdict.reason.startswith("gold unreadable"), (gold, verdict)
    assert verifier.verify_sync("\\frac{1}{", "5").reason.startswith("answer unreadable")


def test_a_missing_answer_is_wrong(verifier):
    assert verifier.verify_sync(None, "5").kind == "wrong"
    assert verifier.verify_sync("  ", "5").kind == "wrong"


def test_the_audit_lists_golds_that_fail_their_own_verifier(tmp_path, capsys):
    golds = ["5", "\\frac{1}{2}", "", "t(0,4]", "(1,2)"]
    assert [(failure.index, failure.gold) for failure in audit_golds(golds)] == [(2, ""), (3, "t(0,4]")]
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text('{"question": "?", "answer": "work\\n#### 18"}\n{"solution": "so \\\\boxed{3}"}\n"7"\n')
    bad.write_text("".join(json.dumps({"gold": gold}) + "\n" for gold in golds))
    assert list(read_golds(good)) == ["18", "3", "7"]
    assert main([str(good)]) == 0
    assert main([str(bad)]) == 1
    assert "row 4: 't(0,4]': gold unreadable" in capsys.readouterr().out
    bad.write_text('{"question": "?"}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl:1: none of the fields gold"):
        list(read_golds(bad))


@pytest.mark.parametrize(
    ("name", "rows", "failing"),
    [
        ("gsm8k/test.jsonl", 1319, []),
        ("math500/test.jsonl", 500, []),
        ("amc23/test.jsonl", 40, []),
        ("aime26/test.jsonl", 30, []),
        ("hmmt25/test.jsonl", 30, []),
        ("minerva/test.jsonl", 272, ["np.arcsin(10/13)"]),  # code in the place of an answer
        ("olympiadbench/test.jsonl", 675, ["$t(0,4]$"]),  # brackets that do not match
    ],
)
def test_golds_of_public_sets_pass_their_own_verifier_but_for_broken_ones(data_dir, name, rows, failing):
    golds = list(read_golds(data_dir / name))
    assert len(golds) == rows
    failures = audit_golds(golds)
    assert [failure.gold for failure in failures] == failing
    assert all(failure.reason.startswith("gold unreadable") for failure in failures)
