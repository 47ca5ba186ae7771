"""A set of problems with its fingerprint, its order in every epoch, and an account of what was left out."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import overload

from agent_rl.tasks.files import BadRow
from agent_rl.types import Problem


@dataclass(frozen=True)
class Problems(Sequence[Problem]):
    """Problems in the order of their data. Ids are unique."""

    items: tuple[Problem, ...]
    bad_rows: tuple[BadRow, ...] = ()
    """Rows that could not be used, with place and reason."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """How many problems each filter left out."""
    weights: Mapping[str, float] | None = None
    """Share of each source in an epoch; None draws every problem once."""

    def __post_init__(self) -> None:
        repeated = [i for i, n in Counter(p.id for p in self.items).items() if n > 1]
        if repeated:
            raise ValueError(f"problem ids must be unique; {len(repeated)} are not, such as {repeated[0]!r}")
        if self.weights is not None:
            _check_weights(self.weights, self.by_source)

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        return self.items[index]

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.items)

    @cached_property
    def by_source(self) -> dict[str, list[int]]:
        """Indices of each source's problems."""
        groups: dict[str, list[int]] = {}
        for index, problem in enumerate(self.items):
            groups.setdefault(problem.source, []).append(index)
        return groups

    @cached_property
    def fingerprint(self) -> str:
        """64 hexadecimal digits that change when any id, question, gold answer, order or weight changes."""
        digest = hashlib.sha256(json.dumps(self.weights and dict(self.weights), sort_keys=True).encode())
        for p in self.items:
            fields = [p.id, p.question, p.gold, p.source, p.kind, dict(p.metadata)]
            digest.update(json.dumps(fields, sort_keys=True, default=str).encode())
        return digest.hexdigest()

    def without(self, ids: set[str], reason: str) -> Problems:
        """The problems whose id is not in `ids`; the others are counted in `dropped` under `reason`."""
        kept = tuple(p for p in self.items if p.id not in ids)
        count = len(self.items) - len(kept)
        if not kept:
            raise ValueError(f"no problem is left: all {count} were dropped ({reason})")
        dropped = {**self.dropped, reason: self.dropped.get(reason, 0) + count} if count else self.dropped
        return replace(self, items=kept, dropped=dropped)

    def order(self, seed: int, epoch: int) -> list[int]:
        """Indices in the order of an epoch, a pure function of (problems, seed, epoch).

        The order sorts by a hash of (seed, epoch, id), so that it holds across Python versions. Without weights it
        is a permutation. With weights each source takes its share of `len(self)` draws from an endless row
        of its own permutations, so that over the epochs its problems are drawn equally often.
        """
        if self.weights is None:
            return self._shuffled(range(len(self.items)), f"{seed}/{epoch}")
        drawn: list[tuple[int, int]] = []
        for source, count in shares(self.weights, len(self.items)).items():
            members = self.by_source[source]
            start = epoch * count
            permutations: dict[int, list[int]] = {}
            for position in range(start, start + count):
                turn, place = divmod(position, len(members))
                if turn not in permutations:
                    permutations[turn] = self._shuffled(members, f"{seed}/{source}/{turn}")
                drawn.append((permutations[turn][place], turn))
        return [i for i, _ in sorted(drawn, key=lambda d: self._rank(d[0], f"{seed}/{epoch}/{d[1]}"))]

    def _shuffled(self, indices: Sequence[int], salt: str) -> list[int]:
        return sorted(indices, key=lambda i: self._rank(i, salt))

    def _rank(self, index: int, salt: str) -> bytes:
        return hashlib.blake2b(f"{salt}/{self.items[index].id}".encode(), digest_size=16).digest()


def shares(weights: Mapping[str, float], total: int) -> dict[str, int]:
    """`total` draws divided in proportion to the weights, by largest remainder; sources without a draw left out."""
    whole = sum(weights.values())
    exact = {s: total * w / whole for s, w in weights.items() if w > 0}
    counts = {s: int(x) for s, x in exact.items()}
    rest = sorted(exact, key=lambda s: (counts[s] - exact[s], s))[: total - sum(counts.values())]
    return {s: n + (s in rest) for s, n in counts.items() if n + (s in rest) > 0}


def _check_weights(weights: Mapping[str, float], by_source: Mapping[str, list[int]]) -> None:
    if missing := sorted(set(by_source) - set(weights)):
        raise ValueError(f"mix: no weight for {', '.join(missing)}; give 0 to leave a source out")
    empty = sorted(s for s, w in weights.items() if w > 0 and s not in by_source)
    if empty:
        known = ", ".join(sorted(by_source))
        raise ValueError(f"mix: no problem of source {', '.join(empty)}; the sources are {known}")
