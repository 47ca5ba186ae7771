"""Answers in words: names, days, choices, "no solution"."""

from __future__ import annotations

import re

from agent_rl.rewards.exact import read_number
from agent_rl.rewards.shapes import Scalar, Words

_MATH_WORDS_LIST = """
    sin cos tan cot sec csc arcsin arccos arctan asin acos atan sinh cosh tanh log ln exp sqrt pi abs gcd lcm
    max min floor ceil ceiling factorial binomial binom inf infinity oo theta alpha beta gamma delta lambda
    phi omega mod frac cdot times
"""
_MATH_WORDS = frozenset(_MATH_WORDS_LIST.split())
_ALL_REALS = frozenset({"allreals", "allrealnumbers", "realnumbers", "allrealx", "therealnumbers"})
_NOTHING = frozenset({"nosolution", "nosolutions", "norealsolution", "norealsolutions", "emptyset"})


def read_words(text: str) -> Words | Scalar | None:
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
