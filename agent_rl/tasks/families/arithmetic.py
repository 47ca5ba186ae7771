"""Families of plain calculation: expressions, sums, percentages, equations."""

from __future__ import annotations

import random

from agent_rl.tasks.families.base import Family, Item, pick

_FLIPPED = {"+": "-", "-": "+", "*": "+"}


def show(expression: str) -> str:
    """The one-line program that prints an expression."""
    return f"print({expression})"


def expression_item(rng: random.Random, operands: int) -> Item:
    """Two-digit operands joined by `+`, `-`, `*`; at most one product, so that results stay copyable."""
    numbers = [pick(rng, 2, 99) for _ in range(operands)]
    operators = [rng.choice("+-") for _ in range(operands - 1)]
    operators[rng.randrange(operands - 1)] = rng.choice("+-*")

    def written(signs: list[str]) -> str:
        tail = "".join(f" {sign} {number}" for sign, number in zip(signs, numbers[1:], strict=True))
        return f"{numbers[0]}{tail}"

    text = written(operators)
    place = rng.randrange(operands - 1)
    flipped = [_FLIPPED[sign] if i == place else sign for i, sign in enumerate(operators)]
    frame = rng.choice(("Compute {}.", "What is {}?", "Find the value of {}."))
    return Item(
        question=frame.format(text),
        gold=str(_evaluate(numbers, operators)),
        programs=(show(text),),
        mistakes=((show(written(flipped)),),),
    )


def _evaluate(numbers: list[int], operators: list[str]) -> int:
    """Sum of signed products, worked out without the interpreter that the policy uses."""
    terms = [numbers[0]]
    for sign, number in zip(operators, numbers[1:], strict=True):
        if sign == "*":
            terms[-1] *= number
        else:
            terms.append(number if sign == "+" else -number)
    return sum(terms)


def _arithmetic(rng: random.Random) -> Item:
    return expression_item(rng, pick(rng, 2, 4))


def _range_sum(rng: random.Random) -> Item:
    low = pick(rng, 2, 99)
    high = low + pick(rng, 5, 400)
    frame = rng.choice(("Find the sum of the integers from {} to {}.", "Add up all integers from {} to {}."))
    return Item(
        question=frame.format(low, high),
        gold=str((low + high) * (high - low + 1) // 2),
        programs=(f"print(sum(range({low}, {high} + 1)))",),
        mistakes=((f"print(sum(range({low}, {high})))",),),
    )


def _linear_equation(rng: random.Random) -> Item:
    factor, shift, solution = pick(rng, 2, 19), pick(rng, 1, 99), pick(rng, 2, 60)
    total = factor * solution + shift
    frame = rng.choice(("Solve {}x + {} = {} for x.", "If {}x + {} = {}, what is x?"))
    return Item(
        question=frame.format(factor, shift, total),
        gold=str(solution),
        programs=(f"print(({total} - {shift}) // {factor})",),
        mistakes=((f"print(({total} + {shift}) // {factor})",),),
    )


def _percent(rng: random.Random) -> Item:
    percent, whole = 5 * pick(rng, 1, 30), 20 * pick(rng, 2, 490)
    frame = rng.choice(("What is {} percent of {}?", "Find {} percent of {}."))
    return Item(
        question=frame.format(percent, whole),
        gold=str(percent * whole // 100),
        programs=(f"print({percent} * {whole} // 100)",),
        mistakes=((f"print({whole} // {percent})",),),
    )


ARITHMETIC = (
    Family("arithmetic", "an expression of two to four operands", _arithmetic, questions=1_000_000),
    Family("range_sum", "the sum of consecutive integers", _range_sum, questions=2 * 98 * 396),
    Family("linear_equation", "ax + b = c for x", _linear_equation, questions=2 * 18 * 99 * 59),
    Family("percent", "a percentage of a round number", _percent, questions=2 * 30 * 489),
)
