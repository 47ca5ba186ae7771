"""Families of number theory and counting that one program answers."""

from __future__ import annotations

import math
import random

from agent_rl.tasks.families.base import Family, Item, pick


def with_math(expression: str) -> str:
    """A program that prints an expression of the `math` module."""
    return f"import math\nprint({expression})"


def primes_program(low: int, stop: str) -> str:
    """A program that counts the primes p with low <= p < stop, where `stop` is an expression."""
    return f"print(sum(all(n % d for d in range(2, n)) for n in range({low}, {stop})))"


def count_primes(low: int, high: int) -> int:
    """Number of primes p with low <= p < high."""
    return sum(1 for n in range(max(low, 2), high) if all(n % d for d in range(2, math.isqrt(n) + 1)))


def digit_sum(number: int) -> int:
    """Sum of the decimal digits of a non-negative integer."""
    return sum(int(digit) for digit in str(number))


def count_divisors(number: int) -> int:
    """Number of positive divisors, from those up to the square root."""
    root = math.isqrt(number)
    return 2 * sum(number % d == 0 for d in range(1, root + 1)) - (root * root == number)


def pair_with_common_factor(rng: random.Random, largest: int) -> tuple[int, int]:
    """Two different integers up to about `largest` whose common factor is mostly not 1."""
    common = pick(rng, 2, 30)
    first, second = rng.sample(range(2, max(4, largest // common) + 1), 2)
    return common * first, common * second


def _gcd(rng: random.Random) -> Item:
    a, b = pair_with_common_factor(rng, 900)
    frame = rng.choice(("What is the greatest common divisor of {} and {}?", "Find the gcd of {} and {}."))
    return Item(
        question=frame.format(a, b),
        gold=str(math.gcd(a, b)),
        programs=(with_math(f"math.gcd({a}, {b})"),),
        mistakes=((with_math(f"math.lcm({a}, {b})"),), (f"print({a} % {b})",)),
    )


def _lcm(rng: random.Random) -> Item:
    a, b = pair_with_common_factor(rng, 600)
    frame = rng.choice(("What is the least common multiple of {} and {}?", "Find the lcm of {} and {}."))
    return Item(
        question=frame.format(a, b),
        gold=str(a * b // math.gcd(a, b)),
        programs=(with_math(f"math.lcm({a}, {b})"),),
        mistakes=((with_math(f"math.gcd({a}, {b})"),), (f"print({a} * {b})",)),
    )


def _prime_count(rng: random.Random) -> Item:
    low = pick(rng, 10, 150)
    high = low + pick(rng, 20, 150)
    frame = rng.choice(("How many primes are there from {} to {}?", "Count the primes from {} to {}."))
    return Item(
        question=frame.format(low, high),
        gold=str(count_primes(low, high + 1)),
        programs=(primes_program(low, f"{high} + 1"),),
        mistakes=((f"print(len(range({low}, {high})))",),),
    )


def _power_mod(rng: random.Random) -> Item:
    base, exponent, modulus = pick(rng, 2, 99), pick(rng, 3, 60), pick(rng, 5, 99)
    frame = rng.choice(("What is the remainder of {}^{} divided by {}?", "Find {}^{} modulo {}."))
    return Item(
        question=frame.format(base, exponent, modulus),
        gold=str(pow(base, exponent, modulus)),
        programs=(f"print(pow({base}, {exponent}, {modulus}))",),
        mistakes=((f"print({base} * {exponent} % {modulus})",), (f"print({base}^{exponent} % {modulus})",)),
    )


def _digit_sum(rng: random.Random) -> Item:
    number = pick(rng, 1000, 999_999)
    frame = rng.choice(("What is the sum of the digits of {}?", "Add up the digits of {}."))
    return Item(
        question=frame.format(number),
        gold=str(digit_sum(number)),
        programs=(f"print(sum(int(c) for c in str({number})))",),
        mistakes=((f"print(len(str({number})))",),),
    )


def _divisor_count(rng: random.Random) -> Item:
    number = rng.choice((pick(rng, 60, 9999), 12 * pick(rng, 5, 833)))
    frame = rng.choice(("How many positive divisors does {} have?", "Count the positive divisors of {}."))
    return Item(
        question=frame.format(number),
        gold=str(count_divisors(number)),
        programs=(f"n = {number}\nprint(sum(n % d == 0 for d in range(1, n + 1)))",),
        mistakes=((f"n = {number}\nprint(sum(n % d == 0 for d in range(2, n)))",),),
    )


def _binomial(rng: random.Random) -> Item:
    total, chosen, modulus = pick(rng, 8, 50), pick(rng, 2, 7), pick(rng, 11, 99)
    frame = rng.choice(
        (
            "In how many ways can {} of {} people be chosen? Give the remainder modulo {}.",
            "Choose {} of {} cards. How many choices are there modulo {}?",
        )
    )
    return Item(
        question=frame.format(chosen, total, modulus),
        gold=str(math.comb(total, chosen) % modulus),
        programs=(with_math(f"math.comb({total}, {chosen}) % {modulus}"),),
        mistakes=(
            (with_math(f"math.perm({total}, {chosen}) % {modulus}"),),
            (f"print({total} * {chosen} % {modulus})",),
        ),
    )


NUMBERS = (
    Family("gcd", "the greatest common divisor of two numbers", _gcd, questions=50_000),
    Family("lcm", "the least common multiple of two numbers", _lcm, questions=40_000),
    Family("prime_count", "how many primes lie in a range", _prime_count, questions=2 * 141 * 131),
    Family("power_mod", "the remainder of a power", _power_mod, questions=2 * 98 * 58 * 95),
    Family("digit_sum", "the sum of the digits of a number", _digit_sum, questions=2 * 999_000),
    Family("divisor_count", "how many divisors a number has", _divisor_count, questions=2 * 9_940),
    Family("binomial", "a binomial coefficient modulo a number", _binomial, questions=2 * 43 * 6 * 89),
)
