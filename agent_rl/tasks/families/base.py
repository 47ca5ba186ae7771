"""What a family of generated problems is, and how its problems are drawn and split."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from agent_rl.types import Problem

Split = Literal["train", "eval"]

EVAL_PERCENT = 10
"""Share of the questions of every trained family that belongs to the `eval` split."""

Program = str
"""Python source, run as it stands by a fresh interpreter."""


@dataclass(frozen=True, slots=True)
class Item:
    """One problem together with the programs that a tool-using solver writes for it.

    `programs` are run one after the other, each in a fresh interpreter: the last one prints `gold`, an
    earlier one prints what the next one needs, or raises the error that the next one repairs. Each entry of
    `mistakes` is another such sequence, plausible and wrong: in the end it prints something else, or nothing.
    """

    question: str
    gold: str
    programs: tuple[Program, ...]
    mistakes: tuple[tuple[Program, ...], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """A named rule that turns a random stream into an :class:`Item`.

    Args:
        name: also the `source` of its problems.
        summary: what is asked, in one line.
        draw: pure: equal streams give equal items.
        questions: a lower bound on the number of different question texts.
        calls: how many programs the reference solution runs.
    """

    name: str
    summary: str
    draw: Callable[[random.Random], Item]
    questions: int
    calls: int = 1

    def item(self, seed: int, index: int) -> Item:
        """The item at `index` of the stream named by `seed`: depends on nothing else."""
        return self.draw(random.Random(f"{self.name}/{seed}/{index}"))

    def problem(self, item: Item) -> Problem:
        """The problem that shows `item` to a policy; equal questions have equal ids."""
        return Problem(
            id=f"{self.name}/{_digest(item.question)[:12]}",
            question=item.question,
            gold=item.gold,
            source=self.name,
        )


def _digest(question: str) -> str:
    return hashlib.sha256(question.encode()).hexdigest()


def split_of(question: str) -> Split:
    """The one split that a question text belongs to, wherever and however often it is drawn."""
    return "eval" if int(_digest(question)[-8:], 16) % 100 < EVAL_PERCENT else "train"


def pick(rng: random.Random, low: int, high: int) -> int:
    """An integer from `low` to `high`, both included."""
    return rng.randint(low, high)
