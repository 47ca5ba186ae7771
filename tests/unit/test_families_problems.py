"""Generated problems: a pure function of (family, seed, index), split by their text, right by their own programs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.sft.execution import run_own_programs
from agent_rl.tasks.families import EVAL_PERCENT, FAMILIES, UNSEEN, Family, generate, items, split_of

EVERY = list((FAMILIES | UNSEEN).values())


@pytest.mark.parametrize("family", EVERY, ids=lambda f: f.name)
@given(seed=st.integers(0, 2**40), index=st.integers(0, 2**40))
@settings(deadline=None, max_examples=20)
def test_an_item_depends_on_seed_and_index_alone(family: Family, seed: int, index: int) -> None:
    first = family.item(seed, index)
    family.item(seed + 1, index)  # another draw in between changes nothing
    assert family.item(seed, index) == first
    assert first.question == first.question.strip() and int(first.gold) == int(first.gold.strip())


@pytest.mark.parametrize("family", EVERY, ids=lambda f: f.name)
def test_the_reference_programs_print_the_gold_answer(family: Family) -> None:
    drawn = [family.item(11, index) for index in range(60)]
    outcomes = run_own_programs([p for item in drawn for p in item.programs], deadline_s=60)
    for item in drawn:
        results = [outcomes[program] for program in item.programs]
        assert results[-1].ok and results[-1].stdout == f"{item.gold}\n"
        assert len(results) == family.calls


@pytest.mark.parametrize("family", EVERY, ids=lambda f: f.name)
def test_mistakes_mostly_end_in_another_number_or_in_none(family: Family) -> None:
    drawn = [family.item(12, index) for index in range(60)]
    endings = [(item.gold, mistake[-1]) for item in drawn for mistake in item.mistakes]
    outcomes = run_own_programs([program for _, program in endings], deadline_s=60)
    right = sum(outcomes[program].stdout.strip() == gold for gold, program in endings)
    assert right <= 0.2 * len(endings)


def test_chains_copy_the_first_output_and_repairs_begin_with_an_error() -> None:
    chained = [f for f in FAMILIES.values() if f.name.endswith(("_linear", "_square", "_power"))]
    repaired = [FAMILIES[name] for name in ("square_root", "skip_zero", "skip_gaps")]
    assert len(chained) == 3
    pairs = [(f, f.item(5, index).programs) for f in chained + repaired for index in range(30)]
    outcomes = run_own_programs([first for _, (first, _) in pairs], deadline_s=60)
    for family, (first, second) in pairs:
        outcome = outcomes[first]
        if family in repaired:
            assert outcome.status == "error" and "Error" in outcome.stderr.splitlines()[-1]
        else:
            assert outcome.ok and outcome.stdout.strip() in second


@pytest.mark.parametrize("family", EVERY, ids=lambda f: f.name)
def test_the_question_space_is_as_large_as_stated(family: Family) -> None:
    draws = 2000
    different = len({family.item(3, index).question for index in range(draws)})
    # Equally likely questions would give about draws - draws^2 / (2 questions) different ones; families whose
    # numbers are products draw some questions more often.
    assert different >= draws - 4 * draws**2 / (2 * family.questions)
    assert family.questions >= 10_000


def test_splits_share_no_question_and_hold_the_stated_share() -> None:
    train = {p.question for p in generate(None, seed=0, count=800, split="train")}
    held_out = {p.question for p in generate(None, seed=1, count=800, split="eval")}
    assert len(train) == len(held_out) == 800
    assert not train & held_out
    questions = [FAMILIES["digit_sum"].item(0, index).question for index in range(4000)]
    share = sum(split_of(q) == "eval" for q in questions) / len(questions)
    assert abs(share - EVAL_PERCENT / 100) < 0.02


def test_ids_are_unique_stable_and_name_the_family() -> None:
    problems = generate(["gcd", "lcm"], seed=4, count=400)
    assert len({p.id for p in problems}) == 400
    assert all(p.id.startswith(f"{p.source}/") and p.kind == "math" for p in problems)
    by_question = {p.question: p.id for p in problems}
    again = generate(["lcm", "gcd"], seed=4, count=300)
    assert all(by_question[p.question] == p.id for p in again)


def test_families_take_turns_and_a_longer_list_begins_with_the_shorter() -> None:
    short, long = generate(None, 9, 50, "eval"), generate(None, 9, 120, "eval")
    assert long[:50] == short
    assert [p.source for p in long[: len(FAMILIES)]] == list(FAMILIES)


def test_unseen_families_are_for_evaluation_only() -> None:
    assert len(UNSEEN) >= 3 and not set(UNSEEN) & set(FAMILIES)
    assert {p.source for p in generate(list(UNSEEN), 0, 8, "eval")} == set(UNSEEN)
    with pytest.raises(ValueError, match="never trained on"):
        generate(["gcd_of_three"], 0, 1, "train")


def test_bad_requests_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"unknown family 'gdc'.*gcd"):
        generate(["gdc"], 0, 1)
    with pytest.raises(ValueError, match="split must be"):
        generate(None, 0, 1, "test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="negative"):
        generate(None, 0, -1)


def test_a_family_that_is_used_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Family("few", "ten questions", lambda rng: FAMILIES["gcd"].item(0, rng.randrange(10)), questions=10)
    monkeypatch.setitem(FAMILIES, "few", few)
    with pytest.raises(ValueError, match=r"'few' gave only [0-9]+ different train questions"):
        items(["few"], 0, 11)
