r"""Exact numbers: integers, decimals, fractions, mixed numbers, percents, money, repeating decimals, bases.

Read in one pass of bounded regular expressions into :class:`fractions.Fraction`; no floating point anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from agent_rl.rewards.units import Unit, combine, is_bare_unit, is_unit_word, read_unit

MAX_CHARS = 1000
"""Longer texts are not read here (they go to a worker, whose limits bound them)."""
MAX_EXPONENT = 3000
"""Powers of ten beyond this are left to the worker."""

_D = r"\d+(?:\.\d*)?|\.\d+"
_PLAIN = re.compile(rf"({_D})$")
_THOUSANDS = re.compile(r"(\d{1,3}(?:,\d{3})+(?:\.\d+)?)$")
_SPACED = re.compile(r"(\d{1,3}(?: \d{3})+(?:\.\d+)?)$")
_SCIENTIFIC = re.compile(
    rf"({_D})\s*(?:[eE]|(?:\*|\\times|\\cdot)\s*10\s*(?:\^|\*\*))\s*(?:\{{\s*)?\(?([-+]?\d{{1,9}})\)?\s*\}}?$"
)
_POWER_OF_TEN = re.compile(r"10\s*(?:\^|\*\*)\s*(?:\{\s*)?([-+]?\d{1,9})\s*\}?$")
_SLASH = re.compile(rf"\(?\s*([-+]?(?:{_D}))\s*\)?\s*/\s*\(?\s*([-+]?(?:{_D}))\s*\)?$")
_BRACED = rf"\{{\s*([-+]?(?:{_D}|\d{{1,3}}(?:,\d{{3}})+))\s*\}}"
_FRAC = re.compile(rf"\\frac\s*{_BRACED}\s*{_BRACED}$")
_FRAC_SHORT = re.compile(r"\\frac\s*(?:\{\s*(\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))$")
_MIXED_FRAC = re.compile(r"(\d+)\s*\\frac\s*(?:\{\s*(\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))$")
_MIXED_SLASH = re.compile(r"(\d+)(?:\s+|\s*-\s*|\s+and\s+)(\d+)\s*/\s*(\d+)$")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{\s*(\d+)\s*\}$")
_BASE = re.compile(r"([0-9A-Za-z]+)(?:\.([0-9A-Za-z]+))?\s*_\s*(?:\{\s*(\d{1,2})\s*\}|(\d))$")
_TIMES = re.compile(rf"({_D})\s*(?:\\times|\*)\s*(\d+)$")
_SIGN = re.compile(r"([-+])\s*")
_CURRENCY = re.compile(r"([$€£₹¥])\s*")
_PERCENT = re.compile(r"\s*(?:%|\\text\{\s*(?:percent|pct)\s*\}|percent(?:age)?|pct)$", re.IGNORECASE)
_SCALE = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_UNIT = re.compile(
    r"(?:(?<=[\d})!%.\s$€])|(?=\\text))\s*((?:\\text\s*\{[^{}]*\}|[$€£₹¥¢°/]|\\cdot|(?<![A-Za-z\\])[A-Za-z]+\.?|\s"
    r"|(?<=[A-Za-z}])\s*\^\s*(?:\{\s*-?[123]\s*\}|-?[123]))+)$"
)
_NUMBER_WORDS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen twenty
"""
_WORDS = {word: value for value, word in enumerate(_NUMBER_WORDS.split())}


@dataclass(frozen=True, slots=True)
class Number:
    """One exact number as it was written."""

    value: Fraction
    places: int | None = None
    """Decimal places of a literal with a decimal point; None for anything else."""
    percent: bool = False
    """Whether a percent sign followed; `value` is the number before the sign."""
    unit: Unit | None = None
    base: int | None = None
    """Base of a literal such as `52_8`; `value` is then the value, `digits` the spelling."""
    digits: str = ""


def split_unit(text: str) -> tuple[str, Unit | None, bool]:
    """Take currency, percent and words off a scalar: the rest, the unit, and whether a percent sign was there."""
    unit: Unit | None = None
    sign = ""
    body = text.strip()
    if match := re.match(r"([-+]?)\s*([$€£₹¥])\s*(?=[\d.(\\-])", body):
        sign, unit = match.group(1), read_unit(match.group(2))
        body = sign + body[match.end() :]
    if match := _PERCENT.search(body):
        return body[: match.start()].strip(), unit, True
    match = _UNIT.search(body) if not body[-1:].isdigit() or body[-2:-1] == "^" else None
    if match is None or match.start(1) == 0:
        return body, unit, False
    rest, words = body[: match.start(1)].rstrip(), match.group(1).strip()
    glued = not body[match.start(1) - 1].isspace()
    if re.search(r"\\(?:angle|triangle|overline|widehat|mathcal)$", rest):
        return body, unit, False  # letters that name a figure
    if words == "°" and re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", rest):
        return body, unit, False  # the degrees belong to the function's argument
    if not rest or not words or rest[-1] in "+-*/=^_(,<>" or not _is_unit_text(words, glued):
        return body, unit, False
    if re.fullmatch(r"[A-Za-z](?:\s*\^\s*\{?-?\d\}?)?", words) and re.search(r"(?<![A-Za-z\\])[A-Za-z]", rest):
        return body, unit, False
    head, _, tail = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", words).strip().lower().partition(" ")
    if head in _SCALE:
        if tail.strip() and not unit:
            unit = read_unit(tail)
        return f"{rest}\\times{_SCALE[head]}", unit, False
    spelled = read_unit(words)
    return rest, unit if unit is not None and not spelled.dimension else spelled, False


def _is_unit_text(words: str, glued: bool) -> bool:
    """Whether trailing words are a unit rather than variables such as `x` or `xy` or another answer."""
    plain = re.sub(r"\\text\s*\{[^{}]*\}", " ", words)
    within = " ".join(re.findall(r"\\text\s*\{([^{}]*)\}", words))
    if (
        re.search(r"\b(?:or|and|not|if|either|unless|except)\b|\d", within, re.IGNORECASE)
        and not read_unit(words).dimension
    ):
        return False  # `5 \text{ or any number}` is more than 5
    if "\\text" not in words and not re.search(r"[A-Za-z°¢$€£₹¥]", words):
        return False
    for word in re.findall(r"[A-Za-z]+", plain.replace("\\cdot", " ")):
        if word.lower() in ("and", "or", "not", "pi", "sqrt", "oo", "inf", "infinity", "mod"):
            return False
        known = is_unit_word(word)
        if glued and not (is_bare_unit(word) or (known and len(word) > 2)):
            return False
        if not glued and not (len(word) >= 3 or is_bare_unit(word) or (known and len(plain.split()) == 1)):
            if word.lower() in ("of", "in", "a", "per", "sq", "cu", "m", "s", "h") and len(words.split()) > 1:
                continue
            return False
    return True


def read_number(text: str) -> Number | None:
    """Read a normal form as one exact number, with its unit; None if it is anything else."""
    if not text or len(text) > MAX_CHARS:
        return None
    if text.lower() in _WORDS:
        return Number(Fraction(_WORDS[text.lower()]))
    body, unit, percent = split_unit(text)
    number = _signed(body)
    if number is None:
        return None
    return replace(number, unit=unit, percent=percent)


def _signed(body: str) -> Number | None:
    negative = False
    while match := _SIGN.match(body):
        negative ^= match.group(1) == "-"
        body = body[match.end() :]
        if body[:1] in "+-":
            return None
    body = body.strip()
    if body.startswith("(") and body.endswith(")") and body.count("(") == 1 and "," not in body:
        inner = _signed(body[1:-1].strip())
        number = inner
    elif body.startswith("{") and body.endswith("}") and body.count("{") == 1:
        number = _signed(body[1:-1].strip())
    else:
        number = _unsigned(body)
    return replace(number, value=-number.value) if negative and number is not None else number


def _unsigned(body: str) -> Number | None:
    if match := _PLAIN.match(body):
        literal = match.group(1)
        _, dot, decimals = literal.partition(".")
        if literal == ".":
            return None
        return Number(Fraction(literal.rstrip(".") if not decimals else literal), len(decimals) if dot else None)
    if match := _THOUSANDS.match(body) or _SPACED.match(body):
        literal = match.group(1).replace(",", "").replace(" ", "")
        _, dot, decimals = literal.partition(".")
        return Number(Fraction(literal), len(decimals) if dot else None)
    if match := _SCIENTIFIC.match(body):
        exponent = int(match.group(2))
        if abs(exponent) > MAX_EXPONENT or match.group(1) == ".":
            return None
        return Number(Fraction(match.group(1).rstrip(".")) * Fraction(10) ** exponent)
    if (match := _TIMES.match(body)) and match.group(1) != ".":
        return Number(Fraction(match.group(1).rstrip(".")) * int(match.group(2)))
    if (match := _POWER_OF_TEN.match(body)) and abs(int(match.group(1))) <= MAX_EXPONENT:
        return Number(Fraction(10) ** int(match.group(1)))
    for pattern in (_SLASH, _FRAC, _FRAC_SHORT):
        if match := pattern.match(body):
            top, bottom = (Fraction(part.replace(",", "").rstrip(".")) for part in match.groups() if part)
            return Number(top / bottom) if bottom else None
    if match := _MIXED_FRAC.match(body) or _MIXED_SLASH.match(body):
        whole, top, bottom = (int(part) for part in match.groups() if part)
        return Number(whole + Fraction(top, bottom)) if 0 < top < bottom else None
    if match := _REPEATING.match(body):
        whole, fixed, cycle = match.groups()
        head = Fraction(int((whole or "0") + fixed), 10 ** len(fixed))
        return Number(head + Fraction(int(cycle), 10 ** len(fixed) * (10 ** len(cycle) - 1)))
    if match := _BASE.match(body):
        whole, decimals = match.group(1).upper(), (match.group(2) or "").upper()
        base = int(match.group(3) or match.group(4))
        try:
            value = Fraction(int(whole + decimals, base), base ** len(decimals))
            digits = (whole.lstrip("0") or "0") + ("." + decimals if decimals else "")
            return Number(value, base=base, digits=digits)
        except ValueError:
            return None
    return None


def equal_numbers(a: Number, b: Number, *, percent_as_number: bool = True, decimal_digits: int = 6) -> bool:
    """Whether two numbers are equal, symmetrically. Integers and fractions: exactly, always.

    Percents equal their value and, with `percent_as_number`, the number before the sign where that is above 1.
    A decimal equals a finer value that rounds to it, if it has at least `decimal_digits` places and significant
    digits. Literals in a base equal the same digits without a base, never other digits.
    """
    if a.base is not None or b.base is not None:
        return _equal_in_base(a, b)
    if a.percent != b.percent:
        bare, signed = (b, a) if a.percent else (a, b)
        scaled = replace(
            signed,
            value=signed.value / 100,
            places=None if signed.places is None else signed.places + 2,
            percent=False,
        )
        if _equal_values(bare, scaled, decimal_digits):
            return True
        return percent_as_number and abs(signed.value) > 1 and _equal_values(bare, signed, decimal_digits)
    return _equal_values(a, b, decimal_digits)


def _equal_in_base(a: Number, b: Number) -> bool:
    if a.base is not None and b.base is not None:
        return a.base == b.base and a.value == b.value
    literal, plain = (a, b) if a.base is not None else (b, a)
    written, _, decimals = literal.digits.partition(".")
    if not (written + decimals).isdigit() or (literal.value < 0) != (plain.value < 0):
        return False
    return Fraction(int(written + decimals), 10 ** len(decimals)) == abs(plain.value)


def _equal_values(a: Number, b: Number, decimal_digits: int) -> bool:
    if combine(a.value, a.unit, b.value, b.unit):
        return True
    if a.unit and b.unit and a.unit.dimension and b.unit.dimension and a.unit != b.unit:
        return False
    return rounds_to(a, b.value, decimal_digits) or rounds_to(b, a.value, decimal_digits)


def rounds_to(literal: Number, value: Fraction, decimal_digits: int) -> bool:
    """Whether `literal` is a decimal of enough digits that `value` rounds to (half either way)."""
    if literal.places is None or literal.places < decimal_digits:
        return False
    step = Fraction(1, 10**literal.places)
    significant = len(str(abs(literal.value / step).numerator))
    return significant >= decimal_digits and abs(literal.value - value) <= step / 2
