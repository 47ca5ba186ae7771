"""The reference answer of a row, as text, exactly as the data means it.

Numbers stay exact: JSON numbers arrive as `int` or `Decimal`, never as a binary float, and an integer that a
data frame turned into a float (`33.0`) becomes an integer again. Text is never rewritten.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

_DOLLAR_LIST = re.compile(r"\s*\$[^$]+\$(?:\s*[,;]\s*\$[^$]+\$)*\s*")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")


def gold_text(value: Any) -> str:
    """Text of a gold answer; several answers are joined by commas. ValueError says what is wrong with it."""
    if value is None:
        raise ValueError("the gold answer is missing")
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float | Decimal):
        return _number_text(value)
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("the gold answer is empty")
        return value.strip()
    if isinstance(value, list | tuple):
        if not value:
            raise ValueError("the gold answer is an empty list")
        return ", ".join(_undollared(gold_text(v)) for v in value)
    raise ValueError(f"the gold answer is a {type(value).__name__}, not text, a number or a list of them")


def _number_text(value: float | Decimal) -> str:
    if not math.isfinite(value):
        raise ValueError(f"the gold answer is {value}, not a finite number")
    exact = value if isinstance(value, Decimal) else Decimal(repr(value))
    if exact == exact.to_integral_value() and abs(exact) < Decimal(10) ** 16:
        return str(int(exact))
    return format(exact, "f") if -20 <= exact.adjusted() <= 20 else str(exact)


def _undollared(text: str) -> str:
    """`$69$,$84$` as `69,84`; text with words between the formulas is left as it is."""
    return text.replace("$", "").strip() if _DOLLAR_LIST.fullmatch(text) else text


def gsm8k_gold(answer: str) -> str:
    """What follows the last `####` of a GSM8K answer, without thousands separators."""
    _, mark, last = answer.rpartition("####")
    if not mark or not last.strip():
        raise ValueError("no answer after '####'")
    text = last.strip()
    return text.replace(",", "") if _THOUSANDS.fullmatch(text) else text


def boxed_gold(solution: str) -> str:
    """Content of the last complete `\\boxed{...}` (or `\\boxed 5`) of a worked solution."""
    found: str | None = None
    for match in _BOX.finditer(solution):
        content = _braced(solution, match.end())
        if content is None and not solution.startswith("{", match.end()):
            # MATH writes a few answers as `\boxed 5` or `\boxed\frac12`: TeX boxes the next token.
            bare = re.match(r"[^\s$.,{}]+", solution[match.end() :])
            content = bare.group() if bare else None
        if content and content.strip():
            found = content.strip()
    if found is None:
        raise ValueError("the solution has no complete \\boxed{} answer")
    return found


def _braced(text: str, start: int) -> str | None:
    """What stands between the brace at `start` and its partner; None without a partner."""
    if not text.startswith("{", start):
        return None
    depth = 0
    position = start
    while position < len(text):
        char = text[position]
        if char == "\\":
            position += 2
            continue
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[start + 1 : position]
        position += 1
    return None
