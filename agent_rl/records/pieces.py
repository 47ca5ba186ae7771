"""Text of the token ids that occur in a recording, so that it can be read without its tokenizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import orjson

PIECES = "pieces.jsonl"


class PieceBook:
    """Writes `[id, text]` once for each id that occurs."""

    def __init__(self, folder: Path, piece: Callable[[int], str]):
        self._path = folder / PIECES
        self._piece = piece
        self._known = set(read_pieces(folder))

    def add(self, ids: Iterable[int]) -> None:
        """Keep the text of ids not seen before."""
        fresh = sorted(set(ids) - self._known)
        if not fresh:
            return
        text = b"".join(orjson.dumps([i, _clean(self._piece(i))]) + b"\n" for i in fresh)
        with open(self._path, "ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    text = b"\n" + text
            file.write(text)
        self._known.update(fresh)


def read_pieces(folder: Path) -> dict[int, str]:
    """Text by id; a line that a crash cut short is left out."""
    path = folder / PIECES
    if not path.exists():
        return {}
    found: dict[int, str] = {}
    for line in path.read_bytes().split(b"\n"):
        try:
            token, text = orjson.loads(line)
        except (orjson.JSONDecodeError, ValueError):
            continue
        found[token] = text
    return found


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
