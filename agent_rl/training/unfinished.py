"""Trajectories that are finished and not trained on yet: kept beside a checkpoint, so that none is lost.

One file a checkpoint, in the form of the run's records with the ticket of the group; there as a whole or not at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agent_rl.learner.durable import flush_directory
from agent_rl.records.index import dumps
from agent_rl.records.recorder import record
from agent_rl.records.schema import Record
from agent_rl.records.shards import SUFFIX, compress, read_records
from agent_rl.types import Trajectory

_NAME = re.compile(r"unfinished-(\d+)-(\d+)" + re.escape(SUFFIX))


@dataclass(frozen=True)
class Unfinished:
    """The folder of such files of one run."""

    folder: Path

    def save(self, step: int, trajectories: Iterable[tuple[int, Trajectory]]) -> str:
        """Write (ticket, trajectory) pairs for the checkpoint of `step`; the file's name. Each call makes a new file,
        so that an older checkpoint of the same step keeps its own until it is replaced."""
        self.folder.mkdir(parents=True, exist_ok=True)
        numbers = [int(found[2]) for found in self._files() if int(found[1]) == step]
        name = f"unfinished-{step:06}-{max(numbers, default=0) + 1}{SUFFIX}"
        draft = self.folder / (name + ".new")
        with open(draft, "wb") as file:
            file.write(compress([dumps(record(t, ticket=ticket, step=step)) for ticket, t in trajectories]))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self.folder / name)
        flush_directory(self.folder)
        return name

    def load(self, name: str) -> Iterator[tuple[int, Trajectory]]:
        """The pairs of one file; none if it is not there."""
        path = self.folder / name
        if path.is_file():
            for row in read_records(path):
                yield row["ticket"], Record.model_validate(row).trajectory()

    def keep(self, steps: Iterable[int], newest: str) -> None:
        """Remove the files of steps that have no checkpoint any more, and all but `newest` of its own step."""
        wanted, own = set(steps), _NAME.fullmatch(newest)
        for found in self._files():
            replaced = own is not None and found[1] == own[1] and found[0] != newest
            if int(found[1]) not in wanted or replaced:
                (self.folder / found[0]).unlink()

    def _files(self) -> list[re.Match[str]]:
        found = self.folder.glob("unfinished-*") if self.folder.is_dir() else ()
        return [match for match in map(_NAME.fullmatch, (path.name for path in found)) if match]
