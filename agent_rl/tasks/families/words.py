"""Families of word problems: shopping, leftovers, travel."""

from __future__ import annotations

import random

from agent_rl.tasks.families.arithmetic import show
from agent_rl.tasks.families.base import Family, Item, pick

NAMES = ("Anna", "Ben", "Mia", "Tom", "Lea", "Max", "Eva", "Jan")
THINGS = ("pens", "books", "cups", "toys", "maps", "hats")


def shopping_item(rng: random.Random, lines: int) -> Item:
    """So many things at so much each; asked is the whole price."""
    name = rng.choice(NAMES)
    things = rng.sample(THINGS, lines)
    amounts = [(pick(rng, 2, 40), pick(rng, 2, 60)) for _ in things]
    bought = [f"{n} {thing} at {price} coins each" for thing, (n, price) in zip(things, amounts, strict=True)]
    listed = ", ".join(bought[:-1]) + f" and {bought[-1]}"
    ending = rng.choice(("How many coins is that?", f"What does {name} pay?"))
    products = [f"{count} * {price}" for count, price in amounts]
    return Item(
        question=f"{name} buys {listed}. {ending}",
        gold=str(sum(count * price for count, price in amounts)),
        programs=(show(" + ".join(products)),),
        mistakes=((show(products[0]),), (show(" + ".join(p.replace("*", "+") for p in products)),)),
    )


def _shopping(rng: random.Random) -> Item:
    return shopping_item(rng, 2)


def _leftovers(rng: random.Random) -> Item:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    boxes, each = pick(rng, 3, 30), pick(rng, 5, 50)
    given = pick(rng, 2, boxes * each - 1)
    frame = rng.choice(
        (
            "{name} has {boxes} boxes of {each} {thing} and gives away {given}. How many are left?",
            "There are {boxes} boxes with {each} {thing} in each. {name} takes {given}. How many remain?",
        )
    )
    return Item(
        question=frame.format(name=name, thing=thing, boxes=boxes, each=each, given=given),
        gold=str(boxes * each - given),
        programs=(show(f"{boxes} * {each} - {given}"),),
        mistakes=((show(f"{boxes} * {each} + {given}"),), (show(f"{boxes} * {each}"),)),
    )


def _travel(rng: random.Random) -> Item:
    who = rng.choice(("A train", "A bus", "A boat", "A car"))
    first, second = pick(rng, 20, 120), pick(rng, 20, 120)
    early, late = pick(rng, 2, 9), pick(rng, 2, 9)
    return Item(
        question=f"{who} goes {first} km an hour for {early} hours, then {second} km an hour for {late} hours."
        " How many km is that?",
        gold=str(first * early + second * late),
        programs=(show(f"{first} * {early} + {second} * {late}"),),
        mistakes=((show(f"({first} + {second}) * {early}"),), (show(f"{first} * {early}"),)),
    )


WORDS = (
    Family("shopping", "the price of two kinds of things", _shopping, questions=1_000_000),
    Family("leftovers", "boxes of things, some given away", _leftovers, questions=1_000_000),
    Family("travel", "a way in two parts at two speeds", _travel, questions=1_000_000),
)
