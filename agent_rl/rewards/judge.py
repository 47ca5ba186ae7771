"""One judgement of one answer: the rules of each verifier, apart from processes and deadlines.

:func:`judge_fast` never evaluates anything and runs in the caller's process; :func:`judge` may use computer
algebra or a custom function and runs in a worker.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from agent_rl.rewards.compare import Comparison, NeedsAlgebra
from agent_rl.rewards.normalise import normalise
from agent_rl.rewards.shapes import Node, Scalar, TooLarge, Unreadable, Words
from agent_rl.rewards.structure import read, same_spelling
from agent_rl.rewards.wording import same_words

FAST_CHARS = 300
"""Longest answer or gold that is read in the caller's process."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """`correct`, `wrong` or `undecided`, and why."""

    kind: str
    reason: str


def judge_fast(answer: str, gold: str, kind: str, options: Mapping[str, Any]) -> Judgement | None:
    """A judgement that needs no worker, or None. Bounded by `FAST_CHARS`; touches no computer algebra."""
    if kind == "string":
        return _judge_string(answer, gold)
    if kind == "choice":
        return _judge_choice(answer, gold)
    if len(answer) > FAST_CHARS or len(gold) > FAST_CHARS:
        return None
    if kind == "numeric":
        return _judge_numeric_fast(answer, gold, options)
    if kind != "math":
        return None
    if answer.strip() == gold.strip() or same_spelling(answer, gold):
        return _readable_copy(answer)
    comparison = Comparison(options["percent_as_number"], options["decimal_digits"])
    try:
        equal = comparison.equal(read(answer), _read_gold(gold))
    except (NeedsAlgebra, Unreadable, TooLarge):
        return None
    return _decided(equal)


def judge(answer: str, gold: str, kind: str, options: Mapping[str, Any]) -> Judgement:
    """A judgement by whatever it takes. Raises what the rules do not foresee; the worker reports that."""
    if kind in ("string", "choice"):
        return judge_fast(answer, gold, kind, options) or Judgement("undecided", "no rule applies")
    if ":" in kind:
        return _judge_custom(answer, gold, kind)
    from agent_rl.rewards.algebra import CannotDecide, SympyAlgebra

    if same_spelling(answer, gold):
        return _readable_copy(answer)
    try:
        if kind == "numeric":
            return _judge_numeric(answer, gold, options)
        return _judge_math(answer, gold, options, SympyAlgebra(options["decimal_digits"]))
    except TooLarge as error:
        return Judgement("undecided", f"size: {error}")
    except CannotDecide as error:
        return Judgement("undecided", f"undecidable: {error}")


def _decided(equal: bool) -> Judgement:
    return Judgement("correct", "equal") if equal else Judgement("wrong", "not equal")


def _readable_copy(answer: str) -> Judgement:
    if not normalise(answer).strip():
        return Judgement("wrong", "the answer is empty")
    return Judgement("correct", "same spelling")


@lru_cache(maxsize=8192)
def _read_gold(gold: str) -> Node:
    return read(gold)


def _judge_math(answer: str, gold: str, options: Mapping[str, Any], algebra: Any) -> Judgement:
    comparison = Comparison(options["percent_as_number"], options["decimal_digits"], algebra)
    try:
        gold_node = _read_gold(gold)
        _check_scalars(gold_node)
    except Unreadable as error:
        # Prose that is no mathematics can still be compared as words.
        if re.search(r"[A-Za-z]{3,}", gold) and same_words(normalise(answer), normalise(gold)):
            return Judgement("correct", "same words")
        return Judgement("undecided", f"gold unreadable: {error}")
    try:
        answer_node = read(answer)
        _check_scalars(answer_node)
    except Unreadable as error:
        return Judgement("wrong", f"answer unreadable: {error}")
    try:
        return _decided(comparison.equal(answer_node, gold_node))
    except Unreadable as error:
        return Judgement("wrong", f"not comparable: {error}")


def _check_scalars(node: Node) -> None:
    """Read every expression of a shape, so that an unreadable side is named."""
    from agent_rl.rewards.algebra import expression

    if isinstance(node, Scalar):
        if node.number is None:
            expression(node)
        return
    if isinstance(node, Words):
        return
    for name in node.__dataclass_fields__:
        value = getattr(node, name)
        if isinstance(value, tuple):
            for item in value:
                for inner in item if isinstance(item, tuple) else (item,):
                    if not isinstance(inner, str):
                        _check_scalars(inner)


def _judge_string(answer: str, gold: str) -> Judgement:
    left, right = " ".join(answer.split()).casefold(), " ".join(gold.split()).casefold()
    return _decided(left == right and bool(left))


_CHOICE = re.compile(
    r"[\s(\[{*$]*(?:\\(?:text(?:bf)?|mathrm|mathbf|boxed)\s*\{\s*)*(?:option|choice|answer)?\s*:?[\s(\[{*$]*([A-Za-z])"
    r"(?=$|[\s)\].,:;}*$])",
    re.IGNORECASE,
)


def _judge_choice(answer: str, gold: str) -> Judgement:
    """The letter of a multiple choice; words may follow it only behind `)`, `.`, `:` or the like."""
    left, right = _choice_letter(answer[:500]), _choice_letter(gold[:500])
    if right is None:
        return Judgement("undecided", f"gold unreadable: {gold[:40]!r} names no choice")
    return Judgement("wrong", "the answer names no choice") if left is None else _decided(left == right)


def _choice_letter(text: str) -> str | None:
    text = " ".join(text.split())
    match = _CHOICE.match(text)
    if match is None:
        return None
    rest = text[match.end() :]
    if re.match(r"\s+\w", rest):
        return None  # "A man ..." is a sentence
    return match.group(1).upper()


def _tolerant(left: Fraction, right: Fraction, options: Mapping[str, Any]) -> bool:
    """`right` is the gold value; all in exact rationals."""
    gap = abs(left - right)
    return gap <= Fraction(options["absolute_tolerance"]) or gap <= Fraction(options["relative_tolerance"]) * abs(right)


def _judge_numeric_fast(answer: str, gold: str, options: Mapping[str, Any]) -> Judgement | None:
    try:
        left, right = read(answer), _read_gold(gold)
    except Unreadable:
        return None
    if not (isinstance(left, Scalar) and isinstance(right, Scalar)) or left.number is None or right.number is None:
        return None
    return _numeric_verdict(left, left.number.value, right, right.number.value, options)


def _numeric_verdict(
    left: Scalar, left_value: Fraction, right: Scalar, right_value: Fraction, options: Mapping[str, Any]
) -> Judgement:
    if left.unit and right.unit and left.unit.dimension and right.unit.dimension:
        if left.unit.dimension != right.unit.dimension:
            return Judgement("wrong", "another unit")
        left_value, right_value = left_value * left.unit.factor, right_value * right.unit.factor
    if left.percent != right.percent:
        left_value = left_value / 100 if left.percent else left_value
        right_value = right_value / 100 if right.percent else right_value
    return _decided(_tolerant(left_value, right_value, options))


def _judge_numeric(answer: str, gold: str, options: Mapping[str, Any]) -> Judgement:
    from agent_rl.rewards.compare import assigned

    try:
        right = assigned(_read_gold(gold))[1]
        right_value = _real_value(right)
    except Unreadable as error:
        return Judgement("undecided", f"gold unreadable: {error}")
    try:
        left = assigned(read(answer))[1]
        left_value = _real_value(left)
    except Unreadable as error:
        return Judgement("wrong", f"answer unreadable: {error}")
    assert isinstance(left, Scalar) and isinstance(right, Scalar)
    return _numeric_verdict(left, left_value, right, right_value, options)


def _real_value(node: Node) -> Fraction:
    from agent_rl.rewards.algebra import expression

    value = expression(node).evalf(40)
    if not (value.is_number and value.is_real and value.is_finite):
        raise Unreadable("no real number")
    import sympy

    exact = sympy.Rational(value)
    return Fraction(int(exact.p), int(exact.q))


def _judge_custom(answer: str, gold: str, kind: str) -> Judgement:
    """Call `module:function(answer, gold)`; it returns a bool, or a (kind, reason) pair."""
    result = load_custom(kind)(answer, gold)
    if isinstance(result, bool):
        return _decided(result)
    if isinstance(result, tuple) and len(result) == 2 and result[0] in ("correct", "wrong", "undecided"):
        return Judgement(result[0], str(result[1]))
    raise TypeError(
        f"the verifier {kind!r} returned {result!r}; return a bool or a pair "
        "('correct' | 'wrong' | 'undecided', reason)"
    )


@lru_cache(maxsize=16)
def load_custom(path: str) -> Callable[[str, str], Any]:
    """The function at an import path `package.module:function`."""
    module, _, name = path.partition(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    return function
