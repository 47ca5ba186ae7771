"""Where the brackets of a text open and close, and what stands between them at the top level. Linear."""

from __future__ import annotations

import re

from agent_rl.rewards.shapes import TooLarge, Unreadable

MAX_BRACKETS = 60
"""Deepest nesting of brackets of any kind."""

TOKEN = re.compile(r"\\\\|\\[A-Za-z]+|\\.|.", re.DOTALL)
OPEN = frozenset(["(", "[", "{", "\\{", "\\langle", "\\lfloor", "\\lceil", "\\begin"])
CLOSE = frozenset([")", "]", "}", "\\}", "\\rangle", "\\rfloor", "\\rceil", "\\end"])
PAIRS = {"(": ")", "[": "]", "\\{": "\\}", "{": "}", "\\langle": "\\rangle"}
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")


def join_thousands(text: str) -> str:
    """Drop thousands commas outside brackets; inside them a comma separates."""
    if not _THOUSANDS.search(text):
        return text
    levels, level = [], 0
    for match in TOKEN.finditer(text):
        token = match.group()
        level += (token in OPEN) - (token in CLOSE)
        levels.extend([level] * len(token))
    return _THOUSANDS.sub(lambda m: m.group().replace(",", "") if levels[m.start()] == 0 else m.group(), text)


def check_nesting(text: str) -> None:
    """Refuse brackets nested beyond `MAX_BRACKETS`."""
    level = 0
    for match in TOKEN.finditer(text):
        token = match.group()
        level += (token in OPEN) - (token in CLOSE)
        if level > MAX_BRACKETS:
            raise TooLarge(f"brackets nested more than {MAX_BRACKETS} deep")


def split(text: str, separators: set[str]) -> list[str]:
    """The pieces between separators outside all brackets.

    Raises:
        Unreadable: the brackets do not match in number.
    """
    pieces, start, level = [], 0, 0
    for match in TOKEN.finditer(text):
        token = match.group()
        level += (token in OPEN) - (token in CLOSE)
        if level < 0:
            raise Unreadable("a bracket closes that was never opened")
        if level == 0 and token in separators:
            pieces.append(text[start : match.start()])
            start = match.end()
    if level:
        raise Unreadable("a bracket is never closed")
    pieces.append(text[start:])
    return pieces


def has_separator(text: str, separators: set[str]) -> bool:
    """Whether one of the separators stands outside all brackets."""
    level = 0
    for match in TOKEN.finditer(text):
        token = match.group()
        level += (token in OPEN) - (token in CLOSE)
        if level == 0 and token in separators:
            return True
    return False


def closing_offset(text: str, start: int) -> int:
    """Offset of the bracket that closes the one at `start`, or -1."""
    level = 0
    for match in TOKEN.finditer(text, start):
        token = match.group()
        level += (token in OPEN) - (token in CLOSE)
        if level == 0:
            return match.start() if token in CLOSE else -1
    return -1
