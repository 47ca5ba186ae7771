"""Arithmetic and word problems at a chosen level of difficulty.

A level is a whole number from 1 to 10: it sets how many steps a problem takes and how large its numbers are.
Problems are a pure function of (generator, level, seed, index); the split is decided by a hash of the question,
so that no question is in both.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agent_rl.tasks.files import split_name
from agent_rl.tasks.text import is_test_question
from agent_rl.types import Problem

MAX_LEVEL = 10
_FRUITLESS_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Draw:
    """A question and its answer."""

    question: str
    gold: str


def arithmetic(rng: random.Random, level: int) -> Draw:
    """A nested expression of `level + 1` operands of up to `2 + level // 3` digits, with + - *."""
    bound = 10 ** (2 + level // 3)

    def build(operands: int) -> tuple[str, int]:
        if operands == 1:
            value = rng.randrange(2, bound)
            return str(value), value
        left_size = rng.randint(1, operands - 1)
        (left, a), (right, b) = build(left_size), build(operands - left_size)
        sign = rng.choice("+-*")
        value = a + b if sign == "+" else a - b if sign == "-" else a * b
        return f"({left} {sign} {right})", value

    text, value = build(level + 1)
    return Draw(f"Compute {text[1:-1]}.", str(value))


_PLACES = ("warehouse", "library", "bakery", "orchard", "museum", "harbour", "workshop", "garden")
_GOODS = ("boxes", "books", "loaves", "apples", "tickets", "crates", "lamps", "seeds")


def word_problem(rng: random.Random, level: int) -> Draw:
    """A stock that changes in `level + 1` steps: arrivals, departures, multiples and equal shares."""
    size = 20 * level
    place = rng.choice(_PLACES)
    goods = rng.choice(_GOODS)
    stock = rng.randint(size, 5 * size)
    sentences = [f"A {place} has {stock} {goods}."]
    for step in range(level + 1):
        divisors = [d for d in range(2, 10) if stock % d == 0 and stock > d]
        kind = rng.choice(("arrive", "multiply", *(("leave",) if stock > 1 else ()), *(("share",) if divisors else ())))
        if kind == "multiply" and stock > 1000 * size:
            kind = "leave"
        first = "First" if step == 0 else "Then"
        if kind == "arrive":
            amount = rng.randint(1, 3 * size)
            stock += amount
            sentences.append(f"{first} {amount} more {goods} arrive.")
        elif kind == "leave":
            amount = rng.randint(1, stock - 1)
            stock -= amount
            sentences.append(f"{first} {amount} of its {goods} are taken away.")
        elif kind == "multiply":
            factor = rng.randint(2, 4)
            stock *= factor
            sentences.append(f"{first} the number of {goods} grows to {factor} times what it was.")
        else:
            divisor = rng.choice(divisors)
            stock //= divisor
            sentences.append(f"{first} the {goods} are shared equally among {divisor} such places, itself included.")
    return Draw(" ".join([*sentences, f"How many {goods} does the {place} have now?"]), str(stock))


GENERATORS: dict[str, Callable[[random.Random, int], Draw]] = {
    "scaled_arithmetic": arithmetic,
    "scaled_words": word_problem,
}


def generate_scaled(
    names: list[str], seed: int, count: int, split: str, levels: tuple[float, float] = (1, 5)
) -> Iterator[Problem]:
    """`count` different problems, generators and levels in turn.

    Args:
        names: out of `GENERATORS`; none means all.
        seed: names the stream; a longer list begins with the shorter one.
        count: how many.
        split: `train`, or `test` (a tenth of all questions, by hash).
        levels: lowest and highest level, both included.

    Raises:
        ValueError: an unknown name, levels outside 1..10, or not enough different questions.
    """
    if unknown := [n for n in names if n not in GENERATORS]:
        raise ValueError(f"unknown generator {unknown[0]!r}; generators are: {', '.join(GENERATORS)}")
    low, high = levels
    if not (1 <= low <= high <= MAX_LEVEL and low == int(low) and high == int(high)):
        raise ValueError(f"difficulty must be whole levels within 1 to {MAX_LEVEL}, got [{low}, {high}]")
    pairs = [(name, level) for level in range(int(low), int(high) + 1) for name in names or GENERATORS]
    streams = [_stream(name, level, seed, split_name(split) == "train") for name, level in pairs]
    for index in range(count):
        yield next(streams[index % len(streams)])


def _stream(name: str, level: int, seed: int, train: bool) -> Iterator[Problem]:
    seen: set[str] = set()
    index = fruitless = 0
    while fruitless < _FRUITLESS_DRAWS:
        draw = GENERATORS[name](random.Random(f"{name}/{level}/{seed}/{index}"), level)
        index += 1
        digest = hashlib.sha256(draw.question.encode()).hexdigest()
        if is_test_question(draw.question) == train or draw.question in seen:
            fruitless += 1
            continue
        fruitless = 0
        seen.add(draw.question)
        yield Problem(f"{name}/{digest[:12]}", draw.question, draw.gold, source=name, metadata={"level": level})
    raise ValueError(
        f"generator {name!r} at level {level} gave only {len(seen)} different questions: "
        "ask for fewer, or raise the difficulty"
    )
