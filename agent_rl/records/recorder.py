"""Recorded trajectories: append-only shards of compressed JSON lines, complete when `append` returns.

One shard holds the trajectories of one rollout batch or one measurement. It is a series of zstd frames, one
an `append`, flushed to disk before the call returns; a frame that a crash cut short is left out by the
reader, so there is no half record. `zstdcat FILE | head -1` shows one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent_rl.records import token_updates
from agent_rl.records.index import append_frame, dumps, keep_only
from agent_rl.records.pieces import PieceBook
from agent_rl.records.schema import Place, summary_values
from agent_rl.records.shards import SCHEMA, SUFFIX, compress, frames, read_records, shards, split_and_step
from agent_rl.types import Trajectory

__all__ = ["SCHEMA", "SUFFIX", "TrajectoryRecorder", "read_records", "record", "shards"]

Details = Mapping[str, Any]
"""What is known of one trajectory besides itself: `advantage`, `filters`."""


class TrajectoryRecorder:
    """Writes the shards of one run. One writer a folder.

    Args:
        folder: made if it is not there.
        level: `full`, `tokens` or `text`; see `agent_rl.records.settings.RecordSettings`.
        piece: text of one token id; with it the recording can be read without its tokenizer.
    """

    def __init__(self, folder: Path, *, level: str = "full", piece: Callable[[int], str] | None = None):
        self.folder = folder
        self.level = level
        folder.mkdir(parents=True, exist_ok=True)
        self._pieces = None if piece is None else PieceBook(folder, piece)
        self._mended: set[str] = set()

    def append(
        self, shard: str, trajectories: Iterable[Trajectory], details: Sequence[Details] | None = None, **fields: Any
    ) -> None:
        """Add records to a shard (`train-000012`), as one frame; on disk when this returns.

        Args:
            details: one mapping a trajectory (advantage, filters), put into its record.
            fields: put into each record, such as `step`. `split` is `set`, or the shard's name without its number.
        """
        members = list(trajectories)
        if not members:
            return
        fields = {"split": fields.get("set") or split_and_step(Path(shard + SUFFIX))[0], **fields}
        each = [{**fields, **more} for more in details or [{}] * len(members)]
        if self._pieces is not None and self.level != "text":
            self._pieces.add(i for t in members for s in t.segments for i in s.ids)
        frame = compress([dumps(_row(t, self.level, more)) for t, more in zip(members, each, strict=True)])
        start = self._write(shard + SUFFIX, frame)
        places = [Place(shard + SUFFIX, start, start + len(frame), row) for row in range(len(members))]
        rows = [summary_values(t, more, place) for t, more, place in zip(members, each, places, strict=True)]
        append_frame(self.folder, rows)

    def append_updates(
        self, step: int, reports: Sequence[token_updates.Report], tokens: Mapping[str, token_updates.Tokens]
    ) -> None:
        """Keep what the updates of one rollout batch did to each model token; on disk when this returns."""
        token_updates.write(self.folder, step, reports, tokens)

    def drop_after(self, step: int) -> None:
        """Remove shards of later steps: a resumed run makes them again."""
        for path in shards(self.folder):
            if split_and_step(path)[1] > step:
                path.unlink()
        token_updates.drop_after(self.folder, step)
        keep_only(self.folder)

    def _write(self, name: str, frame: bytes) -> int:
        """Append a frame behind the last whole one; where it begins."""
        path = self.folder / name
        if name not in self._mended:
            self._mend(path)
            self._mended.add(name)
        with open(path, "ab") as file:
            start = file.tell()
            file.write(frame)
            file.flush()
            os.fsync(file.fileno())
        return start

    @staticmethod
    def _mend(path: Path) -> None:
        """Cut off what a crash left half written: what is appended behind it could never be read."""
        if not path.exists():
            return
        whole = max((end for _, end, _ in frames(path)), default=0)
        if whole < path.stat().st_size:
            os.truncate(path, whole)


def record(trajectory: Trajectory, **fields: Any) -> dict[str, Any]:
    """The trajectory as plain JSON, with the schema's version."""
    return {"schema": SCHEMA, **fields, **asdict(trajectory)}


def _row(trajectory: Trajectory, level: str, fields: Details) -> dict[str, Any]:
    """As `record`, with nested dataclasses left to the encoder, which is much faster than copying them."""
    row = {"schema": SCHEMA, "level": level, **fields}
    row |= {name: getattr(trajectory, name) for name in Trajectory.__slots__}
    if level == "text":
        row["segments"] = []
    return row
