"""Families whose obvious first program raises an error that has to be read and repaired."""

from __future__ import annotations

import math
import random

from agent_rl.tasks.families.arithmetic import show
from agent_rl.tasks.families.base import Family, Item, pick


def _square_root(rng: random.Random) -> Item:
    number = pick(rng, 1000, 999_999)
    program = f"print(math.isqrt({number}))"
    frame = rng.choice(
        ("What is the integer part of the square root of {}?", "Find the square root of {}, rounded down.")
    )
    return Item(
        question=frame.format(number),
        gold=str(math.isqrt(number)),
        programs=(program, f"import math\n{program}"),
        mistakes=((program,), (f"print({number} // 2)",)),
    )


def _skip_zero(rng: random.Random) -> Item:
    whole = pick(rng, 50, 999)
    divisors = rng.sample(range(2, 20), 3)
    divisors[rng.randrange(3)] = 0
    quotients = [f"{whole} // {d}" for d in divisors]
    possible = [f"{whole} // {d}" for d in divisors if d]
    return Item(
        question="Divide {} by {}, {} and {} where possible, round each down, and add up.".format(whole, *divisors),
        gold=str(sum(whole // d for d in divisors if d)),
        programs=(
            show(" + ".join(quotients)),
            show(" + ".join(possible)),
        ),
        mistakes=((show(" + ".join(quotients)),), (show(possible[0]),)),
    )


_GAPS = ("none", "missing", "?", "n/a")


def _skip_gaps(rng: random.Random) -> Item:
    entries = [str(pick(rng, 2, 99)) for _ in range(4)]
    entries[pick(rng, 0, 3)] = rng.choice(_GAPS)
    text = " ".join(entries)
    return Item(
        question=f"Add up the numbers in this list: {text}",
        gold=str(sum(int(e) for e in entries if e not in _GAPS)),
        programs=(
            f'print(sum(map(int, "{text}".split())))',
            f'print(sum(int(w) for w in "{text}".split() if w.isdigit()))',
        ),
        mistakes=((f'print(sum(map(int, "{text}".split())))',), (f'print(len("{text}".split()))',)),
    )


REPAIRS = (
    Family("square_root", "a module used before its import", _square_root, 1_000_000, calls=2),
    Family("skip_zero", "quotients, one of them by zero", _skip_zero, 1_000_000, calls=2),
    Family("skip_gaps", "a sum over entries, one of them no number", _skip_gaps, 1_000_000, calls=2),
)
