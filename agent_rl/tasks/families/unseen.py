"""Families that no trained policy of ours is shown.

The near ones change numbers, words or one more operand of a trained family, so that a policy of the shipped
size is right at times; the far ones need a longer program than any shown, or a chain put together anew.
"""

from __future__ import annotations

import math
import random

from agent_rl.tasks.families.arithmetic import expression_item, show
from agent_rl.tasks.families.base import Family, Item, pick
from agent_rl.tasks.families.chains import chained, linear_tail
from agent_rl.tasks.families.numbers import pair_with_common_factor, with_math
from agent_rl.tasks.families.words import shopping_item


def _long_arithmetic(rng: random.Random) -> Item:
    return expression_item(rng, 5)


def _shopping_three(rng: random.Random) -> Item:
    return shopping_item(rng, 3)


def _lcm_then_linear(rng: random.Random) -> Item:
    a, b = pair_with_common_factor(rng, 100)
    tail, factor, shift = linear_tail(rng, "n")
    value = math.lcm(a, b)
    return chained(
        f"Let n be the lcm of {a} and {b}. {tail}",
        with_math(f"math.lcm({a}, {b})"),
        value,
        show(f"{factor} * {value} + {shift}"),
        factor * value + shift,
        show(f"{factor} + {value} + {shift}"),
    )


def _gcd_of_three(rng: random.Random) -> Item:
    common = pick(rng, 2, 30)
    a, b, c = (common * factor for factor in rng.sample(range(2, 30), 3))
    return Item(
        question=f"Find the gcd of {a}, {b} and {c}.",
        gold=str(math.gcd(a, b, c)),
        programs=(with_math(f"math.gcd({a}, {b}, {c})"),),
        mistakes=((with_math(f"math.lcm({a}, {b}, {c})"),),),
    )


def _wide_arithmetic(rng: random.Random) -> Item:
    a, b = pick(rng, 100, 999), pick(rng, 100, 999)
    sign, other = rng.choice((("+", "-"), ("-", "+")))
    return Item(
        question=f"What is {a} {sign} {b}?",
        gold=str(a + b if sign == "+" else a - b),
        programs=(show(f"{a} {sign} {b}"),),
        mistakes=((show(f"{a} {other} {b}"),),),
    )


def _three_factors(rng: random.Random) -> Item:
    a, b, c = (pick(rng, 2, 40) for _ in range(3))
    return Item(
        question=f"Compute {a} * {b} * {c}.",
        gold=str(a * b * c),
        programs=(show(f"{a} * {b} * {c}"),),
        mistakes=((show(f"{a} * {b} + {c}"),),),
    )


def _odd_percent(rng: random.Random) -> Item:
    percent, whole = rng.choice([p for p in range(2, 150) if p % 5]), 100 * pick(rng, 2, 98)
    frame = rng.choice(("What is {} percent of {}?", "Find {} percent of {}."))
    return Item(
        question=frame.format(percent, whole),
        gold=str(percent * whole // 100),
        programs=(show(f"{percent} * {whole} // 100"),),
        mistakes=((show(f"{whole} // {percent}"),),),
    )


def _other_travel(rng: random.Random) -> Item:
    who = rng.choice(("A tram", "A ship", "A bike", "A truck"))
    first, second = pick(rng, 20, 120), pick(rng, 20, 120)
    early, late = pick(rng, 2, 9), pick(rng, 2, 9)
    return Item(
        question=f"{who} goes {first} km an hour for {early} hours, then {second} km an hour for {late} hours."
        " How far is that?",
        gold=str(first * early + second * late),
        programs=(show(f"{first} * {early} + {second} * {late}"),),
        mistakes=((show(f"{first} * {early}"),),),
    )


UNSEEN_FAMILIES = (
    Family("other_travel", "a way in two parts, in other words", _other_travel, questions=1_000_000),
    Family("wide_arithmetic", "two operands of three digits", _wide_arithmetic, questions=1_000_000),
    Family("odd_percent", "a percentage that is no multiple of five", _odd_percent, questions=2 * 118 * 97),
    Family("three_factors", "a product of three numbers", _three_factors, questions=39**3),
    Family("gcd_of_three", "the greatest common divisor of three numbers", _gcd_of_three, questions=100_000),
    Family("long_arithmetic", "an expression of five operands", _long_arithmetic, questions=1_000_000),
    Family("shopping_three", "the price of three kinds of things", _shopping_three, questions=1_000_000),
    Family("lcm_then_linear", "a common multiple, then a * n + b", _lcm_then_linear, 500_000, calls=2),
)
