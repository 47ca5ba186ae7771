"""The gold answer of a row is what the data means, exactly."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.tasks.gold import boxed_gold, gold_text, gsm8k_gold


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (33, "33"),
        (Decimal("33.0"), "33"),
        (33.0, "33"),
        (Decimal("-1.0"), "-1"),
        (Decimal("0.1"), "0.1"),
        (Decimal("2.50"), "2.50"),
        (Decimal("4.5e33"), "4.5E+33"),
        (10**30, "1" + "0" * 30),
        ("  025 ", "025"),
        ("33.0", "33.0"),
        (["2"], "2"),
        (["$69$,$84$"], "69,84"),
        (["3", "5"], "3, 5"),
        (["$f(x)=x$, where $x$ is odd"], "$f(x)=x$, where $x$ is odd"),
        ([27.0], "27"),
    ],
)
def test_gold_text_is_exact(value, text):
    assert gold_text(value) == text


@pytest.mark.parametrize("value", [None, "", "  ", [], [None], {"a": 1}, float("nan"), Decimal("Infinity")])
def test_gold_without_a_value_is_refused(value):
    with pytest.raises(ValueError, match="gold answer"):
        gold_text(value)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("3 * <<3*4=12>>4\n#### 12", "12"),
        ("#### 1\nno\n#### 2", "2"),
        ("x\n#### 1,234", "1234"),
        ("#### -5", "-5"),
        ("#### 1,2", "1,2"),
    ],
)
def test_gsm8k_gold_follows_the_last_mark(answer, gold):
    assert gsm8k_gold(answer) == gold


@pytest.mark.parametrize("answer", ["12", "####", "#### \n"])
def test_gsm8k_without_an_answer_is_refused(answer):
    with pytest.raises(ValueError, match="####"):
        gsm8k_gold(answer)


@pytest.mark.parametrize(
    ("solution", "gold"),
    [
        (r"so \boxed{5}", "5"),
        (r"\boxed{1} or rather \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\fbox{7}", "7"),
        (r"hence \boxed 8$.", "8"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{3} and a torn \boxed{4", "3"),
        (r"\boxed{2} then \boxed{}", "2"),
    ],
)
def test_boxed_gold_is_the_last_complete_box(solution, gold):
    assert boxed_gold(solution) == gold


@pytest.mark.parametrize("solution", ["", "no box", r"\boxed{1", r"\boxed{ }"])
def test_solution_without_a_box_is_refused(solution):
    with pytest.raises(ValueError, match="boxed"):
        boxed_gold(solution)


@given(st.recursive(st.sampled_from(["x", "1", r"\frac", r"\{", r"\}"]), lambda s: s.map(lambda t: "{" + t + "}")))
@settings(deadline=None, max_examples=60)
def test_any_balanced_content_comes_out_whole(content):
    assert boxed_gold(rf"thus $\boxed{{{content}}}$ and }}}} noise") == content


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**9), max_value=10**9))
@settings(deadline=None, max_examples=100)
def test_decimal_gold_keeps_its_value(value):
    assert Decimal(gold_text(value)) == value
