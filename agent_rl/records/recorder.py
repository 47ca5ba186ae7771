"""Recorded trajectories: append-only shards of compressed JSON lines, complete when `append` returns.

One shard holds the trajectories of one rollout batch or one measurement. It is a series of zstd frames, one
an `append`, flushed to disk before the call returns; a frame that a crash cut short is left out by the
reader, so there is no half record. `zstdcat FILE | head -1` shows one.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import zstandard

from agent_rl.types import Trajectory

SCHEMA = 1
"""Version of the record's form; a reader refuses versions it does not know."""
SUFFIX = ".jsonl.zst"


class TrajectoryRecorder:
    """Writes the shards of one run."""

    def __init__(self, folder: Path):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def append(self, shard: str, trajectories: Iterable[Trajectory], **fields: Any) -> None:
        """Add records to a shard (`train-000012`); `fields` (step, split) go into each of them."""
        lines = [json.dumps(record(t, **fields), ensure_ascii=False) for t in trajectories]
        if not lines:
            return
        text = "".join(line + "\n" for line in lines).encode("utf-8", "backslashreplace")
        frame = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(text)
        with open(self._folder / (shard + SUFFIX), "ab") as file:
            file.write(frame)
            file.flush()
            os.fsync(file.fileno())

    def drop_after(self, step: int) -> None:
        """Remove shards of later steps: a resumed run makes them again."""
        for path in shards(self._folder):
            if int(path.name.removesuffix(SUFFIX).rsplit("-", 1)[-1]) > step:
                path.unlink()


def record(trajectory: Trajectory, **fields: Any) -> dict[str, Any]:
    """The trajectory as plain JSON, with the schema's version."""
    return {"schema": SCHEMA, **fields, **asdict(trajectory)}


def shards(folder: Path) -> list[Path]:
    """The shards of a folder, by name."""
    return sorted(folder.glob("*" + SUFFIX))


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Complete records of one shard, in order.

    Raises:
        ValueError: a record of a schema version that this code does not know.
    """
    data = path.read_bytes()
    for frame in _frames(data):
        for line in io.TextIOWrapper(io.BytesIO(frame), encoding="utf-8"):
            row = json.loads(line)
            if row["schema"] != SCHEMA:
                raise ValueError(f"{path} holds records of schema {row['schema']}, this version reads {SCHEMA}")
            yield row


def _frames(data: bytes) -> Iterator[bytes]:
    """Decompressed frames, up to one that was cut short."""
    while data:
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        try:
            frame = decompressor.decompress(data)
        except zstandard.ZstdError:
            return
        if not decompressor.eof:
            return
        yield frame
        data = decompressor.unused_data
