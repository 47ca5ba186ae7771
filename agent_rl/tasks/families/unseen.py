"""Families that no trained policy of ours is shown: the trained ones put together in another way."""

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


UNSEEN_FAMILIES = (
    Family("long_arithmetic", "an expression of five operands", _long_arithmetic, questions=1_000_000),
    Family("shopping_three", "the price of three kinds of things", _shopping_three, questions=1_000_000),
    Family("lcm_then_linear", "a common multiple, then a * n + b", _lcm_then_linear, 500_000, calls=2),
    Family("gcd_of_three", "the greatest common divisor of three numbers", _gcd_of_three, questions=100_000),
)
