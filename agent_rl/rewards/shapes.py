"""The shapes an answer can have, and the two ways in which reading one can fail."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent_rl.rewards.exact import Number
from agent_rl.rewards.units import Unit


class TooLarge(Exception):
    """Deciding would take more than the bounds allow."""


class Unreadable(ValueError):
    """The text has no shape that can be compared."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value: an exact number, or an expression for the algebra of a worker."""

    text: str
    number: Number | None = None
    unit: Unit | None = None
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """Plain text, compared without case, spaces and punctuation."""

    text: str


@dataclass(frozen=True, slots=True)
class Bracketed:
    """Items between brackets: a tuple, a point or an interval; the two brackets tell them apart."""

    opening: str
    closing: str
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Items without brackets ("1, 2 and 3"): several answers in any order."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Braced:
    """A finite set: order and repetition do not matter."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Union:
    """A union of intervals and sets, optionally minus another set."""

    parts: tuple[Node, ...]
    removed: tuple[Node, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Both:
    """Inequalities that hold at once ("x > 2 and x < 3")."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain `parts[0] ops[0] parts[1] ...` with `=`, `<`, `>`, `\\le`, `\\ge`, `\\ne` or `\\in`."""

    parts: tuple[Node, ...]
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of equal length."""

    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """`a : b : c`."""

    parts: tuple[Node, ...]


Node = Scalar | Words | Bracketed | Listing | Braced | Union | Both | Relation | Matrix | Ratio
