"""The index: one short line a trajectory, so that a list needs no tokens.

`index.jsonl` follows the shards. It is written after them, so a crash may leave it behind; a shard whose size the
index does not account for is read itself.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import orjson

from agent_rl.records.schema import Place, Record, Summary, summary_values
from agent_rl.records.shards import frames, parse, shards

INDEX = "index.jsonl"


def dumps(value: Any) -> bytes:
    """JSON; lone surrogates, which programs can print, as escapes."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, default=_plain).encode("utf-8", "backslashreplace")


def _plain(value: Any) -> Any:
    from dataclasses import asdict, is_dataclass

    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else dict(value)


def append_lines(folder: Path, rows: list[list[Any]]) -> None:
    """Add rows; a line that a crash cut short is ended first."""
    path = folder / INDEX
    text = b"".join(dumps(row) + b"\n" for row in rows)
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                text = b"\n" + text
        file.write(text)
        file.flush()


def read_summaries(folder: Path) -> list[Summary]:
    """All trajectories of a folder of shards, by shard and place."""
    sizes = {path.name: path.stat().st_size for path in shards(folder)}
    by_shard: dict[str, list[list[Any]]] = {name: [] for name in sizes}
    for row in _lines(folder / INDEX):
        if row[-4] in by_shard:
            by_shard[row[-4]].append(row)
    found: list[Summary] = []
    for name, rows in by_shard.items():
        if max((row[-2] for row in rows), default=0) != sizes[name]:
            rows = _scan(folder / name)
        found += [Summary(*row) for row in rows]
    return found


def keep_only(folder: Path) -> None:
    """Drop lines of shards that are gone, all at once."""
    path = folder / INDEX
    if not path.exists():
        return
    names = {shard.name for shard in shards(folder)}
    temporary = folder / (INDEX + ".new")
    with open(temporary, "wb") as file:
        file.writelines(dumps(row) + b"\n" for row in _lines(path) if row[-4] in names)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _lines(path: Path) -> list[list[Any]]:
    """Whole lines; one that cannot be read is left out, its shard is then read itself."""
    if not path.exists():
        return []
    lines = [line for line in path.read_bytes().split(b"\n") if line]
    try:
        return orjson.loads(b"[" + b",".join(lines) + b"]")
    except orjson.JSONDecodeError:
        return [row for row in map(_line, lines) if row is not None]


def _line(line: bytes) -> list[Any] | None:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return row if isinstance(row, list) and len(row) == len(Summary.__slots__) else None


def _scan(path: Path) -> list[list[Any]]:
    rows = []
    for start, end, content in frames(path):
        for number, row in enumerate(parse(content, path)):
            record = Record.model_validate(row)
            fields = {name: getattr(record, name) for name in ("split", "step", "advantage", "filters")}
            rows.append(summary_values(record.trajectory(), fields, Place(path.name, start, end, number)))
    return rows
