"""Compares two shapes. Symmetric by construction: swapping the two sides never changes the outcome.

Everything that exact numbers and words decide is decided here, at once. What needs computer algebra goes
through an :class:`Algebra`; without one, :class:`NeedsAlgebra` is raised and the caller sends the pair to a worker.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from agent_rl.rewards.exact import equal_numbers
from agent_rl.rewards.normalise import squeeze
from agent_rl.rewards.shapes import (
    Both,
    Braced,
    Bracketed,
    Listing,
    Matrix,
    Node,
    Ratio,
    Relation,
    Scalar,
    TooLarge,
    Union,
    Words,
)
from agent_rl.rewards.wording import same_words

MAX_ITEMS = 200
"""Longest list or set that is compared item by item."""

_NAME = re.compile(
    r"(?:\\[A-Za-z]+|[A-Za-z])(?:\s*_\s*(?:\{[^{}]*\}|\w))?"
    r"(?:(?:\s*\^\s*\{\s*-1\s*\}|'*)\s*\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])*\s*\)|')?\s*$"
)
_ORDER = ("<", ">", "<=", ">=", "!=")


class NeedsAlgebra(Exception):
    """The pair cannot be decided by exact numbers and words alone."""


class Algebra(Protocol):
    """What the comparison asks of computer algebra."""

    def equal(self, a: Scalar, b: Scalar, scale: Fraction) -> bool:
        """Whether the expression `a` equals `scale * b`."""

    def same_set(self, a: Node, b: Node) -> bool:
        """Whether two intervals, unions or one-variable inequalities are the same set of real numbers."""

    def same_relation(self, a: Relation, b: Relation) -> bool:
        """Whether two equations or inequalities say the same, up to a constant factor."""

    def proportional(self, a: tuple[Node, ...], b: tuple[Node, ...]) -> bool:
        """Whether two ratios of equal length are proportional."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rules of equality, with or without algebra."""

    percent_as_number: bool = True
    decimal_digits: int = 6
    algebra: Algebra | None = None

    def equal(self, a: Node, b: Node) -> bool:
        """Whether two shapes are equal.

        Raises:
            NeedsAlgebra: undecidable here and no algebra was given.
            TooLarge: more than `MAX_ITEMS` items.
        """
        a, b = _plain(a), _plain(b)
        if isinstance(a, Relation) or isinstance(b, Relation):
            return self._relations(a, b)
        if isinstance(a, Words) or isinstance(b, Words):
            return self._words(a, b)
        if isinstance(a, Scalar) and isinstance(b, Scalar):
            return self._scalars(a, b)
        if isinstance(a, (Union, Both)) or isinstance(b, (Union, Both)):
            return self._sets(a, b)
        if isinstance(a, Ratio) or isinstance(b, Ratio):
            return self._ratios(a, b)
        if isinstance(a, Matrix) or isinstance(b, Matrix):
            return self._matrices(a, b)
        return self._collections(a, b)

    def _scalars(self, a: Scalar, b: Scalar) -> bool:
        if a.number is not None and b.number is not None:
            return equal_numbers(
                a.number, b.number, percent_as_number=self.percent_as_number, decimal_digits=self.decimal_digits
            )
        if squeeze(a.text) == squeeze(b.text) and a.percent == b.percent and a.unit == b.unit:
            return True
        scale = Fraction(1)
        if a.unit and b.unit and a.unit.dimension and b.unit.dimension:
            if a.unit.dimension != b.unit.dimension:
                return False
            scale = b.unit.factor / a.unit.factor
        algebra = self._need()
        if (angle := _in_radians(a, b)) or (angle := _in_radians(b, a)):
            return self._need().equal(*angle, Fraction(1))
        if a.percent == b.percent:
            return algebra.equal(a, b, scale)
        in_hundredths = Fraction(100) if a.percent else Fraction(1, 100)
        if algebra.equal(a, b, scale * in_hundredths):
            return True
        return self.percent_as_number and algebra.equal(a, b, scale)

    def _need(self) -> Algebra:
        if self.algebra is None:
            raise NeedsAlgebra
        return self.algebra

    def _words(self, a: Node, b: Node) -> bool:
        words, other = (a, b) if isinstance(a, Words) else (b, a)
        assert isinstance(words, Words)
        if isinstance(other, Words):
            return same_words(words.text, other.text)
        if isinstance(other, Scalar):
            letters = re.sub(r"[^A-Za-z]", "", words.text)
            return other.number is None and other.text.isalpha() and other.text.casefold() == letters.casefold()
        if same_words(words.text, "no solution"):
            return isinstance(other, Braced) and not other.items
        if same_words(words.text, "all reals") and isinstance(other, (Bracketed, Union)):
            return self._need().same_set(words, other)
        return False

    def _relations(self, a: Node, b: Node) -> bool:
        name_a, value_a = assigned(a)
        name_b, value_b = assigned(b)
        if name_a is not None and name_b is not None:
            if name_a == name_b:
                return self.equal(value_a, value_b)
            if _is_number(value_a) or _is_number(value_b):
                return False
        elif name_a is not None and not isinstance(b, Relation):
            return self.equal(value_a, b)
        elif name_b is not None and not isinstance(a, Relation):
            return self.equal(a, value_b)
        if isinstance(a, Relation) and isinstance(b, Relation):
            if is_order(a) and is_order(b) and len(a.ops) + len(b.ops) > 2:
                return self._need().same_set(a, b)
            return self._need().same_relation(a, b)
        relation, other = (a, b) if isinstance(a, Relation) else (b, a)
        assert isinstance(relation, Relation)
        if is_order(relation) and isinstance(other, (Bracketed, Union, Both, Words)):
            return self._need().same_set(relation, other)
        if is_order(relation) and isinstance(other, Listing):
            return all(isinstance(item, Relation) for item in other.items) and self._need().same_set(relation, other)
        if set(relation.ops) == {"="} and isinstance(other, Scalar):
            # A chain of numbers such as `2+3 = 5` stands for its value if it holds.
            numbers = all(isinstance(part, Scalar) and not _has_symbol(part.text) for part in relation.parts)
            return numbers and all(self.equal(part, other) for part in relation.parts)
        return False

    def _sets(self, a: Node, b: Node) -> bool:
        sets = (Union, Both, Bracketed, Braced)
        if isinstance(a, sets) and isinstance(b, sets):
            return self._need().same_set(a, b)
        union, other = (a, b) if isinstance(a, (Union, Both)) else (b, a)
        if isinstance(other, Listing) and all(isinstance(item, (Relation, Bracketed)) for item in other.items):
            return self._need().same_set(union, other)
        return False

    def _ratios(self, a: Node, b: Node) -> bool:
        if isinstance(a, Ratio) and isinstance(b, Ratio):
            if len(a.parts) != len(b.parts):
                return False
            pairs = [*a.parts, *b.parts]
            if all(_is_number(part) for part in pairs):
                left = [part.number.value for part in a.parts]  # type: ignore[union-attr]
                right = [part.number.value for part in b.parts]  # type: ignore[union-attr]
                same = all(left[i] * right[j] == left[j] * right[i] for i in range(len(left)) for j in range(i))
                return same and any(left) and any(right)
            return self._need().proportional(a.parts, b.parts)
        ratio, other = (a, b) if isinstance(a, Ratio) else (b, a)
        assert isinstance(ratio, Ratio)
        if not isinstance(other, Scalar) or len(ratio.parts) != 2:
            return False
        if all(_is_number(part) for part in (*ratio.parts, other)):
            top, bottom = (part.number.value for part in ratio.parts)  # type: ignore[union-attr]
            return bottom != 0 and top / bottom == other.number.value  # type: ignore[union-attr]
        one = Scalar("1")
        return self._need().proportional(ratio.parts, (other, one))

    def _matrices(self, a: Node, b: Node) -> bool:
        if isinstance(a, Matrix) and isinstance(b, Matrix):
            if [len(row) for row in a.rows] != [len(row) for row in b.rows]:
                return False
            return all(
                self.equal(x, y) for ra, rb in zip(a.rows, b.rows, strict=True) for x, y in zip(ra, rb, strict=True)
            )
        matrix, other = (a, b) if isinstance(a, Matrix) else (b, a)
        assert isinstance(matrix, Matrix)
        if isinstance(other, Bracketed) and (other.opening, other.closing) == ("(", ")"):
            # A column is a vector, which may be written as a point.
            if len(matrix.rows) != len(other.items) or any(len(row) != 1 for row in matrix.rows):
                return False
            return all(self.equal(row[0], item) for row, item in zip(matrix.rows, other.items, strict=True))
        return False

    def _collections(self, a: Node, b: Node) -> bool:
        if isinstance(a, Bracketed) and isinstance(b, Bracketed):
            if (a.opening, a.closing) != (b.opening, b.closing):
                return False
            return self._in_order(a.items, b.items)
        if isinstance(a, Bracketed) or isinstance(b, Bracketed):
            point, other = (a, b) if isinstance(a, Bracketed) else (b, a)
            assert isinstance(point, Bracketed)
            if isinstance(other, Listing) and (point.opening, point.closing) == ("(", ")"):
                return self._in_order(point.items, other.items)
            return isinstance(other, Braced) and len(other.items) == 1 and self.equal(point, other.items[0])
        if isinstance(a, Scalar) or isinstance(b, Scalar):
            scalar, other = (a, b) if isinstance(a, Scalar) else (b, a)
            return isinstance(other, Braced) and len(other.items) == 1 and self.equal(scalar, other.items[0])
        if isinstance(a, Braced) and isinstance(b, Braced):
            self._check_items(a.items, b.items)
            return self._covers(a.items, b.items) and self._covers(b.items, a.items)
        if isinstance(a, (Listing, Braced)) and isinstance(b, (Listing, Braced)):
            return self._any_order(a.items, b.items)
        return False

    def _in_order(self, a: tuple[Node, ...], b: tuple[Node, ...]) -> bool:
        return len(a) == len(b) and all(self.equal(x, y) for x, y in zip(a, b, strict=True))

    def _covers(self, a: tuple[Node, ...], b: tuple[Node, ...]) -> bool:
        return all(any(self.equal(x, y) for y in b) for x in a)

    def _any_order(self, a: tuple[Node, ...], b: tuple[Node, ...]) -> bool:
        if len(a) != len(b):
            return False
        self._check_items(a, b)
        left = list(b)
        for item in a:
            match = next((i for i, other in enumerate(left) if self.equal(item, other)), None)
            if match is None:
                return False
            left.pop(match)
        return True

    @staticmethod
    def _check_items(a: tuple[Node, ...], b: tuple[Node, ...]) -> None:
        if max(len(a), len(b)) > MAX_ITEMS:
            raise TooLarge(f"more than {MAX_ITEMS} items")


def assigned(node: Node) -> tuple[str | None, Node]:
    """Name and value of `x = 5`, `f(x) = ... = 5` or `(x, y) = (1, 2)`; (None, node) for anything else."""
    if not isinstance(node, Relation) or set(node.ops) != {"="}:
        return None, node
    name = _name(node.parts[0]) or _quantity(node.parts[0], node.parts[-1])
    return (None, node) if name is None else (name, node.parts[-1])


def is_order(relation: Relation) -> bool:
    """Whether the relation consists of inequalities."""
    return all(op in _ORDER for op in relation.ops)


def _in_radians(degrees: Scalar, other: Scalar) -> tuple[Scalar, Scalar] | None:
    """Degrees against a multiple of pi without a unit: both in radians."""
    if other.unit is None and "\\pi" in other.text and degrees.unit and degrees.unit.words == "°":
        text = degrees.text if degrees.number is None else str(degrees.number.value)
        return Scalar(f"({text})\\cdot\\frac{{\\pi}}{{180}}"), other
    return None


def _plain(node: Node) -> Node:
    """`x \\in S` stands for `S`."""
    if isinstance(node, Relation) and node.ops == ("in",) and _name(node.parts[0]) is not None:
        return node.parts[1]
    return node


def _name(node: Node) -> str | None:
    if isinstance(node, Scalar) and node.number is None and node.unit is None and _NAME.match(node.text):
        return None if node.text in ("e", "i", "\\pi", "\\infty") else squeeze(node.text)
    if isinstance(node, Words):
        return "\\text" + re.sub(r"\W", "", node.text).casefold()
    if isinstance(node, Bracketed):
        names = [_name(item) for item in node.items]
        return None if None in names else ",".join(map(str, names))
    return None


def _quantity(node: Node, value: Node) -> str | None:
    """Name of a quantity such as `m+n`, `AB` or `P(A)` whose value, without symbols, follows.

    Letters that usually are unknowns or coordinates make it an equation instead: `x+y = 1` is a line.
    """
    if not (isinstance(node, Scalar) and node.number is None and isinstance(value, Scalar)):
        return None
    letters = re.sub(r"\\[A-Za-z]+", " ", node.text)
    if not _has_symbol(letters) and not re.search("[A-Z]{2,}", letters):
        return None
    unknown = re.search("[xyzturvw]", letters) or re.search(r"\\(?:theta|phi)(?![A-Za-z])", node.text)
    bare = value.number is not None or not _has_symbol(value.text)
    return squeeze(node.text) if bare and (re.search("[A-Z]{2,}", letters) or not unknown) else None


def _is_number(node: Node) -> bool:
    return isinstance(node, Scalar) and node.number is not None


def _has_symbol(text: str) -> bool:
    return re.search(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", text) is not None
