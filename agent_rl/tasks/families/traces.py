"""Demonstrations for supervised warm-up: what a solver does on a generated problem, rightly or wrongly.

A policy that has only seen right demonstrations is right nearly always and leaves reinforcement nothing to
choose from. So a share of the demonstrations is flawed on purpose; the policy then samples several behaviours,
of which tool use with the right program is the rewarded one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent_rl.tasks.families.base import Family, Item
from agent_rl.types import Problem, ToolOutcome


class Flaw(StrEnum):
    """What is wrong with a demonstration."""

    NONE = "none"
    """Nothing: the reference programs, then their result in a box."""
    MISTAKE = "mistake"
    """A plausible wrong program, a chain left half-way, or an error left as it is; its result in a box."""
    GUESS = "guess"
    """A number out of the air, no program."""
    VOID = "void"
    """Words with neither a program nor an answer."""
    SYNTAX = "syntax"
    """A program that does not compile, then 0 in a box."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One demonstration before its programs have run.

    `closing` is the text of the last turn; None boxes the last line that the last program printed, or 0 if
    it printed nothing.
    """

    problem: Problem
    flaw: Flaw
    programs: tuple[str, ...]
    closing: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """One model turn, and what its program came to if it has one."""

    text: str
    outcome: ToolOutcome | None


@dataclass(frozen=True, slots=True)
class Trace:
    """One demonstration: the problem and all turns."""

    problem: Problem
    flaw: Flaw
    steps: tuple[Step, ...]


_VOID_TEXTS = ("I am not sure.", "Let me think about it.", "This is a hard problem.")


def code_turn(program: str) -> str:
    """A model turn that ends with the closing fence of its program."""
    return f"```python\n{program}\n```"


def boxed(answer: str) -> str:
    """A last turn that gives an answer."""
    return f"The answer is \\boxed{{{answer}}}."


def plan(family: Family, item: Item, rng: random.Random, shares: Mapping[Flaw, float]) -> Plan:
    """Choose what the demonstration on `item` does.

    Args:
        rng: decides the flaw and its form.
        shares: probability of each flaw; what is left of 1 goes to `Flaw.NONE`.
    """
    flaw = _draw_flaw(rng, shares)
    problem = family.problem(item)
    if flaw is Flaw.MISTAKE:
        return Plan(problem, flaw, rng.choice(item.mistakes), None)
    if flaw is Flaw.GUESS:
        return Plan(problem, flaw, (), boxed(_guess(item.gold, rng)))
    if flaw is Flaw.VOID:
        return Plan(problem, flaw, (), rng.choice(_VOID_TEXTS))
    if flaw is Flaw.SYNTAX:
        return Plan(problem, flaw, (item.programs[0].removesuffix(")"),), boxed("0"))
    return Plan(problem, flaw, item.programs, None)


def _draw_flaw(rng: random.Random, shares: Mapping[Flaw, float]) -> Flaw:
    if sum(shares.values()) > 1 + 1e-9:
        raise ValueError(f"shares of flawed traces add up to {sum(shares.values()):.3f}: at most 1 is possible")
    point = rng.random()
    for flaw, share in shares.items():
        point -= share
        if point < 0:
            return flaw
    return Flaw.NONE


def _guess(gold: str, rng: random.Random) -> str:
    """A wrong number with as many digits as the right one."""
    digits = len(gold.lstrip("-"))
    while (guess := str(rng.randrange(10 ** (digits - 1), 10**digits))) == gold:
        pass
    return guess


def carry_out(plan: Plan, outcomes: Mapping[str, ToolOutcome]) -> Trace:
    """Put the outcomes of a plan's programs, looked up by source text, in their places."""
    steps = [Step(code_turn(program), outcomes[program]) for program in plan.programs]
    closing = plan.closing
    if closing is None:
        closing = boxed(_last_line(steps[-1].outcome))
    return Trace(plan.problem, plan.flaw, (*steps, Step(closing, None)))


def _last_line(outcome: ToolOutcome | None) -> str:
    lines = outcome.stdout.split() if outcome else []
    return lines[-1] if lines else "0"


def programs_of(plans: Sequence[Plan]) -> list[str]:
    """The different programs of all plans, in order of first use."""
    return list(dict.fromkeys(program for p in plans for program in p.programs))
