"""Generated problem families: endless short maths problems, drawn by (family, seed, index) alone.

`FAMILIES` are those that the shipped policy was trained on. Their questions are split by a hash of the text:
a question is in `train` or in `eval`, never in both. `UNSEEN` families are kept apart: nothing is trained on
them, and all their questions are for evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent_rl.tasks.families.arithmetic import ARITHMETIC
from agent_rl.tasks.families.base import EVAL_PERCENT, Family, Item, Split, split_of
from agent_rl.tasks.families.chains import CHAINS
from agent_rl.tasks.families.numbers import NUMBERS
from agent_rl.tasks.families.repairs import REPAIRS
from agent_rl.tasks.families.unseen import UNSEEN_FAMILIES
from agent_rl.tasks.families.words import WORDS
from agent_rl.types import Problem

__all__ = ["EVAL_PERCENT", "FAMILIES", "UNSEEN", "Family", "Item", "Split", "generate", "items", "split_of"]

FAMILIES: dict[str, Family] = {f.name: f for f in (*ARITHMETIC, *WORDS, *NUMBERS, *CHAINS, *REPAIRS)}
"""Trained families, by name."""

UNSEEN: dict[str, Family] = {f.name: f for f in UNSEEN_FAMILIES}
"""Families that nothing is trained on, by name."""

_FRUITLESS_DRAWS = 2000
"""So many draws in a row without a new question, and a family counts as used up."""


def generate(families: Sequence[str] | None, seed: int, count: int, split: Split = "train") -> list[Problem]:
    """`count` different problems, taken from the families in turn.

    Args:
        families: names out of `FAMILIES` and `UNSEEN`; None or nothing means all of `FAMILIES`.
        seed: names the stream. A longer list of the same stream begins with the shorter one.
        count: how many problems.
        split: `train` or `eval`. Unseen families have only `eval` questions.

    Raises:
        ValueError: an unknown family, a bad count or split, or a family without enough different questions.
    """
    return [family.problem(item) for family, item in items(families, seed, count, split)]


def items(families: Sequence[str] | None, seed: int, count: int, split: Split = "train") -> list[tuple[Family, Item]]:
    """The same draw as :func:`generate`, with each problem's reference programs."""
    if split not in ("train", "eval"):
        raise ValueError(f"split must be 'train' or 'eval', not {split!r}")
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    chosen = _chosen(families, split)
    streams = [_stream(family, seed, split) for family in chosen]
    return [(chosen[i % len(chosen)], next(streams[i % len(chosen)])) for i in range(count)]


def _chosen(families: Sequence[str] | None, split: Split) -> list[Family]:
    names = list(dict.fromkeys(families or FAMILIES))
    known = FAMILIES | UNSEEN
    for name in names:
        if name not in known:
            raise ValueError(f"unknown family {name!r}; families are: {', '.join(known)}")
        if name in UNSEEN and split == "train":
            raise ValueError(f"family {name!r} is never trained on: draw it with split='eval'")
    return [known[name] for name in names]


def _stream(family: Family, seed: int, split: Split) -> Iterator[Item]:
    """Different items of one split, in the order of their index."""
    seen: set[str] = set()
    index = fruitless = 0
    while fruitless < _FRUITLESS_DRAWS:
        item = family.item(seed, index)
        index += 1
        in_split = family.name in UNSEEN or split_of(item.question) == split
        if not in_split or item.question in seen:
            fruitless += 1
            continue
        fruitless = 0
        seen.add(item.question)
        yield item
    raise ValueError(
        f"family {family.name!r} gave only {len(seen)} different {split} questions: "
        "ask for fewer, or name more families"
    )
