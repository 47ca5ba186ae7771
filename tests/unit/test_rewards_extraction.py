"""Answers are found where the model wrote them, and nowhere else."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.rewards.extraction import answer_from_code, extract_answer


def answer(text: str, *modes: str) -> str | None:
    found = extract_answer(text, modes=modes or ("boxed",))
    return None if found is None else found.answer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{5}.", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\}}", r"\}"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\boxed 5", "5"),
        (r"$\boxed 12$", "12"),
        (r"\boxed 5.", "5"),
        (r"\boxed{3} then \boxed{7}", "7"),
        (r"\boxed{3} then \boxed{7", "3"),
        (r"{{ \boxed{3 and \boxed{7}", "7"),
        (r"} \boxed{5}", "5"),
        (r"\boxed{5} as asked in \boxed{}", "5"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"\boxedfoo{5}", None),
        (r"\boxed{5", None),
        (r"\boxed", None),
        ("", None),
        ("the answer is 5", None),
    ],
)
def test_the_last_complete_box_counts(text, expected):
    assert answer(text) == expected


def test_boxes_inside_code_fences_are_not_the_models_answer():
    fenced = "```python\nprint(r'\\boxed{5}')\n```\n"
    assert answer(fenced) is None
    assert answer(fenced + r"\boxed{8}") == "8"
    assert extract_answer(fenced, skip_fenced=False).answer == "5"
    assert answer(r"\boxed{8}" + "\n```python\nprint(r'\\boxed{5}')") == "8"


def test_offsets_point_at_the_construct():
    text = r"so \boxed{ 42 } it is"
    found = extract_answer(text)
    assert text[found.start : found.end] == r"\boxed{ 42 }"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("final_answer(5)", "5"),
        ("final_answer(-5)", "-5"),
        ("final_answer(+5)", "5"),
        ("final_answer(2.5)", "2.5"),
        ("final_answer('x + 1')", "x + 1"),
        ("final_answer(Fraction(3, 4))", "3/4"),
        ("final_answer(-Fraction(6, 8))", "-3/4"),
        ("final_answer(Fraction('0.25'))", "1/4"),
        ("final_answer((1, -2))", "(1, -2)"),
        ("x = 3\nfinal_answer(1)\nfinal_answer(2)", "2"),
        ("def f():\n    final_answer(9)\nf()", "9"),
        ("x = 3\nfinal_answer(x)", None),
        ("final_answer(1 + 1)", None),
        ("final_answer()", None),
        ("final_answer(1, 2)", None),
        ("final_answer(True)", None),
        ("final_answer(-'5')", None),
        ("final_answer(Fraction(1, 0))", None),
        ("final_answer(Fraction('1e999999999'))", None),
        ("print('final_answer(5)')", None),
        ("# final_answer(5)", None),
        ("final_answer(5", None),
        ("obj.final_answer(5)", None),
    ],
)
def test_only_literals_given_to_final_answer_count(code, expected):
    assert answer_from_code(code) == expected


def test_final_answer_is_looked_for_in_the_last_block_that_has_one():
    text = "```python\nfinal_answer(1)\n```\nwait\n```py\nfinal_answer(2)\n```\n```python\nprint(3)\n```"
    assert answer(text, "final_answer") == "2"
    assert answer("final_answer(4)", "final_answer") == "4"


@pytest.mark.parametrize(
    "code", ["final_answer(" + "(" * 5000, "final_answer(\0)", "final_answer(" + "-" * 20000 + "1)"]
)
def test_programs_that_python_refuses_have_no_answer(code):
    assert answer_from_code(code) is None


def test_other_modes_and_their_order():
    assert answer("work\n#### 1,234\n", "hashes") == "1,234"
    assert answer("#### 1\n#### 2", "hashes") == "2"
    assert answer("The answer is 12. Good.", "plain") == "12"
    assert answer("The final answer is: **3/4**", "plain") == "3/4"
    assert answer("we get 3, then 41", "plain") == "41"
    assert answer("nothing", "plain") is None
    text = "#### 9\n" + r"\boxed{8}"
    assert extract_answer(text, modes=("boxed", "hashes")).mode == "boxed"
    assert extract_answer(text, modes=("hashes", "boxed")).mode == "hashes"
    with pytest.raises(ValueError, match="extraction mode 'boxes'"):
        extract_answer("x", modes=("boxes",))


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 200_000,
        r"\boxed{" * 100_000 + "5" + "}" * 100_000,
        "{" * 1_000_000,
        "}" * 1_000_000,
        r"\boxed 5" * 100_000,
        " " * 1_000_000 + "####",
        "```\n" * 200_000 + r"\boxed{5}" * 1000,
        "answer is " * 100_000,
        "1," * 400_000,
    ],
)
def test_long_and_hostile_texts_are_read_in_linear_time(text):
    began = time.monotonic()
    extract_answer(text, modes=("boxed", "final_answer", "hashes", "plain"))
    assert time.monotonic() - began < 20


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet="\\boxedf{} 5$`\n#", max_size=60), st.text(alphabet="0123456789/", min_size=1, max_size=8))
def test_a_box_at_the_end_is_always_found(before, content):
    # Any prefix, however broken: the box that closes last is the answer, unless an open fence swallows it.
    found = extract_answer(before + " \\boxed{" + content + "}", skip_fenced=False)
    assert found is not None
    assert found.answer == content or content in found.answer
