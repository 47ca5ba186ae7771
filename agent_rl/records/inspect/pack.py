"""Trajectories as compact arrays inside the page: gzip chunks that the page unpacks when one is looked at.

A chunk is the length of its header (uint32), the header (JSON, one object a trajectory), and one area of 4-byte words
that the header's [start, count] pairs point into: int32 for ids and versions, float32 for the numbers of each model
token, rounded to 14 bits of mantissa (4 digits), which is what a reader of hover texts can use and compresses well.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from agent_rl.records.schema import Record
from agent_rl.records.token_updates import Update
from agent_rl.types import Origin

CHUNK = 40
"""Trajectories a chunk."""
ORIGINS = (Origin.PROMPT, Origin.MODEL, Origin.TOOL, Origin.SEPARATOR)
_SHOWN = (
    "logp", "logp_old", "entropy", "ratio", "log_ratio", "prefix_log_ratio", "window_lower", "window_upper",
    "divergence", "position_weight", "budget", "gate", "weight", "loss", "reason",
)  # fmt: skip
_KEPT_BITS = np.uint32(0xFFFFFE00)

Passes = list[tuple[int, Mapping[str, np.ndarray]]]
"""(number of the update, quantity -> [model tokens]) of one trajectory."""


def packed(value: bytes) -> str:
    """gzip and base64, as a script element can hold it."""
    return base64.b64encode(gzip.compress(value, 6, mtime=0)).decode("ascii")


class _Words:
    """The area of 4-byte words of a chunk."""

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []
        self._count = 0

    def ints(self, values: Any) -> list[int]:
        return self._put(np.asarray(values, np.int32).view(np.uint32))

    def floats(self, values: Any) -> list[int]:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        return self._put((bits + np.uint32(0x100)) & _KEPT_BITS if bits.size else bits)

    def _put(self, words: np.ndarray) -> list[int]:
        place = [self._count, int(words.size)]
        self._parts.append(words)
        self._count += words.size
        return place

    def tobytes(self) -> bytes:
        return b"".join(part.tobytes() for part in self._parts)


def chunk(members: Iterable[tuple[Record, Passes, Mapping[str, Mapping[str, np.ndarray]]]]) -> str:
    """One packed chunk of (record, passes, what other methods would have done)."""
    words = _Words()
    heads = [_head(record, passes, methods, words) for record, passes, methods in members]
    header = json.dumps(heads, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    padding = b" " * (-len(header) % 4)
    return packed(np.uint32(len(header)).tobytes() + header + padding + words.tobytes())


def _head(record: Record, passes: Passes, methods: Mapping[str, Mapping[str, np.ndarray]], words: _Words) -> Any:
    sampled = [s for s in record.segments if s.origin is Origin.MODEL]
    return {
        "segments": [[ORIGINS.index(s.origin), len(s.ids)] for s in record.segments],
        "ids": words.ints([i for s in record.segments for i in s.ids]),
        "versions": words.ints([v for s in sampled for v in s.weight_versions]),
        "sampler": {"logp_mu": words.floats([p for s in sampled for p in s.logprobs])},
        "passes": [{"n": n, "q": _quantities(q, words)} for n, q in passes],
        "methods": {name: _quantities(q, words) for name, q in methods.items()},
        "turns": record.model_dump(mode="json", include={"turns"})["turns"],
        "parts": record.reward_parts,
        "seconds": record.seconds,
        "verifier": None if record.verdict is None else record.verdict.verifier,
        "why": None if record.verdict is None else record.verdict.reason,
        "error": record.error,
    }


def _quantities(found: Mapping[str, np.ndarray], words: _Words) -> dict[str, list[int]]:
    return {name: words.floats(found[name]) for name in _SHOWN if name in found}


def passes_by_key(updates: Iterable[Update]) -> dict[str, Passes]:
    """What each update of a step did, by trajectory."""
    found: dict[str, Passes] = {}
    for update in updates:
        for key, values in update.tokens.items():
            found.setdefault(key, []).append((update.number, values))
    return found


def groups_of(items: list[Any], size: int = CHUNK) -> Iterator[list[Any]]:
    """Consecutive runs of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
