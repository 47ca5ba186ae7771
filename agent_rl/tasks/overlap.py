"""Problems that stand in two sets: what is trained on must not be what is evaluated on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agent_rl.tasks.problems import Problems
from agent_rl.tasks.text import loose_key, signed_key
from agent_rl.types import Problem

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Overlap:
    """A training problem with the letters and digits of an evaluation problem.

    `same` is true if the arithmetic signs agree as well, or the gold answers do; false for look-alikes
    (`z^4 - z^2 + 1` and `z^4 + z^2 + 1`), which are different problems.
    """

    train: Problem
    evaluation: Problem
    benchmark: str
    same: bool


def find_overlaps(train: Sequence[Problem], evaluations: Mapping[str, Sequence[Problem]]) -> list[Overlap]:
    """All training problems whose letters and digits, in lower case, are exactly those of an evaluation problem.

    At most one overlap a training problem and benchmark, the same problem before a look-alike.
    """
    found: list[Overlap] = []
    for benchmark, problems in evaluations.items():
        by_key: dict[bytes, list[Problem]] = {}
        for problem in problems:
            by_key.setdefault(loose_key(problem.question), []).append(problem)
        for problem in train:
            if matches := by_key.get(loose_key(problem.question)):
                match = next((m for m in matches if _same(problem, m)), None)
                found.append(Overlap(problem, match or matches[0], benchmark, match is not None))
    return found


def _same(one: Problem, other: Problem) -> bool:
    gold_equal = "".join(one.gold.split()) == "".join(other.gold.split())
    return gold_equal or signed_key(one.question) == signed_key(other.question)


def separate(
    train: Problems, evaluations: Mapping[str, Sequence[Problem]], on_overlap: Literal["error", "drop", "warn"]
) -> Problems:
    """The training problems, after what `on_overlap` says was done about those that are evaluation problems too.

    Look-alikes are never dropped; every overlap is logged.

    Raises:
        ValueError: there are overlaps and `on_overlap` is `error`, or nothing would be left.
    """
    overlaps = find_overlaps(train, evaluations)
    same = [o for o in overlaps if o.same]
    if len(overlaps) > len(same):
        logger.info("%d training problems look like evaluation problems but differ", len(overlaps) - len(same))
    if not same:
        return train
    message = f"{len(same)} training problems are evaluation problems too: " + "; ".join(
        f"{o.train.id} = {o.evaluation.id} ({o.benchmark})" for o in same[:5]
    )
    if on_overlap == "error":
        raise ValueError(f"{message}. Set `on_overlap: drop` to leave them out of training")
    logger.warning("%s%s", message, ", dropped" if on_overlap == "drop" else ", kept")
    return train.without({o.train.id for o in same}, "also in an evaluation set") if on_overlap == "drop" else train
