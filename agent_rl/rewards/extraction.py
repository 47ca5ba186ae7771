"""Finds the final answer in a model's own text. Pure, linear in the length of the text.

The last complete box counts: a box that was never closed is no answer, and of several boxes the earlier
ones are drafts. Nothing here guesses unless the `plain` mode is asked for.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

MAX_CODE_CHARS = 200_000
"""Longer programs are not parsed for `final_answer(...)`."""

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])[ \t]*")
_VISIBLE = re.compile(r"\S")
_BARE = re.compile(r"[^\s$\\{}]+")
_PLAIN_NUMBER = re.compile(r"-?(?:\d{1,1000}(?:/\d{1,1000})?|\d{0,300}\.\d{1,300})$")
"""What `Fraction` may be given: no exponents, since `Fraction("1e999999999")` never returns."""
_FENCE = re.compile(r"^[ \t]*```([^\n`]*)$", re.MULTILINE)
_HASHES = re.compile(r"^[ \t]*####[ \t]*(\S[^\n]*)$", re.MULTILINE)
_ANSWER_IS = re.compile(r"answer[ \t]*(?:is[ \t]*:?|:|=)[ \t]*\**[ \t]*(\S[^\n]{0,500})", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.,])[-+]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?")


@dataclass(frozen=True, slots=True)
class Extracted:
    """An answer and where it stood."""

    answer: str
    mode: str
    """Which mode found it."""
    start: int
    """Offset of the first character of the answer's construct in the text."""
    end: int
    """Offset behind its last character."""


def extract_answer(text: str, *, modes: Sequence[str] = ("boxed",), skip_fenced: bool = True) -> Extracted | None:
    r"""The final answer of a text, by the first mode that finds one.

    Args:
        text: the model's own text (never tool output or the prompt).
        modes: tried in order: `boxed` (last complete `\boxed{}` or `\fbox{}`), `final_answer` (last call with a
            literal in a fenced Python block, or in the text itself if it has no fence), `hashes` (last line that
            starts with `####`), `plain` ("the answer is ...", else the last number).
        skip_fenced: whether boxes inside fenced code blocks are ignored.

    Raises:
        ValueError: an unknown mode.
    """
    for mode in modes:
        if mode == "boxed":
            found = _last_box(text, skip_fenced)
        elif mode == "final_answer":
            found = _final_answer(text)
        elif mode == "hashes":
            found = _last_hashes(text)
        elif mode == "plain":
            found = _plain(text)
        else:
            raise ValueError(f"extraction mode {mode!r} is unknown; choose from boxed, final_answer, hashes, plain")
        if found is not None:
            return found
    return None


def fenced_spans(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and info word of each fenced code block's body; an unclosed one runs to the end."""
    opened: tuple[int, str] | None = None
    for match in _FENCE.finditer(text):
        if opened is None:
            opened = (match.end(), match.group(1).strip())
        elif not match.group(1).strip():
            yield opened[0], match.start(), opened[1]
            opened = None
    if opened is not None:
        yield opened[0], len(text), opened[1]


def _last_box(text: str, skip_fenced: bool) -> Extracted | None:
    """One pass with a stack of open braces, so that many unclosed boxes cost no more than one."""
    if "\\boxed" not in text and "\\fbox" not in text:
        return None
    fences = deque(fenced_spans(text) if skip_fenced and "```" in text else ())
    starts: dict[int, int] = {}
    bare: list[Extracted] = []
    for match in _BOX.finditer(text):
        while fences and fences[0][1] <= match.start():
            fences.popleft()
        if fences and fences[0][0] <= match.start():
            continue
        if match.end() < len(text) and text[match.end()] == "{":
            starts[match.end()] = match.start()
        elif token := _BARE.match(text, match.end()):
            answer = token.group().rstrip(".,;:!?")
            if answer:
                bare.append(Extracted(answer, "boxed", match.start(), match.end() + len(answer)))
    stack: list[int] = []
    last: tuple[int, int] | None = None
    for brace in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        symbol = brace.group()
        if symbol == "{":
            stack.append(brace.start())
        elif symbol == "}" and stack:
            opened = stack.pop()
            if opened in starts and _VISIBLE.search(text, opened + 1, brace.start()):
                last = (opened, brace.start())
    if bare and (last is None or bare[-1].start > last[1]):
        return bare[-1]
    if last is None:
        return None
    opened, closed = last
    return Extracted(text[opened + 1 : closed].strip(), "boxed", starts[opened], closed + 1)


def _final_answer(text: str) -> Extracted | None:
    spans = [(a, b) for a, b, info in fenced_spans(text) if info in ("", "py", "python", "python3")]
    if not spans and "```" not in text:
        spans = [(0, len(text))]
    for start, end in reversed(spans):
        answer = answer_from_code(text[start:end])
        if answer is not None:
            return Extracted(answer, "final_answer", start, end)
    return None


def answer_from_code(code: str) -> str | None:
    """Argument of the last `final_answer(LITERAL)` call in Python source, as text; None if there is none.

    Only literals count (int, float, str, `Fraction(a, b)`, their negatives, and tuples of these): the call is the
    model's own writing, whereas a variable's value would be something the tool computed.
    """
    if "final_answer" not in code or len(code) > MAX_CODE_CHARS:
        return None
    try:
        tree = ast.parse(code.strip("\n"))
        calls = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "final_answer"
            and len(node.args) == 1
            and not node.keywords
        ]
        for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset), reverse=True):
            value = _literal(call.args[0])
            if value is not None:
                return value
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # A program that Python itself refuses has called nothing.
        return None
    return None


def _literal(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            return node.value.strip() or None
        if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            return repr(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        if isinstance(node.operand, (ast.Constant, ast.Call)) and (inner := _literal(node.operand)):
            if isinstance(node.operand, ast.Constant) and isinstance(node.operand.value, str):
                return None
            if isinstance(node.op, ast.UAdd):
                return inner
            return inner[1:] if inner.startswith("-") else f"-{inner}"
        return None
    if isinstance(node, ast.Tuple) and node.elts:
        items = [_literal(item) for item in node.elts]
        return None if None in items else f"({', '.join(map(str, items))})"
    return _fraction(node)


def _fraction(node: ast.expr) -> str | None:
    if not isinstance(node, ast.Call) or node.keywords or not 1 <= len(node.args) <= 2:
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    parts = [_literal(argument) for argument in node.args]
    if name not in ("Fraction", "Rational") or not all(part and _PLAIN_NUMBER.match(part) for part in parts):
        return None
    try:
        return str(Fraction(*(Fraction(part) for part in parts)))
    except (ValueError, ZeroDivisionError):
        return None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def _last_hashes(text: str) -> Extracted | None:
    last = _last(_HASHES, text)
    return None if last is None else Extracted(last.group(1).strip(), "hashes", last.start(), last.end())


def _plain(text: str) -> Extracted | None:
    last = _last(_ANSWER_IS, text)
    if last is not None:
        answer = re.split(r"(?<=[^\s])\.(?=\s|$)", last.group(1))[0].strip().strip("*").strip()
        if answer:
            return Extracted(answer, "plain", last.start(1), last.end(1))
    number = _last(_NUMBER, text)
    return None if number is None else Extracted(number.group(), "plain", number.start(), number.end())
