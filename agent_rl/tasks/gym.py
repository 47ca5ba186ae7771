"""Problems from the package reasoning-gym (extra `reasoning-gym`).

Its own scorers are not used: several give partial credit to junk, one gives full credit to it, one raises on text
that is no number. Answers are compared by our verifier instead, so only data sets whose answer stands in the
entry as text are taken.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from typing import Any

from agent_rl.tasks.files import split_name
from agent_rl.tasks.settings import GymSettings
from agent_rl.tasks.text import TEST_PERCENT, is_test_question
from agent_rl.types import Problem

SCORER_ONLY = ("game_of_life_halting", "graph_color", "boxnet", "rush_hour", "propositional_logic")
"""Data sets without an answer text, or whose only check accepts junk."""

OTHER_BASES = ("bitwise_arithmetic", "base_conversion")
"""Data sets whose answers are digits of another base (`0x3eb2`), which only a comparison of text reads rightly."""

_SPARE = 64
"""Entries beyond what is wanted, for repeated questions in short draws."""


def gym_problems(settings: GymSettings, seed: int, count: int, split: str) -> Iterator[Problem]:
    """`count` different problems, the data sets in turn. ValueError: unknown data sets, or ones without answer text."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ModuleNotFoundError("the package reasoning-gym is missing: pip install 'agent-rl[reasoning-gym]'")
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    for name in settings.datasets:
        if name not in DATASETS:
            raise ValueError(f"reasoning-gym has no data set {name!r}")
        if name in SCORER_ONLY:
            raise ValueError(f"the reasoning-gym data set {name!r} has no answer that can be compared as text")
    for setting, named in (("options", settings.options), ("kinds", settings.kinds)):
        if unused := set(named) - set(settings.datasets):
            raise ValueError(f"gym.{setting} names {', '.join(sorted(unused))}, which gym.datasets does not")
    train = split_name(split) == "train"
    wanted = -(-count // len(settings.datasets))
    # Size counts: some data sets prepare as many entries as they may be asked for.
    size = _SPARE + (2 * wanted if train else 100 // TEST_PERCENT * 2 * wanted)
    streams = []
    for name in settings.datasets:
        entries = reasoning_gym.create_dataset(name, size=size, seed=seed, **settings.options.get(name, {}))
        streams.append(_entries(name, entries, train, settings.kinds.get(name)))
    for index in range(count):
        yield next(streams[index % len(streams)])


def _entries(name: str, entries: Any, train: bool, kind: str | None) -> Iterator[Problem]:
    """Different problems of one data set and one split, in the order of their index."""
    seen: set[str] = set()
    for index in range(len(entries)):
        entry = entries[index]
        if entry["answer"] is None:
            raise ValueError(f"the reasoning-gym data set {name!r} has no answer that can be compared as text")
        question = entry["question"]
        if is_test_question(question) != train and question not in seen:
            seen.add(question)
            yield _problem(name, question, str(entry["answer"]), kind)
    raise ValueError(
        f"the reasoning-gym data set {name!r} gave only {len(seen)} different questions out of {len(entries)}: "
        "ask for fewer, or make it larger with gym.options"
    )


def _problem(name: str, question: str, answer: str, kind: str | None) -> Problem:
    digest = hashlib.sha256(question.encode()).hexdigest()[:12]
    kind = kind or ("string" if name in OTHER_BASES else "math")
    return Problem(f"gym/{name}/{digest}", question, answer, source=f"gym/{name}", kind=kind)
