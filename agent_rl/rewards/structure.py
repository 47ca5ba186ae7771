r"""Reads the shape of an answer: number, expression, words, list, tuple, interval, set, relation, matrix.

An answer is read as a whole: what is left over makes it something else, never something smaller. `4\sqrt(2)`
is therefore never `4`, `(1,2)` is never `\{1,2\}`, and `[1,2)` is never `(1,2)`. Pure; no computer algebra.
"""

from __future__ import annotations

import re

from agent_rl.rewards.brackets import (
    CLOSE,
    OPEN,
    PAIRS,
    TOKEN,
    check_nesting,
    closing_offset,
    has_separator,
    join_thousands,
    split,
)
from agent_rl.rewards.exact import read_number, split_unit
from agent_rl.rewards.normalise import normalise, squeeze
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
    Unreadable,
)
from agent_rl.rewards.wording import read_words

MAX_DEPTH = 12
"""Deepest nesting of lists, sets and relations (an expression's own nesting is bounded by its parser)."""


_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "\\le": "<=", "\\ge": ">=", "\\ne": "!=", "\\in": "in", "\\approx": "=",
    "\\equiv": "=", "\\rightarrow": "=", "\\to": "=", "\\implies": "=",
}  # fmt: skip
_MATRIX = re.compile(
    r"\\begin\s*\{(?:[pbBvV]?(?:small)?matrix|array)\*?\}(?:\s*\{[lcr| ]*\})?(.*)\\end\s*\{[A-Za-z*]+\}$", re.DOTALL
)
_AND = re.compile(r"\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\lor|\\land")
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_BOTH = re.compile(r"\\text\{\s*and\s*\}|(?<![A-Za-z\\])and(?![A-Za-z])|\\land(?![A-Za-z])")
_INEQUALITY = re.compile(r"[<>]|\\[lg]e(?![A-Za-z])")
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
    check_nesting(text)
    return read_normal(text)


def read_normal(text: str, depth: int = 0) -> Node:
    """As :func:`read`, of a text that is in normal form already."""
    if depth > MAX_DEPTH:
        raise TooLarge(f"nested more than {MAX_DEPTH} deep")
    text = text.strip()
    if lead := _LEAD.match(text):
        text = text[lead.end() :].strip()
    while text.startswith("{") and closing_offset(text, 0) == len(text) - 1 and not has_separator(text[1:-1], {","}):
        text = text[1:-1].strip()
    if not text:
        raise Unreadable("empty")
    if not text.startswith("\\text{") and (number := read_number(text)) is not None:
        return Scalar(text, number, number.unit, number.percent)
    if (words := read_words(text)) is not None:
        return words
    return _compound(text, depth)


def _compound(text: str, depth: int) -> Node:
    text = join_thousands(text)
    if (both := _inequalities_at_once(text, depth)) is not None:
        return both
    spaced = _AND.sub(" , ", text)
    pieces = split(spaced, {",", ";"})
    if len(pieces) > 1:
        pieces = [piece for piece in (p.strip() for p in pieces) if piece]
        if len(pieces) > 1:
            return Listing(tuple(read_normal(piece, depth + 1) for piece in pieces))
        return read_normal(pieces[0], depth + 1) if pieces else _fail(text)
    relation = _relation(text, depth)
    if relation is not None:
        return relation
    parts = split(text, {"\\cup"})
    if len(parts) > 1:
        return Union(tuple(read_normal(part, depth + 1) for part in parts))
    parts = split(text, {"\\setminus"})
    if len(parts) == 2:
        return Union((read_normal(parts[0], depth + 1),), (read_normal(parts[1], depth + 1),))
    if (enclosed := _enclosed(text, depth)) is not None:
        return enclosed
    parts = split(text, {":"})
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
    for match in TOKEN.finditer(text):
        token = match.group()
        level += (token in OPEN) - (token in CLOSE)
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
    tokens = list(TOKEN.finditer(text))
    first, last = tokens[0], tokens[-1]
    if first.group() not in PAIRS or last.group() not in PAIRS.values() or len(tokens) < 2:
        return None
    if closing_offset(text, 0) != last.start():
        return None
    opening, closing = first.group(), last.group()
    inner = text[first.end() : last.start()].strip()
    if opening in ("\\{", "{"):
        return _set(inner, opening, closing, depth)
    items = split(inner, {",", ";"})
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
        return _rows([split(item.strip()[1:-1], {","}) for item in items], depth)
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
    if closing != PAIRS[opening]:
        return None
    bars = split(inner, {"|", ":"})
    if (
        len(bars) == 2
        and bars[0].strip()
        and re.fullmatch(r"\s*\(?[A-Za-z](?:\s*\\in\s*\\mathbb\{R\})?\)?\s*", bars[0])
    ):
        return read_normal(bars[1], depth + 1)
    if not inner:
        return Braced(())
    if opening == "{" and not has_separator(inner, {","}):
        return None
    inner = _AND.sub(" , ", inner)
    items = [item for item in split(inner, {",", ";"}) if item.strip()]
    return Braced(tuple(read_normal(item, depth + 1) for item in items))


def _matrix(body: str, text: str, depth: int) -> Node:
    if "\\begin" in body or "vmatrix" in text or "Vmatrix" in text:
        return Scalar(text)
    rows = [row for row in split(body.replace("\\hline", " "), {"\\\\"}) if row.strip()]
    return _rows([split(row, {"&"}) for row in rows], depth)


def _rows(rows: list[list[str]], depth: int) -> Node:
    cells = [tuple(read_normal(cell, depth + 1) for cell in row) for row in rows]
    if not cells or len({len(row) for row in cells}) != 1:
        raise Unreadable("a matrix with rows of unequal length")
    return Matrix(tuple(cells))


def same_spelling(a: str, b: str) -> bool:
    """Whether two answers are written alike but for markup and spacing."""
    return squeeze(normalise(a)) == squeeze(normalise(b))
