"""Question text: well-known instruction sentences taken off, and keys under which questions count as equal."""

from __future__ import annotations

import hashlib
import re

TEST_PERCENT = 10
"""Share of generated questions that belongs to the test split."""

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
_PUNCTUATION = re.compile(r"(?<!\d)[.,]|[.,](?!\d)")
_UNSIGNED = {c: None for c in range(128) if not (chr(c).isalnum() or chr(c) in "-+*/^<>=!%|.,")}
_LONGEST_TRAILER = 200


def strip_instructions(question: str) -> str:
    """The question without the instruction that several data sets glue to it (LLMEval, verl, DAPO).

    Instructions belong to the prompt format; left in, they ask for two answer forms at once and hide that two
    questions are the same one.
    """
    start = _LEADING.sub("", question)
    cut = max(0, len(start) - _LONGEST_TRAILER)  # the trailer is short, questions are not
    tail = start[cut:]
    if "\\boxed{}" in tail or "nswer:" in tail:
        tail = _TRAILING.sub("", tail)
    stripped = (start[:cut] + tail).strip()
    return stripped or question


def signed_key(question: str) -> bytes:
    """Equal for questions with the same letters, digits, arithmetic signs and decimal marks, in lower case.

    White space, brackets, TeX spacing and punctuation do not count; `3 + 4` and `3 * 4` stay apart. For deduplication.
    """
    return _digest(_PUNCTUATION.sub("", question.lower()).translate(_UNSIGNED))


def loose_key(question: str) -> bytes:
    """Equal for questions with the same letters and digits, in lower case: the usual comparison between data sets,
    which also finds look-alikes such as `x^4 - 1` and `x^4 + 1`."""
    return _digest("".join(c for c in question.lower() if c.isalnum()))


def is_test_question(question: str) -> bool:
    """Whether a generated question belongs to the test split: decided by a hash of its text alone."""
    return int.from_bytes(hashlib.sha256(question.encode()).digest()[-4:], "big") % 100 < TEST_PERCENT


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
