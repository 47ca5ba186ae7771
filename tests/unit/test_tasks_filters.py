"""Filters leave out what they say, count it, and stop when nothing is left."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from agent_rl.tasks.lengths import prompt_lengths
from agent_rl.tasks.load import load_problems
from agent_rl.tasks.overlap import find_overlaps, separate
from agent_rl.tasks.problems import Problems
from agent_rl.tasks.settings import DataSettings
from agent_rl.tasks.text import loose_key, signed_key, strip_instructions
from agent_rl.types import Problem


@pytest.fixture
def mixed(tmp_path):
    rows = [
        {"question": f"What is {i} plus 1?", "answer": str(i + 1), "level": i % 5 + 1, "type": "ab"[i % 2]}
        for i in range(20)
    ]
    rows += [{"question": "WHAT is 3 plus  1 ?", "answer": "4", "level": 4}, {"question": "No level?", "answer": "1"}]
    file = tmp_path / "mixed.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(file)


def test_duplicates_are_counted(mixed):
    problems = load_problems(DataSettings(path=mixed))
    assert len(problems) == 21
    assert problems.dropped == {"duplicate question": 1}
    assert len(load_problems(DataSettings(path=mixed, deduplicate=False))) == 22


def test_level_subject_and_limit(mixed):
    problems = load_problems(DataSettings(path=mixed, difficulty=(2, 3), subjects=["a"]))
    assert {p.metadata["level"] for p in problems} == {2, 3}
    assert {p.metadata["subject"] for p in problems} == {"a"}
    assert sum(problems.dropped.values()) == 22 - len(problems)
    limited = load_problems(DataSettings(path=mixed, limit=3))
    assert [p.gold for p in limited] == ["1", "2", "3"]


def test_nothing_left_says_why(mixed):
    with pytest.raises(ValueError, match=r"no problem is left.*21 level outside.*1 no level"):
        load_problems(DataSettings(path=mixed, difficulty=(8, 9)))
    with pytest.raises(ValueError, match="source not in"):
        load_problems(DataSettings(path=mixed, sources=["elsewhere"]))


def test_repeated_ids_are_told_apart(tmp_path):
    file = tmp_path / "ids.jsonl"
    file.write_text("".join(json.dumps({"id": "x", "question": q, "answer": "1"}) + "\n" for q in "abc"))
    assert [p.id for p in load_problems(DataSettings(path=str(file)))] == ["ids/x", "ids/x~2", "ids/x~3"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one"),
        ({"path": "a", "families": []}, "path, families"),
        ({"path": "a", "difficulty": (3, 2)}, "empty"),
        ({"path": "a", "mix": {"a": -1}}, "negative"),
        ({"path": "a", "mix": {"a": 0}}, "above 0"),
        ({"families": [], "columns": {"question": "q", "gold": "a"}}, "columns belong"),
        ({"path": "a", "pathh": "b"}, "pathh"),
    ],
)
def test_settings_that_do_not_fit_together(fields, message):
    with pytest.raises(ValidationError, match=message):
        DataSettings(**fields)


def test_mix_leaves_out_a_source_of_weight_zero(tmp_path):
    for name in "ab":
        rows = [{"question": f"{name} {i}", "answer": "1"} for i in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    problems = load_problems(DataSettings(path=f"{tmp_path}/*.jsonl", mix={"a": 2.0, "b": 0.0}))
    assert {p.source for p in problems} == {"a"}
    assert problems.weights == {"a": 2.0}
    assert problems.dropped == {"source with weight 0 in `mix`": 4}


@pytest.mark.parametrize(
    "text",
    [
        "Find x.\nPlease reason step by step, and put your final answer within \\boxed{}.",
        "Find x. Let's think step by step and output the final answer within \\boxed{}.",
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\nFind x.\n\n"
        'Remember to put your answer on its own line after "Answer:".',
    ],
)
def test_known_instructions_come_off(text):
    assert strip_instructions(text) == "Find x."
    assert strip_instructions("Express the area as \\boxed{} cm.") == "Express the area as \\boxed{} cm."


def test_keys_tell_signs_apart_and_ignore_layout():
    assert signed_key("Find $x^2 - 1$.") == signed_key("find  $x^2-1$")
    assert signed_key("x^2 - 1") != signed_key("x^2 + 1")
    assert signed_key("1.5") != signed_key("15")
    assert loose_key("x^2 - 1") == loose_key("X^2+1!")


def test_overlap_is_found_and_look_alikes_are_told_apart():
    train = Problems(
        (
            Problem("t/1", "Find the roots of $x^2-1$.", "1"),
            Problem("t/2", "Find the roots of $x^2+1$", "none"),
            Problem("t/3", "Something else", "1"),
        )
    )
    test = [Problem("e/1", "find the roots of x^2 - 1", "1")]
    found = find_overlaps(train, {"bench": test})
    assert [(o.train.id, o.benchmark, o.same) for o in found] == [("t/1", "bench", True), ("t/2", "bench", False)]
    assert [p.id for p in separate(train, {"bench": test}, "drop")] == ["t/2", "t/3"]
    assert separate(train, {"bench": test}, "drop").dropped == {"also in an evaluation set": 1}
    assert separate(train, {"bench": test}, "warn") is train
    with pytest.raises(ValueError, match=r"t/1 = e/1 \(bench\).*on_overlap"):
        separate(train, {"bench": test}, "error")


def test_equal_gold_answers_make_an_overlap_the_same_problem():
    train = [Problem("t/1", "Compute cos -150 degrees", "-0.866")]
    (overlap,) = find_overlaps(train, {"bench": [Problem("e/1", "Compute cos 150 degrees.", " -0.866")]})
    assert overlap.same


class CharTokenizer:
    """One token a character; counts its calls."""

    calls = 0

    def get_vocab(self):
        return {"a": 0}

    def __call__(self, texts, add_special_tokens):
        assert add_special_tokens is False
        self.calls += 1
        return {"input_ids": [list(t.encode()) for t in texts]}


def test_long_prompts_are_left_out_and_lengths_are_measured_once(mixed, tmp_path):
    tokenizer = CharTokenizer()
    settings = DataSettings(path=mixed, max_prompt_tokens=15, deduplicate=False)
    lengths = prompt_lengths(tokenizer, cache_dir=tmp_path)
    problems = load_problems(settings, lengths=lengths)
    assert problems.dropped == {"prompt longer than max_prompt_tokens (15)": 21}
    assert [p.question for p in problems] == ["No level?"]
    again = load_problems(settings, lengths=prompt_lengths(tokenizer, cache_dir=tmp_path))
    assert again.items == problems.items
    assert tokenizer.calls == 1
    load_problems(settings, lengths=prompt_lengths(tokenizer, cache_dir=tmp_path, render_name="other"))
    assert tokenizer.calls == 2
    with pytest.raises(ValueError, match="needs a tokenizer"):
        load_problems(settings)
