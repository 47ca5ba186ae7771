"""Rows of a file, one after the other, with the place each came from.

Reading streams: JSONL, CSV, parquet and Arrow files hold one row (or one record batch) in memory at a time.
A row that cannot be read is handed on as a :class:`BadRow`, so that nothing disappears unseen.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

BATCH_ROWS = 1024
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
SPLIT_WORDS = {"train": ("train", "training"), "test": ("test", "eval", "validation", "valid", "val", "dev")}
_MAX_FIELD = 1 << 27


@dataclass(frozen=True, slots=True)
class Row:
    """One row as it stands in its file; `where` is `line 12` (text files) or `row 12`, counted from 1."""

    file: str
    where: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used, and why."""

    file: str
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, {self.where}: {self.reason}"


def resolve(path: str, split: str) -> list[Path] | None:
    """Files that `path` (file, glob, folder) stands for, sorted; None if it is a hub name.

    A folder with files for several splits gives those of `split` only; one without a file for `split` is an
    error, lest somebody trains on a test set.
    """
    found = Path(path).expanduser()
    if found.is_file():
        return [found]
    if found.is_dir():
        return _of_folder(found, split)
    if any(c in path for c in "*?["):
        files = sorted(Path(p) for p in glob.glob(str(found), recursive=True) if Path(p).is_file())
        if not files:
            raise FileNotFoundError(f"path {path!r}: the pattern matches no file")
        return files
    if re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", path) and base_suffix(found) not in SUFFIXES:
        return None
    raise FileNotFoundError(f"path {path!r}: no such file or folder (and not a hub name `owner/name`)")


def _of_folder(folder: Path, split: str) -> list[Path]:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and base_suffix(p) in SUFFIXES)
    if any(p.suffix == ".arrow" for p in files):  # the JSON files beside Arrow data are its description
        files = [p for p in files if p.suffix == ".arrow"]
    if not files:
        raise FileNotFoundError(f"path {str(folder)!r}: no file that ends in {', '.join(SUFFIXES)}")
    by_split = {p: split_of(p.relative_to(folder)) for p in files}
    if not any(by_split.values()):
        return files
    chosen = [p for p in files if by_split[p] == split_name(split)]
    if not chosen:
        names = ", ".join(str(p.relative_to(folder)) for p in files[:8])
        raise FileNotFoundError(
            f"path {str(folder)!r}: no file for the split {split!r} (found: {names}); name the file itself to use it"
        )
    return chosen


def split_name(word: str) -> str:
    """`train` or `test` for the usual words of either, else the word itself."""
    return next((name for name, words in SPLIT_WORDS.items() if word.lower() in words), word.lower())


def split_of(path: Path) -> str | None:
    """`train` or `test` if a file's name, or else a folder above it, has such a word; else None."""
    for part in reversed(path.parts):
        for word in re.split(r"[^a-z]+", part.lower()):
            if split_name(word) in SPLIT_WORDS:
                return split_name(word)
    return None


def base_suffix(path: Path) -> str:
    """Suffix without a compression suffix: `.jsonl` for `a.jsonl.zst`."""
    name = path.with_suffix("") if path.suffix in (".gz", ".zst") else path
    return name.suffix.lower()


def read_rows(path: Path) -> Iterator[Row | BadRow]:
    """All rows of one file, in its order."""
    suffix = base_suffix(path)
    if suffix == ".parquet":
        yield from _parquet(path)
    elif suffix == ".arrow":
        yield from _arrow(path)
    elif suffix in (".csv", ".tsv"):
        yield from _csv(path, "\t" if suffix == ".tsv" else ",")
    elif suffix in (".jsonl", ".ndjson") or (suffix == ".json" and _is_lines(path)):
        yield from _jsonl(path)
    elif suffix == ".json":
        yield from _json(path)
    else:
        raise ValueError(f"file {str(path)!r}: cannot read {suffix or 'no suffix'!r}; known: {', '.join(SUFFIXES)}")


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading, decompressed."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if path.suffix == ".zst":
        import zstandard

        return zstandard.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb")


def parse_json(data: bytes | str) -> Any:
    """JSON with exact numbers: integers of any size, decimals as `Decimal`."""
    return json.loads(data, parse_float=Decimal)


def _jsonl(path: Path) -> Iterator[Row | BadRow]:
    name = str(path)
    with open_bytes(path) as file:
        # Lines of bytes, because str.splitlines also breaks at U+2028, which questions do contain.
        for number, raw in enumerate(io.BufferedReader(file), 1):  # type: ignore[arg-type]
            line = raw.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else raw.strip()
            if not line:
                continue
            where = f"line {number}"
            try:
                yield _row(name, where, parse_json(line.decode("utf-8")))
            except ValueError as error:
                yield BadRow(name, where, f"not JSON: {error}")


def _is_lines(path: Path) -> bool:
    """Whether a `.json` file holds one object a line rather than one array."""
    with open_bytes(path) as file:
        first = file.readline(1 << 20).removeprefix(b"\xef\xbb\xbf").strip()
        if not first.startswith(b"{"):
            return False
        try:
            parse_json(first)
        except ValueError:
            return False
        return bool(file.readline(1 << 20).strip())


def _json(path: Path) -> Iterator[Row | BadRow]:
    with open_bytes(path) as file:
        try:
            value = parse_json(file.read().decode("utf-8-sig"))
        except ValueError as error:
            raise ValueError(f"file {str(path)!r}: not JSON: {error}") from error
    if isinstance(value, dict):
        lists = {k: v for k, v in value.items() if isinstance(v, list)}
        value = next(iter(lists.values())) if len(lists) == 1 else [value]
    if not isinstance(value, list):
        raise ValueError(f"file {str(path)!r}: expected a list of objects, found a {type(value).__name__}")
    for number, item in enumerate(value, 1):
        yield _row(str(path), f"row {number}", item)


def _row(name: str, where: str, value: Any) -> Row | BadRow:
    if not isinstance(value, dict):
        return BadRow(name, where, f"expected an object, found a {type(value).__name__}")
    return Row(name, where, value)


def _csv(path: Path, delimiter: str) -> Iterator[Row | BadRow]:
    name = str(path)
    csv.field_size_limit(_MAX_FIELD)  # the standard limit of 128 KiB is below a long worked solution
    with open_bytes(path) as file:
        reader = csv.DictReader(io.TextIOWrapper(file, "utf-8-sig", newline=""), delimiter=delimiter)
        while True:
            where = f"line {reader.line_num + 1}"
            try:
                data = next(reader, None)
            except (csv.Error, UnicodeDecodeError) as error:
                yield BadRow(name, where, f"not CSV: {error}")
                if isinstance(error, UnicodeDecodeError):  # the decoder cannot go on behind it
                    return
                continue
            if data is None:
                return
            if None in data or None in data.values():
                yield BadRow(name, where, f"{len(reader.fieldnames or [])} columns in the header, another number here")
            else:
                yield Row(name, where, data)


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as parquet

    number = 0
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            for data in batch.to_pylist():
                number += 1
                yield Row(str(path), f"row {number}", data)


def _arrow(path: Path) -> Iterator[Row]:
    import pyarrow as arrow

    with arrow.memory_map(str(path)) as source:
        try:
            batches: Any = arrow.ipc.open_stream(source)
        except arrow.ArrowInvalid:  # the file form, not the stream form
            opened = arrow.ipc.open_file(source)
            batches = (opened.get_batch(i) for i in range(opened.num_record_batches))
        number = 0
        for batch in batches:
            for data in batch.to_pylist():
                number += 1
                yield Row(str(path), f"row {number}", data)
