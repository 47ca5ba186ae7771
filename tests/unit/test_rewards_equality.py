"""The rules of equality, without processes: exact, symmetric, and the same on the fast and the slow path."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent_rl.rewards.exact import equal_numbers, read_number
from agent_rl.rewards.judge import judge, judge_fast
from agent_rl.rewards.normalise import normalise
from agent_rl.rewards.shapes import Unreadable
from agent_rl.rewards.structure import read
from agent_rl.rewards.verifier import Verifier

OPTIONS = Verifier().options
INTEGERS = st.integers(-(10**12), 10**12)
FRACTIONS = st.builds(Fraction, INTEGERS, st.integers(1, 10**6))


def spellings(value: Fraction) -> list[str]:
    """The same exact number as people write it."""
    top, bottom = value.numerator, value.denominator
    sign, size = ("-" if top < 0 else ""), abs(top)
    out = [
        f"{top}/{bottom}",
        f"\\frac{{{top}}}{{{bottom}}}",
        f"{sign}\\dfrac{{{size}}}{{{bottom}}}",
        f"$\\frac{{{top}}}{{{bottom}}}$",
    ]
    if bottom == 1:
        out += [str(top), f"{top}.0", f"{top:,}", f"\\({top}\\)", f"{sign}\\${size}", f"{top} cm", f"x = {top}"]
        out += [f"{top:,}".replace(",", "{,}"), f"**{top}**"]
    elif size > bottom:
        whole, rest = divmod(size, bottom)
        out += [f"{sign}{whole}\\frac{{{rest}}}{{{bottom}}}", f"{sign}{whole} {rest}/{bottom}"]
    return out


@settings(deadline=None, max_examples=150)
@given(FRACTIONS, st.data())
def test_every_spelling_of_a_rational_is_accepted_both_ways(value, data):
    a, b = data.draw(st.sampled_from(spellings(value))), data.draw(st.sampled_from(spellings(value)))
    assert judge_fast(a, b, "math", OPTIONS).kind == "correct", (a, b)
    assert judge_fast(b, a, "math", OPTIONS).kind == "correct", (a, b)


@settings(deadline=None, max_examples=150)
@given(FRACTIONS, FRACTIONS, st.data())
def test_no_spelling_of_another_rational_is_accepted(x, y, data):
    assume(x != y)
    a, b = data.draw(st.sampled_from(spellings(x))), data.draw(st.sampled_from(spellings(y)))
    assert judge_fast(a, b, "math", OPTIONS).kind == "wrong", (a, b)


@settings(deadline=None, max_examples=60)
@given(FRACTIONS, FRACTIONS, st.booleans(), st.data())
def test_the_slow_path_agrees_with_the_fast_one(x, y, same, data):
    a = data.draw(st.sampled_from(spellings(x)))
    b = data.draw(st.sampled_from(spellings(x if same else y)))
    assert judge(a, b, "math", OPTIONS).kind == judge_fast(a, b, "math", OPTIONS).kind


ATOMS = ["1", "2", "x", "y", "\\pi", "\\sqrt{2}", "\\frac{1}{3}", "0.5", "e", "i", "(x+1)", "3^{2}"]
EXPRESSIONS = st.lists(st.sampled_from(ATOMS), min_size=1, max_size=4).flatmap(
    lambda atoms: st.lists(st.sampled_from([" + ", " - ", " \\cdot "]), min_size=len(atoms), max_size=len(atoms)).map(
        lambda operators: "".join(x for pair in zip(atoms, operators, strict=True) for x in pair)[: -len(operators[-1])]
    )
)
SHAPES = st.one_of(
    EXPRESSIONS,
    st.tuples(EXPRESSIONS, EXPRESSIONS).map(lambda p: f"({p[0]}, {p[1]})"),
    st.tuples(EXPRESSIONS, EXPRESSIONS).map(lambda p: f"\\{{{p[0]}, {p[1]}\\}}"),
    st.tuples(EXPRESSIONS, EXPRESSIONS).map(lambda p: f"{p[0]}, {p[1]}"),
    EXPRESSIONS.map(lambda e: f"x = {e}"),
    st.sampled_from(
        ["x < 2", "(-\\infty, 2)", "(-\\infty, 2]", "x \\le 2", "\\text{none}", "50\\%", "1:2", "\\$5", "5 cm"]
    ),
)


@settings(deadline=None, max_examples=120)
@given(SHAPES, SHAPES)
def test_comparison_is_symmetric(a, b):
    accepted = [judge(*pair, "math", OPTIONS).kind == "correct" for pair in ((a, b), (b, a))]
    assert accepted[0] == accepted[1]


@settings(deadline=None, max_examples=60)
@given(SHAPES)
def test_every_shape_equals_itself_in_another_spelling(a):
    other = a.replace(" ", "  ").replace("\\frac", "\\dfrac").replace("(", "\\left(").replace(")", "\\right)")
    assert judge(f"${other}$", a, "math", OPTIONS).kind == "correct"


@settings(deadline=None, max_examples=60)
@given(EXPRESSIONS)
def test_adding_one_is_never_accepted(a):
    assert judge(f"{a} + 1", a, "math", OPTIONS).kind == "wrong"


@settings(deadline=None, max_examples=400)
@given(st.text(alphabet=r"\frac{}()[]0123456789.,;:=<>^_$%! xeti+-*/|&" + "\n½²π≤\u200b\ud800", max_size=80))
def test_any_text_gets_an_answer_and_never_an_exception(text):
    normalise(text)
    fast = judge_fast(text, "7", "math", OPTIONS)
    assert fast is None or fast.kind in ("correct", "wrong", "undecided")
    for kind in ("string", "choice", "numeric"):
        judge_fast(text, "7", kind, OPTIONS)
    with contextlib.suppress(Unreadable):  # the one way to refuse a text; anything else fails this test
        read(text)


def test_rounding_needs_enough_digits_and_is_symmetric():
    third, six, two = (read_number(text) for text in ("1/3", "0.333333", "0.33"))
    assert equal_numbers(third, six) and equal_numbers(six, third)
    assert not equal_numbers(third, two) and not equal_numbers(two, third)
    assert equal_numbers(third, two, decimal_digits=2)
    small, smaller = read_number("0.0000001"), read_number("0.00000012")
    assert not equal_numbers(small, smaller)


def test_percent_rule_is_a_setting():
    fifty, sign = read_number("50"), read_number("50%")
    assert equal_numbers(fifty, sign) and not equal_numbers(fifty, sign, percent_as_number=False)
    assert equal_numbers(read_number("0.5"), sign, percent_as_number=False)


@pytest.mark.parametrize("gold", ["1,234", "\\frac{3}{4}", "$18", "50%", "(1,2)", "Evelyn", "\\text{(C)}"])
def test_simple_answers_need_no_worker(gold):
    assert judge_fast(gold + " ", gold, "math", OPTIONS).kind == "correct"
    assert judge_fast("77777", gold, "math", OPTIONS).kind == "wrong"


def test_the_fast_path_and_the_settings_import_no_computer_algebra():
    code = (
        "import sys, agent_rl.rewards.verifier, agent_rl.rewards.shaping;"
        "from agent_rl.rewards.verifier import Verifier;"
        "assert Verifier().verify_sync('1/2', '0.5').kind == 'correct';"
        "heavy = {'sympy', 'torch', 'transformers', 'math_verify', 'antlr4', 'numpy'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
