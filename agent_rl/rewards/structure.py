r"""Reads the shape of an answer: number, expression, words, list, tuple, interval, set, relation, matrix.

An answer is read as a whole: what is left over makes it something else, never something smaller. `4\sqrt(2)`
is therefore never `4`, `(1,2)` is never `\{1,2\}`, and `[1,2)` is never `(1,2)`. Pure; no computer algebra.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from agent_rl.rewards.exact import Number, read_number, split_unit
from agent_rl.rewards.normalise import normalise, squeeze
from agent_rl.rewards.units import Unit

MAX_DEPTH = 12
"""Deepest nesting of lists, sets and relations (an expression's own nesting is bounded by its parser)."""

MAX_BRACKETS = 60


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

_TOKEN = re.compile(r"\\\\|\\[A-Za-z]+|\\.|.", re.DOTALL)
_OPEN = frozenset(["(", "[", "{", "\\{", "\\langle", "\\lfloor", "\\lceil", "\\begin"])
_CLOSE = frozenset([")", "]", "}", "\\}", "\\rangle", "\\rfloor", "\\rceil", "\\end"])
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "\\le": "<=", "\\ge": ">=", "\\ne": "!=", "\\in": "in", "\\approx": "=",
    "\\equiv": "=", "\\rightarrow": "=", "\\to": "=", "\\implies": "=",
}  # fmt: skip
_PAIRS = {"(": ")", "[": "]", "\\{": "\\}", "{": "}", "\\langle": "\\rangle"}
_MATRIX = re.compile(
    r"\\begin\s*\{(?:[pbBvV]?(?:small)?matrix|array)\*?\}(?:\s*\{[lcr| ]*\})?(.*)\\end\s*\{[A-Za-z*]+\}$", re.DOTALL
)
_AND = re.compile(r"\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\lor|\\land")
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_BOTH = re.compile(r"\\text\{\s*and\s*\}|(?<![A-Za-z\\])and(?![A-Za-z])|\\land(?![A-Za-z])")
_INEQUALITY = re.compile(r"[<>]|\\[lg]e(?![A-Za-z])")
_WORD = re.compile(r"\\text\{([^{}]*)\}|(?<![A-Za-z\\])[A-Za-z]{2,}(?![A-Za-z])")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_MATH_WORDS_LIST = """
    sin cos tan cot sec csc arcsin arccos arctan asin acos atan sinh cosh tanh log ln exp sqrt pi abs gcd lcm
    max min floor ceil ceiling factorial binomial binom inf infinity oo theta alpha beta gamma delta lambda
    phi omega mod frac cdot times
"""
_MATH_WORDS = frozenset(_MATH_WORDS_LIST.split())
_ALL_REALS = frozenset({"allreals", "allrealnumbers", "realnumbers", "allrealx", "therealnumbers"})
_NOTHING = frozenset({"nosolution", "nosolutions", "norealsolution", "norealsolutions", "emptyset"})
_LEAD = re.compile(
    r"(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*[:=]?\s+|\\approx\s*|approximately\s+|=\s*"
    r"|\\text\{(?:approximately|about|[^{}]*answer is:?)\}\s*",
    re.IGNORECASE,
)


def read(answer: str) -> Node:
    """The shape of an answer.

    Raises:
        Unreadable: brackets that never close, an empty text.
        TooLarge: nesting beyond `MAX_DEPTH` (lists) or `MAX_BRACKETS` (brackets).
    """
    text = normalise(answer)
    _check_nesting(text)
    return read_normal(text)


def read_normal(text: str, depth: int = 0) -> Node:
    """As :func:`read`, of a text that is in normal form already."""
    if depth > MAX_DEPTH:
        raise TooLarge(f"nested more than {MAX_DEPTH} deep")
    text = text.strip()
    if lead := _LEAD.match(text):
        text = text[lead.end() :].strip()
    while text.startswith("{") and _closing(text, 0) == len(text) - 1 and not _top_level(text[1:-1], {","}):
        text = text[1:-1].strip()
    if not text:
        raise Unreadable("empty")
    if not text.startswith("\\text{") and (number := read_number(text)) is not None:
        return Scalar(text, number, number.unit, number.percent)
    if (words := _words(text)) is not None:
        return words
    return _compound(text, depth)


def _compound(text: str, depth: int) -> Node:
    text = _join_thousands(text)
    if (both := _inequalities_at_once(text, depth)) is not None:
        return both
    spaced = _AND.sub(" , ", text)
    pieces = _split(spaced, {",", ";"})
    if len(pieces) > 1:
        pieces = [piece for piece in (p.strip() for p in pieces) if piece]
        if len(pieces) > 1:
            return Listing(tuple(read_normal(piece, depth + 1) for piece in pieces))
        return read_normal(pieces[0], depth + 1) if pieces else _fail(text)
    relation = _relation(text, depth)
    if relation is not None:
        return relation
    parts = _split(text, {"\\cup"})
    if len(parts) > 1:
        return Union(tuple(read_normal(part, depth + 1) for part in parts))
    parts = _split(text, {"\\setminus"})
    if len(parts) == 2:
        return Union((read_normal(parts[0], depth + 1),), (read_normal(parts[1], depth + 1),))
    if (enclosed := _enclosed(text, depth)) is not None:
        return enclosed
    parts = _split(text, {":"})
    if 2 <= len(parts) <= 5 and all(part.strip() for part in parts):
        return Ratio(tuple(read_normal(part, depth + 1) for part in parts))
    if _PLUS_MINUS.search(text):
        plus = re.sub(r"\\pm(?![A-Za-z])", "+", re.sub(r"\\mp(?![A-Za-z])", "-", text))
        minus = re.sub(r"\\pm(?![A-Za-z])", "-", re.sub(r"\\mp(?![A-Za-z])", "+", text))
        return Listing((read_normal(plus.strip(), depth + 1), read_normal(minus.strip(), depth + 1)))
    body, unit, percent = split_unit(text)
    return Scalar(body, None, unit, percent)


def _inequalities_at_once(text: str, depth: int) -> Node | None:
    pieces = _BOTH.split(text)
    if len(pieces) != 2 or "," in text or not all(_INEQUALITY.search(piece) for piece in pieces):
        return None
    return Both(tuple(read_normal(piece, depth + 1) for piece in pieces))


def _fail(text: str) -> Node:
    raise Unreadable(f"nothing to compare in {text[:40]!r}")


def _relation(text: str, depth: int) -> Node | None:
    parts, ops = [], []
    start, level = 0, 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        level += (token in _OPEN) - (token in _CLOSE)
        if level == 0 and token in _RELATIONS:
            op, end = _RELATIONS[token], match.end()
            if op in "<>" and text[end : end + 1] == "=":
                op += "="
            if op == "=" and start == match.start() and ops and ops[-1] in ("<=", ">=", "="):
                start = end  # the second half of `<=`, `>=`, `==`
                continue
            if op == "=" and text[match.start() - 1 : match.start()] == "!":
                parts.append(text[start : match.start() - 1])
                op = "!="
            else:
                parts.append(text[start : match.start()])
            ops.append(op)
            start = end
    if not ops:
        return None
    parts.append(text[start:])
    if not all(part.strip() for part in parts):
        raise Unreadable("a relation with an empty side")
    return Relation(tuple(read_normal(part, depth + 1) for part in parts), tuple(ops))


def _enclosed(text: str, depth: int) -> Node | None:
    """Brackets around the whole: tuple, interval, set; one value in parentheses is that value."""
    if match := _MATRIX.match(text):
        return _matrix(match.group(1), text, depth)
    tokens = list(_TOKEN.finditer(text))
    first, last = tokens[0], tokens[-1]
    if first.group() not in _PAIRS or last.group() not in _PAIRS.values() or len(tokens) < 2:
        return None
    if _closing(text, 0) != last.start():
        return None
    opening, closing = first.group(), last.group()
    inner = text[first.end() : last.start()].strip()
    if opening in ("\\{", "{"):
        return _set(inner, opening, closing, depth)
    items = _split(inner, {",", ";"})
    if len(items) == 1:
        return (
            read_normal(inner, depth + 1)
            if inner and opening == "(" and closing == ")"
            else _single(inner, text, depth)
        )
    if not all(item.strip() for item in items):
        if items[-1].strip() or not all(item.strip() for item in items[:-1]):
            raise Unreadable("an empty place between commas")
        items = items[:-1]
    if opening == "[" and all(item.strip()[0] == "[" and item.strip()[-1] == "]" for item in items):
        return _rows([_split(item.strip()[1:-1], {","}) for item in items], depth)
    nodes = tuple(read_normal(item, depth + 1) for item in items)
    if opening == "\\langle":
        opening, closing = "(", ")"
    if opening == "[" and closing == "]" and len(nodes) > 2:
        opening, closing = "(", ")"
    return Bracketed(opening, closing, nodes)


def _single(inner: str, text: str, depth: int) -> Node:
    if not inner:
        return Braced(()) if text.startswith("[") else _fail(text)
    if text.startswith("["):
        return read_normal(inner, depth + 1)
    raise Unreadable("one value between unlike brackets")


def _set(inner: str, opening: str, closing: str, depth: int) -> Node | None:
    if closing != _PAIRS[opening]:
        return None
    bars = _split(inner, {"|", ":"})
    if (
        len(bars) == 2
        and bars[0].strip()
        and re.fullmatch(r"\s*\(?[A-Za-z](?:\s*\\in\s*\\mathbb\{R\})?\)?\s*", bars[0])
    ):
        return read_normal(bars[1], depth + 1)
    if not inner:
        return Braced(())
    if opening == "{" and not _top_level(inner, {","}):
        return None
    inner = _AND.sub(" , ", inner)
    items = [item for item in _split(inner, {",", ";"}) if item.strip()]
    return Braced(tuple(read_normal(item, depth + 1) for item in items))


def _matrix(body: str, text: str, depth: int) -> Node:
    if "\\begin" in body or "vmatrix" in text or "Vmatrix" in text:
        return Scalar(text)
    rows = [row for row in _split(body.replace("\\hline", " "), {"\\\\"}) if row.strip()]
    return _rows([_split(row, {"&"}) for row in rows], depth)


def _rows(rows: list[list[str]], depth: int) -> Node:
    cells = [tuple(read_normal(cell, depth + 1) for cell in row) for row in rows]
    if not cells or len({len(row) for row in cells}) != 1:
        raise Unreadable("a matrix with rows of unequal length")
    return Matrix(tuple(cells))


def _words(text: str) -> Words | Scalar | None:
    """Text made of words alone. A single letter is a symbol unless it stands in parentheses or `\\text`."""
    if text in ("\\emptyset", "\\mathbb{R}"):
        return Words("nosolution" if text == "\\emptyset" else "allreals")
    plain = re.sub(r"\\text\{([^{}]*)\}", lambda m: f" {m.group(1)} ", text)
    if choice := re.fullmatch(r"\s*(?:option|choice)?\s*\(\s*([A-Za-z])\s*\)\s*", plain, re.IGNORECASE):
        return Words(choice.group(1).upper())
    if re.fullmatch(r"\s*\d{1,2}(?::\d{2})?\s*[ap]\.?\s*m\.?\s*", plain, re.IGNORECASE):
        return Words(plain)
    if (whole := re.fullmatch(r"\\text\{([^{}]*)\}", text)) and (inner := read_number(whole.group(1).strip())):
        return Scalar(text, inner, inner.unit, inner.percent)
    if re.fullmatch(r"[A-Za-z]{3,}\.?\s+\d{1,4}(?:,?\s+\d{1,4})?", plain.strip()) and not _MATH_WORDS & set(
        re.findall(r"[a-z]+", plain.lower())
    ):
        return Words(plain)
    if "\\text{" in text and (whole or not re.search(r"\d", plain)) and not re.search(r"[\\=<>+*/^{}]", plain):
        if not re.match(r"\s*[-+$]?[\d.]", plain):
            return Words(plain)
        return None
    if re.search(r"[^A-Za-z\s'\-.,?!&]", plain) or not re.search(r"[A-Za-z]{2,}", plain):
        return None
    words = [word.lower() for word in re.findall(r"[A-Za-z]+", plain)]
    if any(word in _MATH_WORDS for word in words):
        return None
    if len(words) == 1 and len(words[0]) == 2 and words[0] not in ("no", "on", "up", "am", "pm", "it", "he", "we"):
        return None
    if any(len(word) >= 3 or word in ("no", "on", "up") for word in words) and not re.search(
        r"[-!]\s*[A-Za-z]?$", plain
    ):
        return Words(plain)
    return None


def same_words(a: str, b: str) -> bool:
    """Words that say the same: without case, spaces, punctuation, and with synonyms of "none" and "all reals"."""
    return _canonical_words(a) == _canonical_words(b)


def _canonical_words(text: str) -> str:
    letters = "".join(ch for ch in re.sub(r"\\text", "", text).casefold() if ch.isalnum())
    if letters in _ALL_REALS:
        return "allreals"
    return "nosolution" if letters in _NOTHING or letters in ("none", "noneexist") else letters


def _join_thousands(text: str) -> str:
    """Drop thousands commas outside brackets; inside them a comma separates."""
    if not _THOUSANDS.search(text):
        return text
    levels, level = [], 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        level += (token in _OPEN) - (token in _CLOSE)
        levels.extend([level] * len(token))
    return _THOUSANDS.sub(lambda m: m.group().replace(",", "") if levels[m.start()] == 0 else m.group(), text)


def _check_nesting(text: str) -> None:
    level = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        level += (token in _OPEN) - (token in _CLOSE)
        if level > MAX_BRACKETS:
            raise TooLarge(f"brackets nested more than {MAX_BRACKETS} deep")


def _split(text: str, separators: set[str]) -> list[str]:
    pieces, start, level = [], 0, 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        level += (token in _OPEN) - (token in _CLOSE)
        if level < 0:
            raise Unreadable("a bracket closes that was never opened")
        if level == 0 and token in separators:
            pieces.append(text[start : match.start()])
            start = match.end()
    if level:
        raise Unreadable("a bracket is never closed")
    pieces.append(text[start:])
    return pieces


def _top_level(text: str, separators: set[str]) -> bool:
    level = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        level += (token in _OPEN) - (token in _CLOSE)
        if level == 0 and token in separators:
            return True
    return False


def _closing(text: str, start: int) -> int:
    """Offset of the bracket that closes the one at `start`, or -1."""
    level = 0
    for match in _TOKEN.finditer(text, start):
        token = match.group()
        level += (token in _OPEN) - (token in _CLOSE)
        if level == 0:
            return match.start() if token in _CLOSE else -1
    return -1


def same_spelling(a: str, b: str) -> bool:
    """Whether two answers are written alike but for markup and spacing."""
    return squeeze(normalise(a)) == squeeze(normalise(b))
