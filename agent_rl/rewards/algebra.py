"""Equality of expressions, sets of reals and relations by computer algebra. Runs inside the worker only.

Rationals are compared exactly. Other constants are compared to 50 digits relative to their size, and expressions
with symbols at points drawn from a stream that depends on both texts: two different expressions of bounded size
agree at several random points to 30 digits with negligible probability (the idea of Schwartz 1980), whereas
`simplify` neither ends in bounded time nor proves anything when it fails.
"""

from __future__ import annotations

import random
import zlib
from fractions import Fraction
from functools import lru_cache

import mpmath
import sympy
from sympy.core.relational import Relational

from agent_rl.rewards.compare import is_order
from agent_rl.rewards.grammar import Unsupported, parse_expression
from agent_rl.rewards.shapes import (
    Both,
    Braced,
    Bracketed,
    Listing,
    Node,
    Relation,
    Scalar,
    TooLarge,
    Union,
    Unreadable,
    Words,
)
from agent_rl.rewards.wording import same_words

DIGITS = 60
_BITS = 220
NEAR_ZERO = mpmath.mpf("1e-25")
ZERO = mpmath.mpf("1e-60")
TOLERANCE = mpmath.mpf("1e-45")
POINT_DIGITS = 40
POINT_TOLERANCE = mpmath.mpf("1e-28")
POINTS = 12
ENOUGH_POINTS = 3
MAX_SYMBOLS = 12


class CannotDecide(Exception):
    """Both sides were read, but neither equality nor difference could be shown."""


class SympyAlgebra:
    """The algebra behind :class:`agent_rl.rewards.compare.Comparison`."""

    def __init__(self, decimal_digits: int = 6):
        self.decimal_digits = decimal_digits

    def equal(self, a: Scalar, b: Scalar, scale: Fraction) -> bool:
        """Whether `a` equals `scale * b`; a long decimal equals the exact value that rounds to it."""
        left, right = expression(a), expression(b) * sympy.Rational(scale.numerator, scale.denominator)
        if equal_expressions(left, right):
            return True
        if scale != 1:
            return False
        return self._rounds(a, right) or self._rounds(b, left)

    def _rounds(self, literal: Scalar, value: sympy.Expr) -> bool:
        number = literal.number
        if number is None or number.places is None or number.places < self.decimal_digits or value.free_symbols:
            return False
        step = Fraction(1, 10**number.places)
        if len(str(abs(number.value / step).numerator)) < self.decimal_digits:
            return False
        exact = sympy.Rational(number.value.numerator, number.value.denominator)
        gap = sympy.Abs(sympy.N(value - exact, 30))
        return bool(gap.is_finite and gap <= sympy.Rational(step.numerator, 2 * step.denominator))

    def same_set(self, a: Node, b: Node) -> bool:
        """Whether two shapes are the same set of real numbers."""
        left, right = real_set(a), real_set(b)
        return left == right or _same_pieces(left, right)

    def same_relation(self, a: Relation, b: Relation) -> bool:
        """Whether two single relations say the same, up to a constant factor (positive for inequalities)."""
        if len(a.ops) != 1 or len(b.ops) != 1:
            return False
        (left, op_a), (right, op_b) = _directed(a), _directed(b)
        if op_a != op_b:
            return False
        if equal_expressions(left, right) or (op_a in ("=", "!=") and equal_expressions(left, -right)):
            return True
        if left.free_symbols != right.free_symbols:
            return False
        if is_order(a) and len(left.free_symbols) == 1 and self.same_set(a, b):
            return True
        return _constant_ratio(left, right, positive=op_a not in ("=", "!="))

    def proportional(self, a: tuple[Node, ...], b: tuple[Node, ...]) -> bool:
        """Whether every cross product agrees."""
        left, right = [expression(part) for part in a], [expression(part) for part in b]
        return all(
            equal_expressions(left[i] * right[j], left[j] * right[i]) for i in range(len(left)) for j in range(i)
        )


def expression(node: Node) -> sympy.Expr:
    """The sympy expression of a scalar.

    Raises:
        Unreadable: the shape is no scalar, or its text is no expression.
    """
    if not isinstance(node, Scalar):
        raise Unreadable(f"a {type(node).__name__.lower()} stands where a value is expected")
    if node.number is not None:
        if node.number.base is not None:
            raise Unreadable("digits in another base are compared with digits only")
        value = node.number.value
        return sympy.Rational(value.numerator, value.denominator)
    return _expression(node.text)


@lru_cache(maxsize=512)
def _expression(text: str) -> sympy.Expr:
    try:
        value = parse_expression(text)
    except Unsupported as error:
        value = _larger_grammar(text, error)
    if value.has(sympy.nan, sympy.zoo):
        raise Unreadable("its value is undefined")
    return value


def _larger_grammar(text: str, error: Unsupported) -> sympy.Expr:
    """latex2sympy (as math-verify uses it) for sums, integrals, limits; only if it reads the text to its end."""
    from antlr4 import Token
    from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy, latex2sympy

    try:
        parser = _Latex2Sympy().create_parser(text)
        parser.math()
        if parser.getCurrentToken().type != Token.EOF:
            raise error
        value = latex2sympy(text, is_real=False, convert_degrees=False, normalization_config=None)
        value = value.doit()
    except (MemoryError, RecursionError):
        raise
    except Exception as problem:  # the library raises bare Exception for every syntax error
        raise Unreadable(f"{error} ({type(problem).__name__})") from problem
    if not isinstance(value, sympy.Expr):
        raise Unreadable(str(error))
    if value.has(sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative):
        raise CannotDecide("a sum, integral or limit that has no closed form here")
    return value


def equal_expressions(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether two expressions have the same value for all values of their symbols.

    Raises:
        CannotDecide: no point where both can be evaluated.
        TooLarge: more than `MAX_SYMBOLS` symbols.
    """
    if a == b:
        return True
    if a.is_Rational and b.is_Rational:
        return False
    symbols = sorted(a.free_symbols | b.free_symbols, key=lambda symbol: symbol.name)
    if len(symbols) > MAX_SYMBOLS:
        raise TooLarge(f"more than {MAX_SYMBOLS} symbols")
    difference = a - b
    if difference.is_Rational:
        return bool(difference == 0)
    if not difference.free_symbols and not difference.is_Add and difference.is_nonzero:
        return False  # such as exp(-1000), which no number of digits beside 1 would show
    return _equal_at_points(a, b, symbols) if symbols else _equal_constants(a, b)


def _equal_constants(a: sympy.Expr, b: sympy.Expr) -> bool:
    if a.is_infinite or b.is_infinite:
        return False
    left, right = _number(a.evalf(DIGITS, maxn=400)), _number(b.evalf(DIGITS, maxn=400))
    if left is None or right is None:
        raise CannotDecide("a value could not be computed")
    size = max(abs(left), abs(right))
    if size < ZERO and (a.is_zero or b.is_zero or _lost(a) or _lost(b)):
        difference = sympy.simplify(a - b)
        if difference.is_zero is None:
            raise CannotDecide("two values too close to zero to be told apart")
        return bool(difference.is_zero)
    return bool(abs(left - right) <= TOLERANCE * size)


def _lost(value: sympy.Expr) -> bool:
    """Whether cancellation left nothing of the precision that was asked for."""
    return any(part._prec < DIGITS for part in value.evalf(DIGITS, maxn=400).atoms(sympy.Float))


def _number(value: sympy.Expr) -> mpmath.mpc | None:
    """A finite complex number, or None."""
    if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo):
        return None
    with mpmath.workdps(DIGITS):
        real, imaginary = (part._to_mpmath(_BITS) for part in value.as_real_imag())
        number = mpmath.mpc(real, imaginary)
    return number if mpmath.isfinite(number) else None


def _fingerprint(value: sympy.Expr) -> int:
    """A number that depends on every part of an expression and is the same in every process."""
    seen = 0
    for part in sympy.preorder_traversal(value):
        if part.is_Rational:
            token = f"{int(part.p) % 2**61}/{int(part.q) % 2**61}"
        else:
            token = part.name if isinstance(part, sympy.Symbol) else type(part).__name__
        seen = zlib.crc32(token.encode(), seen)
    return seen


def _points(a: sympy.Expr, b: sympy.Expr, symbols: list[sympy.Symbol]) -> list[dict[sympy.Symbol, sympy.Rational]]:
    # Both texts enter, in either order: the outcome is reproducible, symmetric, and not known beforehand.
    stream = random.Random(_fingerprint(a) + _fingerprint(b))
    points = []
    for index in range(POINTS):
        signs = (1, 1) if index % 2 == 0 else (1, -1)
        points.append({s: sympy.Rational(stream.choice(signs) * stream.randrange(401, 3989), 1009) for s in symbols})
    return points


def _value_at(value: sympy.Expr, point: dict[sympy.Symbol, sympy.Rational]) -> mpmath.mpc | None:
    return _number(value.evalf(POINT_DIGITS, subs=point) if value.free_symbols else value.evalf(POINT_DIGITS))


def _equal_at_points(a: sympy.Expr, b: sympy.Expr, symbols: list[sympy.Symbol]) -> bool:
    complex_allowed = a.has(sympy.I) or b.has(sympy.I)
    agreed = 0
    for point in _points(a, b, symbols):
        left, right = _value_at(a, point), _value_at(b, point)
        if left is None or right is None:
            continue
        size = max(abs(left), abs(right))
        if size < NEAR_ZERO:
            continue  # too near to a common zero to tell
        if not complex_allowed and not (_is_real(left, size) and _is_real(right, size)):
            continue  # outside the real domain of one of them, such as the logarithm of a negative number
        if abs(left - right) > POINT_TOLERANCE * size:
            return False
        agreed += 1
    if agreed >= ENOUGH_POINTS:
        return True
    difference = sympy.simplify(a - b)
    if difference.is_zero is None:
        raise CannotDecide("too few points where both sides have a value")
    return bool(difference.is_zero)


def _is_real(value: mpmath.mpc, size: mpmath.mpf) -> bool:
    return bool(abs(value.imag) <= POINT_TOLERANCE * size)


def _constant_ratio(a: sympy.Expr, b: sympy.Expr, positive: bool) -> bool:
    symbols = sorted(a.free_symbols | b.free_symbols, key=lambda symbol: symbol.name)
    ratio: mpmath.mpc | None = None
    agreed = 0
    for point in _points(a, b, symbols):
        left, right = _value_at(a, point), _value_at(b, point)
        if left is None or right is None or min(abs(left), abs(right)) < NEAR_ZERO:
            continue
        current = left / right
        if ratio is not None and abs(current - ratio) > POINT_TOLERANCE * abs(ratio):
            return False
        ratio, agreed = current, agreed + 1
    if agreed < ENOUGH_POINTS or ratio is None:
        raise CannotDecide("too few points where both relations have a value")
    return not positive or bool(ratio.real > 0)


def _directed(relation: Relation) -> tuple[sympy.Expr, str]:
    """`left - right` and the sign, with `>` and `>=` turned around."""
    left, right = (expression(part) for part in relation.parts)
    op = relation.ops[0]
    if op in (">", ">="):
        return right - left, "<" if op == ">" else "<="
    return left - right, op


def real_set(node: Node) -> sympy.Set:
    """A shape as a set of real numbers.

    Raises:
        Unreadable: it is none.
    """
    if isinstance(node, Words):
        if same_words(node.text, "all reals"):
            return sympy.S.Reals
        if same_words(node.text, "no solution"):
            return sympy.S.EmptySet
    if isinstance(node, Bracketed) and len(node.items) == 2 and node.opening in "([" and node.closing in ")]":
        low, high = (expression(item) for item in node.items)
        if not (low.is_extended_real and high.is_extended_real):
            raise Unreadable("an interval whose ends are no real numbers")
        return sympy.Interval(low, high, node.opening == "(", node.closing == ")")
    if isinstance(node, Braced):
        return sympy.FiniteSet(*(expression(item) for item in node.items))
    if isinstance(node, Listing):
        return sympy.Union(*(real_set(item) for item in node.items))
    if isinstance(node, Union):
        whole = sympy.Union(*(real_set(part) for part in node.parts))
        return whole - sympy.Union(*(real_set(part) for part in node.removed)) if node.removed else whole
    if isinstance(node, Both):
        return sympy.Intersection(*(real_set(part) for part in node.parts))
    if isinstance(node, Relation):
        return _solution(node)
    raise Unreadable(f"a {type(node).__name__.lower()} is no set of real numbers")


_SIGNS: dict[str, type[Relational]] = {
    "<": sympy.StrictLessThan, "<=": sympy.LessThan, ">": sympy.StrictGreaterThan, ">=": sympy.GreaterThan,
    "=": sympy.Equality, "!=": sympy.Unequality,
}  # fmt: skip


def _solution(relation: Relation) -> sympy.Set:
    if relation.ops == ("in",):
        return real_set(relation.parts[1])
    parts = [expression(part) for part in relation.parts]
    symbols = set().union(*(part.free_symbols for part in parts))
    if len(symbols) != 1:
        raise Unreadable("a relation in other than one variable is no set of real numbers")
    real = sympy.Symbol("x", real=True)
    parts = [part.subs(next(iter(symbols)), real) for part in parts]
    solution: sympy.Set = sympy.S.Reals
    for left, right, op in zip(parts, parts[1:], relation.ops, strict=False):
        solution = solution & _solve(left, right, op, real)
    return solution


def _solve(left: sympy.Expr, right: sympy.Expr, op: str, real: sympy.Symbol) -> sympy.Set:
    relation = _SIGNS[op](left, right)
    if relation is sympy.true:
        return sympy.S.Reals
    return sympy.S.EmptySet if relation is sympy.false else relation.as_set()


def _same_pieces(a: sympy.Set, b: sympy.Set) -> bool:
    """Piece by piece, with endpoints compared by value: sympy's own `==` is structural."""
    left, right = _pieces(a), _pieces(b)
    if len(left) != len(right):
        return False
    return all(
        x[1:3] == y[1:3] and equal_expressions(x[0], y[0]) and equal_expressions(x[3], y[3])
        for x, y in zip(left, right, strict=True)
    )


def _pieces(value: sympy.Set) -> list[tuple[sympy.Expr, bool, bool, sympy.Expr]]:
    out = []
    for part in value.args if isinstance(value, sympy.Union) else (value,):
        if isinstance(part, sympy.Interval):
            out.append((part.start, bool(part.left_open), bool(part.right_open), part.end))
        elif isinstance(part, sympy.FiniteSet):
            out.extend((item, False, False, item) for item in part)
        elif part is not sympy.S.EmptySet:
            raise CannotDecide("a set of reals that is no union of intervals")
    return sorted(out, key=lambda piece: float(piece[0]))
