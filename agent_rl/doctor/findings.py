"""What a check says: a sentence, how bad it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    """As it should be, or harmless; said so that it is known."""
    WARNING = "warning"
    """The run will work, and something about it deserves a look."""
    FAULT = "fault"
    """The run cannot work, or would not do what it is meant to do."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence of the doctor. `remedy` says what to do, and is empty where nothing is to be done."""

    check: str
    level: Level
    sentence: str
    remedy: str = ""


def ok(check: str, sentence: str) -> Finding:
    """Nothing is wrong here."""
    return Finding(check, Level.OK, sentence)


def warning(check: str, sentence: str, remedy: str) -> Finding:
    """Works, and deserves a look."""
    return Finding(check, Level.WARNING, sentence, remedy)


def fault(check: str, sentence: str, remedy: str = "") -> Finding:
    """Does not work, or not as meant. The remedy may be left out where the sentence holds it."""
    return Finding(check, Level.FAULT, sentence, remedy)
