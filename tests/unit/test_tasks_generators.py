"""Generated problems: right, repeatable, harder with the level, and never in both splits."""

from __future__ import annotations

import importlib.util
import re

import pytest

from agent_rl.tasks.generators import GENERATORS, Draw, generate_scaled
from agent_rl.tasks.load import load_problems
from agent_rl.tasks.settings import DataSettings


def test_arithmetic_golds_are_right():
    for problem in generate_scaled(["scaled_arithmetic"], 0, 200, "train", (1, 10)):
        expression = re.fullmatch(r"Compute ([-+*() 0-9]+)\.", problem.question)[1]
        assert str(eval(expression)) == problem.gold  # only digits, signs and brackets, as matched


def test_word_problem_golds_are_right():
    for problem in generate_scaled(["scaled_words"], 0, 200, "train", (1, 6)):
        first, *steps, _ = re.split(r"(?<=[.?]) ", problem.question)
        stock = int(re.search(r"\d+", first)[0])
        for step in steps:
            number = int(re.search(r"\d+", step)[0])
            if "arrive" in step:
                stock += number
            elif "taken away" in step:
                stock -= number
            elif "grows to" in step:
                stock *= number
            else:
                assert stock % number == 0
                stock //= number
        assert str(stock) == problem.gold
        assert stock > 0


@pytest.mark.parametrize("name", GENERATORS)
def test_streams_repeat_and_extend(name):
    short = list(generate_scaled([name], 3, 10, "train"))
    long = list(generate_scaled([name], 3, 30, "train"))
    assert long[:10] == short
    assert [p.id for p in generate_scaled([name], 4, 10, "train")] != [p.id for p in short]


def test_splits_share_no_question():
    train = {p.question for p in generate_scaled([], 0, 600, "train", (1, 2))}
    test = {p.question for seed in range(3) for p in generate_scaled([], seed, 60, "eval", (1, 2))}
    assert len(train) == 600
    assert not train & test


def test_levels_make_longer_questions():
    problems = load_problems(DataSettings(generators=[], count=200, difficulty=(1, 10)))
    by_level = {level: [p for p in problems if p.metadata["level"] == level] for level in (1, 10)}
    mean = {level: sum(len(p.question) for p in ps) / len(ps) for level, ps in by_level.items()}
    assert mean[10] > 2 * mean[1]


@pytest.mark.parametrize(
    ("names", "count", "levels", "message"),
    [
        (["nope"], 1, (1, 2), "unknown generator 'nope'"),
        ([], 1, (0, 2), "within 1 to 10"),
        ([], 1, (1.5, 2), "whole levels"),
    ],
)
def test_impossible_requests_are_refused(names, count, levels, message):
    with pytest.raises(ValueError, match=message):
        list(generate_scaled(names, 0, count, "test", levels))


def test_a_generator_that_runs_dry_says_so(monkeypatch):
    monkeypatch.setitem(GENERATORS, "tiny", lambda rng, level: Draw(f"{rng.randrange(40)}?", "1"))
    with pytest.raises(ValueError, match=r"'tiny' at level 1 gave only \d+ different questions"):
        list(generate_scaled(["tiny"], 0, 41, "train", (1, 1)))


def test_families_come_through_the_same_door():
    train = load_problems(DataSettings(families=[], count=64), split="train")
    held_out = load_problems(DataSettings(families=[], count=64), split="test")
    assert len(train) == len(held_out) == 64
    assert not {p.question for p in train} & {p.question for p in held_out}


def test_reasoning_gym_missing_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"agent-rl\[reasoning-gym\]"):
        load_problems(DataSettings(gym={"datasets": ["gcd"]}))


def test_reasoning_gym_problems_have_text_answers():
    pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")
    settings = DataSettings(
        gym={"datasets": ["gcd", "chain_sum"], "options": {"chain_sum": {"max_terms": 3}}}, count=60
    )
    train = load_problems(settings)
    test = load_problems(settings, split="test")
    assert len(train) == 60 and {p.source for p in train} == {"gym/gcd", "gym/chain_sum"}
    assert not {p.question for p in train} & {p.question for p in test}
    (problem,) = load_problems(DataSettings(gym={"datasets": ["bitwise_arithmetic"]}, count=1))
    assert problem.kind == "string"
    (problem,) = load_problems(DataSettings(gym={"datasets": ["gcd"], "kinds": {"gcd": "numeric"}}, count=1))
    assert problem.kind == "numeric"
    for name, message in {"nope": "no data set 'nope'", "game_of_life_halting": "compared as text"}.items():
        with pytest.raises(ValueError, match=message):
            load_problems(DataSettings(gym={"datasets": [name]}))
