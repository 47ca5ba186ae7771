"""The index: what a list needs to know of each trajectory, so that it needs no tokens.

`index.jsonl` follows the shards, one line (a list of rows) a frame. It is written after them, so a crash may leave it
behind; a shard whose size the index does not account for is read itself.
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


Frame = list[list[Any]]
"""Values of `Summary`, in order, for each record of one frame."""


def append_frame(folder: Path, rows: Frame) -> None:
    """Add the rows of one frame; a line that a crash cut short is ended first."""
    path = folder / INDEX
    text = dumps(rows) + b"\n"
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
    by_shard: dict[str, list[Frame]] = {name: [] for name in sizes}
    for frame in _lines(folder / INDEX):
        name = frame[0][-4]
        if name in by_shard:
            by_shard[name].append(frame)
    found: list[Summary] = []
    for name, known in by_shard.items():
        if not _covers(known, sizes[name]):
            known = _scan(folder / name)
        found += [Summary._make(row) for frame in known for row in frame]
    return found


def _covers(known: list[Frame], size: int) -> bool:
    """Whether the frames lie side by side from the shard's first byte to its last."""
    at = 0
    for frame in known:
        if frame[0][-3] != at:
            return False
        at = frame[0][-2]
    return at == size


def keep_only(folder: Path) -> None:
    """Drop lines of shards that are gone, all at once."""
    path = folder / INDEX
    if not path.exists():
        return
    names = {shard.name for shard in shards(folder)}
    temporary = folder / (INDEX + ".new")
    with open(temporary, "wb") as file:
        file.writelines(dumps(frame) + b"\n" for frame in _lines(path) if frame[0][-4] in names)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _lines(path: Path) -> list[Frame]:
    """Whole lines; one that cannot be read is left out, its shard is then read itself."""
    if not path.exists():
        return []
    return [frame for frame in map(_line, path.read_bytes().split(b"\n")) if frame]


def _line(line: bytes) -> Frame | None:
    try:
        frame = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    whole = isinstance(frame, list) and all(isinstance(r, list) and len(r) == len(Summary._fields) for r in frame)
    return frame if whole else None


def _scan(path: Path) -> list[Frame]:
    found = []
    for start, end, content in frames(path):
        rows = []
        for number, row in enumerate(parse(content, path)):
            record = Record.model_validate(row)
            fields = {name: getattr(record, name) for name in ("split", "step", "advantage", "filters")}
            rows.append(summary_values(record.trajectory(), fields, Place(path.name, start, end, number)))
        found.append(rows)
    return found
