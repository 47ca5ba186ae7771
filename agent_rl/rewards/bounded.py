"""Operations whose results can be huge, refused before they are evaluated. Used inside the worker only."""

from __future__ import annotations

import sympy

from agent_rl.rewards.shapes import TooLarge, Unreadable

MAX_BITS = 2_000_000
"""Largest integer that a power, factorial or binomial may evaluate to."""
MAX_FACTORIAL = 50_000


def rational(token: str) -> sympy.Rational:
    """The exact value of a decimal literal, with or without an exponent."""
    mantissa, _, exponent = token.lower().partition("e")
    if exponent and abs(int(exponent)) > 100_000:
        raise TooLarge("a power of ten beyond the bounds")
    whole, _, decimals = mantissa.partition(".")
    value = sympy.Rational(int((whole or "0") + decimals), 10 ** len(decimals))
    return value * sympy.Integer(10) ** int(exponent) if exponent else value


def divide(top: sympy.Expr, bottom: sympy.Expr) -> sympy.Expr:
    """`top / bottom`, where the bottom is not zero."""
    if bottom == 0:
        raise Unreadable("a division by zero")
    return top / bottom


def factorial(value: sympy.Expr, double: bool = False) -> sympy.Expr:
    """`value!` (or `value!!`) of a whole number up to `MAX_FACTORIAL`, or of an expression with symbols."""
    if value.is_number and not value.is_Integer:
        raise Unreadable("a factorial of something that is no whole number")
    if value.is_Integer:
        if value < 0:
            raise Unreadable("a factorial of a negative number")
        if value > MAX_FACTORIAL:
            raise TooLarge("a factorial beyond the bounds")
    return sympy.factorial2(value) if double else sympy.factorial(value)


def _bits(value: sympy.Rational) -> int:
    return max(int(value.p).bit_length(), int(value.q).bit_length())


def power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    """`base ** exponent`, refused before it is evaluated where its size would pass `MAX_BITS`."""
    if base.is_Rational and exponent.is_Rational:
        if base == 0 and exponent < 0:
            raise Unreadable("a division by zero")
        if base not in (0, 1, -1) and _bits(base) * abs(exponent) > MAX_BITS:
            raise TooLarge("a power beyond the bounds")
    elif not exponent.free_symbols and not base.free_symbols:
        if exponent.is_Rational:
            too_large = abs(exponent) > MAX_BITS
        else:
            size = exponent.evalf(5)
            too_large = not size.is_finite or bool(abs(size) > MAX_BITS)
        if too_large and not exponent.is_infinite:
            raise TooLarge("an exponent beyond the bounds")
    return sympy.Pow(base, exponent)
