"""Families whose second program needs what the first one printed.

The interpreter keeps nothing from one program to the next, so the number has to be copied.
"""

from __future__ import annotations

import math
import random

from agent_rl.tasks.families.arithmetic import show
from agent_rl.tasks.families.base import Family, Item, pick
from agent_rl.tasks.families.numbers import (
    count_primes,
    digit_sum,
    pair_with_common_factor,
    primes_program,
    with_math,
)


def linear_tail(rng: random.Random, symbol: str) -> tuple[str, int, int]:
    """Words for `a * symbol + b`, with a and b."""
    a, b = pick(rng, 2, 30), pick(rng, 2, 99)
    return f"Compute {a} * {symbol} + {b}.", a, b


def chained(question: str, first: str, value: int, second: str, gold: int, wrong_second: str) -> Item:
    """An item of two calls: `first` prints `value`; `second` has it copied in. One mistake stops half-way."""
    return Item(
        question=question,
        gold=str(gold),
        programs=(first, second),
        mistakes=((first,), (first, wrong_second)),
    )


def _primes_then_linear(rng: random.Random) -> Item:
    limit = pick(rng, 20, 200)
    tail, a, b = linear_tail(rng, "n")
    value = count_primes(2, limit)
    return chained(
        f"Let n be the number of primes below {limit}. {tail}",
        primes_program(2, str(limit)),
        value,
        show(f"{a} * {value} + {b}"),
        a * value + b,
        show(f"{a} + {value} + {b}"),
    )


def _digits_then_square(rng: random.Random) -> Item:
    number, shift = pick(rng, 1000, 99_999), pick(rng, 2, 99)
    value = digit_sum(number)
    return chained(
        f"Let s be the sum of the digits of {number}. Compute s * s + {shift}.",
        f"print(sum(int(c) for c in str({number})))",
        value,
        show(f"{value} * {value} + {shift}"),
        value * value + shift,
        show(f"{value} + {value} + {shift}"),
    )


def _gcd_then_power(rng: random.Random) -> Item:
    a, b = pair_with_common_factor(rng, 900)
    exponent, modulus = pick(rng, 3, 40), pick(rng, 5, 99)
    value = math.gcd(a, b)
    return chained(
        f"Let g be the gcd of {a} and {b}. Find g^{exponent} modulo {modulus}.",
        with_math(f"math.gcd({a}, {b})"),
        value,
        show(f"pow({value}, {exponent}, {modulus})"),
        pow(value, exponent, modulus),
        show(f"{value} * {exponent} % {modulus}"),
    )


CHAINS = (
    Family("primes_then_linear", "count primes, then a * n + b", _primes_then_linear, 181 * 29 * 98, calls=2),
    Family("digits_then_square", "sum digits, then s * s + b", _digits_then_square, 1_000_000, calls=2),
    Family("gcd_then_power", "a gcd, then its power modulo m", _gcd_then_power, 1_000_000, calls=2),
)
