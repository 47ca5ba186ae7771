"""Which problems are kept: each filter is an iterator that counts what it leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from agent_rl.tasks.settings import DataSettings
from agent_rl.tasks.text import signed_key, strip_instructions
from agent_rl.types import Problem

INSTRUCTION = "instruction sentence taken off (kept)"
DUPLICATE = "duplicate question"


def filtered(problems: Iterable[Problem], settings: DataSettings, dropped: Counter[str]) -> Iterator[Problem]:
    """The problems that pass the filters of `settings`, at most `limit`, with unique ids; counts go to `dropped`."""
    stream = iter(problems)
    if settings.strip_instructions:
        stream = _stripped(stream, dropped)
    if settings.sources is not None:
        stream = _kept(stream, lambda p: p.source in settings.sources, "source not in `sources`", dropped)
    if settings.subjects is not None:
        stream = _kept(
            stream, lambda p: p.metadata.get("subject") in settings.subjects, "subject not in `subjects`", dropped
        )
    if settings.difficulty is not None and settings.generators is None:
        stream = _at_level(stream, settings.difficulty, dropped)
    if settings.mix is not None:
        stream = _kept(stream, lambda p: settings.mix.get(p.source) != 0, "source with weight 0 in `mix`", dropped)
    if settings.deduplicate:
        stream = _deduplicated(stream, dropped)
    stream = _unique_ids(stream)
    for number, problem in enumerate(stream, 1):
        yield problem
        if number == settings.limit:
            return


def _stripped(problems: Iterator[Problem], dropped: Counter[str]) -> Iterator[Problem]:
    for problem in problems:
        question = strip_instructions(problem.question)
        if question != problem.question:
            dropped[INSTRUCTION] += 1
            problem = replace(problem, question=question)
        yield problem


def _kept(
    problems: Iterator[Problem], test: Callable[[Problem], bool], reason: str, dropped: Counter[str]
) -> Iterator[Problem]:
    for problem in problems:
        if test(problem):
            yield problem
        else:
            dropped[reason] += 1


def _at_level(problems: Iterator[Problem], bounds: tuple[float, float], dropped: Counter[str]) -> Iterator[Problem]:
    for problem in problems:
        level = problem.metadata.get("level")
        if level is None:
            dropped["no level, but `difficulty` is set"] += 1
        elif not bounds[0] <= level <= bounds[1]:
            dropped["level outside `difficulty`"] += 1
        else:
            yield problem


def _deduplicated(problems: Iterator[Problem], dropped: Counter[str]) -> Iterator[Problem]:
    seen: set[bytes] = set()
    for problem in problems:
        key = signed_key(problem.question)
        if key in seen:
            dropped[DUPLICATE] += 1
        else:
            seen.add(key)
            yield problem


def _unique_ids(problems: Iterator[Problem]) -> Iterator[Problem]:
    """A repeated id gets `~2`, `~3` ...: files do number different problems alike."""
    seen: Counter[str] = Counter()
    for problem in problems:
        seen[problem.id] += 1
        if seen[problem.id] > 1:
            problem = replace(problem, id=f"{problem.id}~{seen[problem.id]}")
            seen[problem.id] += 1
        yield problem
