"""Rows in every common form become problems; rows that do not fit are named."""

from __future__ import annotations

import json

import pytest

from agent_rl.tasks.load import load_problems
from agent_rl.tasks.schema import detect, level_of, problem_id, question_text
from agent_rl.tasks.settings import ColumnSettings, DataSettings

CHAT = [{"role": "user", "content": "What is 1+1?"}]

FORMS = {
    "own": ({"id": "a", "question": "1+1?", "gold": "2", "kind": "numeric", "metadata": {"k": [1.5]}}, "1+1?", "2"),
    "gsm8k": ({"question": "1+1?", "answer": "It is <<1+1=2>>2.\n#### 2"}, "1+1?", "2"),
    "math": (
        {"problem": "1+1?", "solution": r"$\boxed{2}$", "level": "Level 3", "type": "Algebra"},
        "1+1?",
        "2",
    ),
    "olympiadbench": ({"question": "1+1?", "final_answer": ["$2$"], "solution": ["..."]}, "1+1?", "2"),
    "verl": ({"prompt": CHAT, "reward_model": {"ground_truth": "2", "style": "rule"}}, "What is 1+1?", "2"),
    "svamp": ({"Body": "One and one.", "Question": "How many?", "Answer": 2.0}, "One and one. How many?", "2"),
    "question-answer": ({"prompt": CHAT, "label": "2"}, "What is 1+1?", "2"),
}
PAIRS = [
    {"problem": "1+1?", "answer": "2", "solution": r"\boxed{3}"},
    {"Problem": "1+1?", "Answer": 2, "Solution": "..."},
    {"prompt": "1+1?", "answer": 2.0},
    {"input": "1+1?", "target": 2},
    {"id": 0, "problem": "1+1?", "question": "1+1?", "answer": 2.0},
]


@pytest.mark.parametrize("form", FORMS)
def test_form_is_recognised_and_read(form, tmp_path):
    row, question, gold = FORMS[form]
    assert detect(row).name == form
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps(row) + "\n")
    (problem,) = load_problems(DataSettings(path=str(file)))
    assert (problem.question, problem.gold) == (question, gold)


@pytest.mark.parametrize("row", PAIRS)
def test_question_answer_pairs_under_any_usual_name(row, tmp_path):
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps(row))
    (problem,) = load_problems(DataSettings(path=str(file)))
    assert (problem.question, problem.gold) == ("1+1?", "2")


def test_a_missing_answer_is_not_replaced_by_the_worked_solution(tmp_path):
    file = tmp_path / "some.jsonl"
    rows = [{"problem": "a", "answer": "2", "solution": "long"}, {"problem": "b", "answer": None, "solution": "long"}]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    problems = load_problems(DataSettings(path=str(file)))
    assert [p.question for p in problems] == ["a"]
    assert [(b.where, b.reason) for b in problems.bad_rows] == [("line 2", "the gold answer is missing")]


def test_own_schema_keeps_verifier_and_metadata(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps({**FORMS["own"][0], "source": "mine"}))
    (problem,) = load_problems(DataSettings(path=str(file)))
    assert (problem.id, problem.source, problem.kind, problem.metadata) == ("mine/a", "mine", "numeric", {"k": [1.5]})
    json.dumps(problem.metadata)


def test_level_and_subject_are_read(tmp_path):
    file = tmp_path / "math.jsonl"
    file.write_text(json.dumps(FORMS["math"][0]))
    (problem,) = load_problems(DataSettings(path=str(file)))
    assert problem.metadata == {"level": 3, "subject": "Algebra"}


def test_unknown_columns_say_how_to_name_them(tmp_path):
    file = tmp_path / "odd.jsonl"
    file.write_text('{"frage": "1+1?", "antwort": "2"}\n')
    with pytest.raises(ValueError, match=r"antwort, frage.*columns"):
        load_problems(DataSettings(path=str(file)))


def test_explicit_columns_reach_into_nested_ones(tmp_path):
    file = tmp_path / "odd.jsonl"
    file.write_text('{"frage": {"text": "1+1?"}, "antwort": "#### 2", "stufe": "Level 4", "nr": 7, "quelle": "buch"}\n')
    columns = ColumnSettings(
        question="frage.text", gold="antwort", gold_format="gsm8k", level="stufe", id="nr", source="quelle"
    )
    (problem,) = load_problems(DataSettings(path=str(file), columns=columns))
    assert (problem.question, problem.gold, problem.id) == ("1+1?", "2", "buch/7")
    assert problem.metadata["level"] == 4


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "assistant"),
        ([{"role": "user", "content": "a"}] * 2, "2 user messages"),
        ([{"role": "user", "content": [{"type": "image", "url": "x"}]}], "images"),
        (["a"], "neither text nor"),
        (None, "missing"),
        (" ", "empty"),
    ],
)
def test_prompts_that_cannot_be_asked_are_refused(value, reason):
    with pytest.raises(ValueError, match=reason):
        question_text(value)


def test_system_message_is_kept_apart():
    assert question_text([{"role": "system", "content": "S"}, *CHAT]) == ("What is 1+1?", "S")


@pytest.mark.parametrize(
    ("value", "level"), [("Level 5", 5), ("5", 5), (5, 5), ("2.5", 2.5), ("Level ?", None), (None, None), (True, None)]
)
def test_levels(value, level):
    assert level_of(value) == level


def test_ids_do_not_depend_on_the_order_of_rows():
    assert problem_id(None, "s", "q") == problem_id(None, "s", "q") != problem_id(None, "s", "p")
    assert problem_id("math-ai/aime26-1", "math-ai/aime26", "q") == "math-ai/aime26-1"
