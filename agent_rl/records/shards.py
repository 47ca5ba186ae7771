"""Shards: append-only files of zstd frames, each frame some lines of JSON.

A frame carries its own checksum and end mark, so that one which a crash cut short is recognised and left out:
there is no half record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

SCHEMA = 1
"""Version of a record's form; a reader refuses versions it does not know."""
SUFFIX = ".jsonl.zst"
_PIECE = 1 << 16


class RecordError(ValueError):
    """A recording that cannot be used; the message names the file and the reason."""


def shards(folder: Path) -> list[Path]:
    """The shards of a folder, by name."""
    return sorted(folder.glob("*" + SUFFIX))


def split_and_step(path: Path) -> tuple[str, int]:
    """`train-000012.jsonl.zst` -> ("train", 12)."""
    split, _, step = path.name.removesuffix(SUFFIX).rpartition("-")
    return split, int(step)


def compress(lines: list[bytes]) -> bytes:
    """One frame of the lines."""
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(b"".join(line + b"\n" for line in lines))


def frames(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(first byte, end, decompressed content) of each whole frame, up to one that was cut short."""
    data = memoryview(path.read_bytes())
    start = 0
    while start < len(data):
        found = _frame(data, start)
        if found is None:
            return
        content, end = found
        yield start, end, content
        start = end


def _frame(data: memoryview, start: int) -> tuple[bytes, int] | None:
    """The frame that begins at `start`, and where it ends; None if it is not whole."""
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    parts, position = [], start
    try:
        while position < len(data):
            piece = data[position : position + _PIECE]
            parts.append(decompressor.decompress(piece))
            position += len(piece)
            if decompressor.eof:
                return b"".join(parts), position - len(decompressor.unused_data)
    except zstandard.ZstdError:
        return None
    return None


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Complete records of one shard, in order, as plain JSON.

    Raises:
        RecordError: a record of a schema version that this code does not know.
    """
    for _, _, content in frames(path):
        yield from parse(content, path)


def read_frame(path: Path, start: int, end: int) -> list[dict[str, Any]]:
    """The records of the frame between two bytes."""
    with open(path, "rb") as file:
        file.seek(start)
        content = zstandard.ZstdDecompressor().decompress(file.read(end - start))
    return list(parse(content, path))


def parse(content: bytes, path: Path) -> Iterator[dict[str, Any]]:
    """The records of a frame's content."""
    for line in content.split(b"\n"):
        if not line:
            continue
        row = json.loads(line)
        if row.get("schema") != SCHEMA:
            raise RecordError(
                f"{path} holds records of schema {row.get('schema')}, this version reads {SCHEMA}; "
                "read it with the version that wrote it (manifest.json names it)"
            )
        yield row
