"""From settings to problems: files, hub data sets, generated families."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from agent_rl.tasks.files import BadRow, Row, read_rows, resolve, split_name, split_of
from agent_rl.tasks.filters import filtered
from agent_rl.tasks.problems import Problems
from agent_rl.tasks.schema import Schema, detect, explicit, to_problem
from agent_rl.tasks.settings import ColumnSettings, DataSettings
from agent_rl.types import Problem

logger = logging.getLogger(__name__)

TokenLengths = Callable[[Problems], list[int]]
"""Prompt lengths in tokens, one a problem (see `agent_rl.tasks.lengths.prompt_lengths`)."""


def load_problems(settings: DataSettings, *, split: str = "train", lengths: TokenLengths | None = None) -> Problems:
    """Load, filter and name the problems of `settings`.

    Args:
        settings: where problems come from and which are kept.
        split: `train` or `test`: chooses files of a folder, the split of a hub data set, and the side of
            generated families.
        lengths: measures prompts; needed by `max_prompt_tokens`.

    Raises:
        FileNotFoundError: no file where `path` points.
        ValueError: no usable problem is left, too many bad rows, or settings that do not fit the data.
    """
    if settings.max_prompt_tokens is not None and lengths is None:
        raise ValueError("max_prompt_tokens needs a tokenizer: pass lengths=prompt_lengths(...), or leave it out")
    bad: list[BadRow] = []
    dropped: Counter[str] = Counter()
    items = tuple(filtered(_collect(iter_problems(settings, split=split), bad, settings), settings, dropped))
    if not items:
        raise ValueError(_nothing_left(settings, bad, dropped))
    if bad:
        shown = "; ".join(map(str, bad[:3]))
        logger.warning("%d rows cannot be used and are left out: %s%s", len(bad), shown, "; ..." * (len(bad) > 3))
    weights = {s: w for s, w in settings.mix.items() if w > 0} if settings.mix else None
    problems = Problems(items, tuple(bad), dict(dropped), weights)
    if settings.max_prompt_tokens is not None and lengths is not None:
        limit = settings.max_prompt_tokens
        long = {p.id for p, n in zip(problems, lengths(problems), strict=True) if n > limit}
        problems = problems.without(long, f"prompt longer than max_prompt_tokens ({limit})")
    return problems


def iter_problems(settings: DataSettings, *, split: str = "train") -> Iterator[Problem | BadRow]:
    """All problems and bad rows before any filter, streamed."""
    if settings.path is not None:
        for path in [settings.path] if isinstance(settings.path, str) else settings.path:
            yield from _of_path(path, split, settings.columns)
    elif settings.families is not None:
        from agent_rl.tasks.families import generate

        side: Literal["train", "eval"] = "train" if split_name(split) == "train" else "eval"
        yield from generate(settings.families, settings.seed, settings.count, side)
    elif settings.generators is not None:
        from agent_rl.tasks.generators import generate_scaled

        levels = settings.difficulty or (1, 5)
        yield from generate_scaled(settings.generators, settings.seed, settings.count, split, levels)
    elif settings.gym is not None:
        from agent_rl.tasks.gym import gym_problems

        yield from gym_problems(settings.gym, settings.seed, settings.count, split)


class RowReader:
    """Turns the rows of one file into problems; the first row with a known form settles the form of all.

    Args:
        source: name of the data set, for rows that do not name it.
        columns: explicit columns, or None to recognise the form.
    """

    def __init__(self, source: str, columns: ColumnSettings | None = None):
        self.source = source
        self.columns = columns
        self.schema: Schema | None = explicit(columns) if columns else None

    def __call__(self, row: Row | BadRow) -> Problem | BadRow:
        if isinstance(row, BadRow):
            return row
        try:
            self.schema = self.schema or detect(row.data)
            return to_problem(row.data, self.schema, self.source, self.columns)
        except ValueError as error:
            return BadRow(row.file, row.where, str(error))


def source_of(path: Path) -> str:
    """Name of a data set by its file: the stem, or the folder where the stem is just a split (`gsm8k/test.jsonl`)."""
    stem = path.name.split(".")[0]
    return stem if split_of(Path(stem)) is None or stem.count("_") or not path.parent.name else path.parent.name


def _of_path(path: str, split: str, columns: ColumnSettings | None) -> Iterator[Problem | BadRow]:
    files = resolve(path, split)
    if files is None:
        from agent_rl.tasks.hub import hub_rows

        yield from map(RowReader(path.split("/")[-1].split(":")[0], columns), hub_rows(path, split))
        return
    for file in files:
        yield from map(RowReader(source_of(file), columns), read_rows(file))


def _collect(stream: Iterator[Problem | BadRow], bad: list[BadRow], settings: DataSettings) -> Iterator[Problem]:
    for item in stream:
        if isinstance(item, Problem):
            yield item
            continue
        bad.append(item)
        if settings.max_bad_rows is not None and len(bad) > settings.max_bad_rows:
            raise ValueError(f"more than max_bad_rows = {settings.max_bad_rows} rows cannot be used; the last: {item}")


def _nothing_left(settings: DataSettings, bad: list[BadRow], dropped: Counter[str]) -> str:
    where = settings.path or settings.families or settings.generators or settings.gym
    causes = [f"{n} {reason}" for reason, n in dropped.items()]
    if bad:
        causes.append(f"{len(bad)} bad rows, the first: {bad[0]}")
    return f"no problem is left of {where!r}: " + ("; ".join(causes) or "there are no rows")
