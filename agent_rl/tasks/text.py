"""Question text: well-known instruction sentences taken off, and keys under which questions count as equal."""

from __future__ import annotations

import hashlib
import re

_TRAILING = re.compile(
    r"\s*(?:"
    r"(?:please )?(?:let's )?(?:reason|think) step by step,? and (?:put|output) (?:your |the )?final answer "
    r"(?:with)?in \\boxed\{\}\.?"
    r"|(?:please )?put your final answer (?:with)?in \\boxed\{\}\.?"
    r"|remember to put your answer on its own line after [\"“]answer:[\"”]\.?"
    r")\s*$",
    re.IGNORECASE,
)
_LEADING = re.compile(
    r"^\s*solve the following math problem step by step\.\s*the last line of your response should be of the form "
    r"answer: \\?\$answer(?:\\?\$)?(?: \(without quotes\))? where \\?\$answer(?:\\?\$)? "
    r"is the answer to the problem\.\s*",
    re.IGNORECASE,
)
_OPERATORS = re.compile(r"[^-+*/^<>=!%|]+")


def strip_instructions(question: str) -> str:
    """The question without the instruction that several data sets glue to it (LLMEval, verl, DAPO).

    Instructions belong to the prompt format; left in, they ask for two answer forms at once and hide that two
    questions are the same one.
    """
    stripped = _TRAILING.sub("", _LEADING.sub("", question)).strip()
    return stripped or question


def exact_key(question: str) -> bytes:
    """Equal for questions that differ in case and white space alone. For deduplication."""
    return _digest(" ".join(question.lower().split()))


def loose_key(question: str) -> bytes:
    """Equal for questions with the same letters and digits, in lower case. For overlaps between data sets."""
    return _digest("".join(c for c in question.lower() if c.isalnum()))


def operators(question: str) -> str:
    """The arithmetic signs of a question, in order: what tells `3 + 4` from `3 * 4` under the loose key."""
    return _OPERATORS.sub("", question)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
