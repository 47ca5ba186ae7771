"""Units of measure that may follow a number: their dimension and their exact size.

Words that are not in the table (`apples`, `students`) count things and are ignored in comparisons; words that
are in it must agree: 10 cm is not 10 m, and 120 minutes are 2 hours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

_F = Fraction
_INCH = _F(254, 10000)
_POUND = _F(45359237, 100000000)

_TABLE: dict[str, tuple[str, int, Fraction]] = {}


def _add(dimension: str, factor: Fraction | int, names: str, power: int = 1) -> None:
    for name in names.split():
        _TABLE[name] = (dimension, power, _F(factor))


_add("length", _F(1, 1000), "mm millimeter millimetre")
_add("length", _F(1, 100), "cm centimeter centimetre")
_add("length", 1, "m meter metre")
_add("length", 1000, "km kilometer kilometre")
_add("length", _F(1, 10**9), "nm nanometer nanometre")
_add("length", _INCH, "in inch inche")
_add("length", 12 * _INCH, "ft foot feet")
_add("length", 36 * _INCH, "yd yard")
_add("length", 63360 * _INCH, "mi mile")
_add("length", _F(1, 1000), "l liter litre", power=3)
_add("length", _F(1, 10**6), "ml milliliter millilitre cc", power=3)
_add("mass", _F(1, 10**6), "mg milligram")
_add("mass", _F(1, 1000), "g gram")
_add("mass", 1, "kg kilogram")
_add("mass", _POUND, "lb pound")
_add("mass", _POUND / 16, "oz ounce")
_add("time", _F(1, 1000), "ms millisecond")
_add("time", 1, "s sec second")
_add("time", 60, "min minute")
_add("time", 3600, "h hr hour")
_add("time", 86400, "day")
_add("time", 7 * 86400, "week")
_add("months", 1, "month")
_add("months", 12, "yr year")
_add("dollars", 1, "$ dollar usd buck")
_add("dollars", _F(1, 100), "cent ¢")
_add("euros", 1, "€ euro eur")
_add("sterling", 1, "£ gbp")
_add("rupees", 1, "₹ rs rupee inr")
_add("yen", 1, "¥ yen jpy")
_add("angle", 1, "° degree deg")
_add("angle-radian", 1, "rad radian")
_add("charge", 1, "c coulomb")
_add("force", 1, "n newton")
_add("energy", 1, "j joule")
_add("power", 1, "w watt")
_add("frequency", 1, "hz hertz")
_add("temperature-k", 1, "k kelvin")
_add("temperature-c", 1, "degc celsius")
_add("temperature-f", 1, "degf fahrenheit")

_SHORT_BARE_LIST = """
    cm mm km kg mg ml ft in yd lb oz min hr mph kmh kph rs usd sec
"""
_SHORT_BARE = frozenset(_SHORT_BARE_LIST.split())
"""Unit symbols that are read as units without `\\text{}` around them even when glued to the number."""

_WORD_JOIN = re.compile(r"\\text\{([^{}]*)\}|\\(?:cdot|times)|[{}~]")
_PIECE = re.compile(r"([A-Za-z$€£₹¥¢°]+)\.?(?:\^?(-?[123]))?")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of known dimension; `dimension` empty means words that only count things."""

    dimension: tuple[tuple[str, int], ...]
    factor: Fraction
    words: str


def is_bare_unit(word: str) -> bool:
    """Whether a word that is glued to a number, without `\\text{}`, is a unit rather than variables."""
    return word.lower() in _SHORT_BARE


def is_unit_word(word: str) -> bool:
    """Whether the table knows the word, in singular or plural."""
    return _lookup(word.lower()) is not None


@lru_cache(maxsize=4096)
def read_unit(text: str) -> Unit:
    """Read the words behind a number. Unknown words give an empty dimension, never an error."""
    words = _WORD_JOIN.sub(lambda match: f" {match.group(1) or ' '} ", text).lower()
    words = re.sub(r"\bkmh\b|\bkph\b", "km/hr", words.replace("mph", "mile/hr"))
    words = re.sub(r"\bper\b", "/", words)
    words = re.sub(r"\b(square|sq)\b\.?", "²", words)
    words = re.sub(r"\b(cubic|cu)\b\.?", "³", words)
    dimension: dict[str, int] = {}
    factor = Fraction(1)
    sign, pending = 1, 1
    last: tuple[str, int, Fraction] | None = None
    for piece in re.findall(r"[²³/]|[a-z$€£₹¥¢°]+\.?(?:\s*\^?\s*-?[123])?|\S", words):
        if piece == "/":
            sign = -1
        elif piece in "²³":
            pending = 2 if piece == "²" else 3
        elif piece.startswith(("squared", "cubed")) and last:
            extra = 1 if piece.startswith("squared") else 2
            dimension[last[0]] = dimension.get(last[0], 0) + sign * extra * last[1]
            factor *= last[2] ** (sign * extra)
        else:
            match = _PIECE.match(piece.replace(" ", ""))
            entry = _lookup(match.group(1)) if match else None
            if match is None or entry is None:
                return Unit((), Fraction(1), " ".join(words.split()))
            power = int(match.group(2) or 1) * pending * sign
            pending = 1
            last = entry
            dimension[entry[0]] = dimension.get(entry[0], 0) + power * entry[1]
            factor *= entry[2] ** power
    known = tuple(sorted((name, power) for name, power in dimension.items() if power))
    return Unit(known, factor, " ".join(words.split()))


def _lookup(word: str) -> tuple[str, int, Fraction] | None:
    word = word.rstrip(".")
    if word in _TABLE:
        return _TABLE[word]
    if len(word) > 2 and word.endswith("s"):
        return _TABLE.get(word[:-1])
    return None


def combine(value_a: Fraction, a: Unit | None, value_b: Fraction, b: Unit | None) -> bool:
    """Whether two quantities are equal. Units are compared only where both sides name a known one."""
    if a is None or b is None or not a.dimension or not b.dimension:
        return value_a == value_b
    return a.dimension == b.dimension and value_a * a.factor == value_b * b.factor
