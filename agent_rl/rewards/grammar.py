r"""Reads one mathematical expression, LaTeX or plain, into sympy. Used inside the worker only.

The whole text must be an expression: a token that is left over is an error, never ignored. Sizes are bounded
before sympy evaluates anything, so that power towers and factorials of factorials fail at once.
"""

from __future__ import annotations

import re
from typing import NoReturn

import sympy

from agent_rl.rewards.bounded import MAX_FACTORIAL, divide, factorial, power, rational
from agent_rl.rewards.shapes import TooLarge, Unreadable

MAX_TOKENS = 4000
MAX_NESTING = 60

_LEX = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][-+]?\d+(?![A-Za-z\d]))?|\.\d+)|(?P<command>\\[A-Za-z]+|\\.)"
    r"|(?P<word>[A-Za-z]+)|(?P<power>\*\*)|(?P<sign>.))",
    re.DOTALL,
)
_COMPUTED_COMPLEX = re.compile(r"[\d\s.+\-*/()]*(?:\dj|(?<=\d)\s*[-+*]\s*I|I\s*[-+*/]\s*(?=\d))[\d\s.+\-*/()]*$")
"""A number with an imaginary part as Python (`3+4j`) and sympy (`3 + 4*I`) print it."""
_NAMES = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
    "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "asin": sympy.asin, "acos": sympy.acos,
    "atan": sympy.atan, "arccot": sympy.acot, "sinh": sympy.sinh, "cosh": sympy.cosh, "tanh": sympy.tanh,
    "ln": sympy.log, "log": sympy.log, "exp": sympy.exp, "lg": sympy.log, "abs": sympy.Abs,
}  # fmt: skip
_INVERSES = {
    sympy.sin: sympy.asin, sympy.cos: sympy.acos, sympy.tan: sympy.atan, sympy.cot: sympy.acot,
}  # fmt: skip
_SEVERAL = {"gcd": sympy.gcd, "lcm": sympy.lcm, "max": sympy.Max, "min": sympy.Min}
_CONSTANTS = {"pi": sympy.pi, "infty": sympy.oo, "infinity": sympy.oo, "inf": sympy.oo, "oo": sympy.oo}
_GREEK_LIST = """
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi
    omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega ell hbar
"""
_GREEK = frozenset(_GREEK_LIST.split())
_KNOWN = frozenset([*_NAMES, *_SEVERAL, *_CONSTANTS])
_ACCENTS = frozenset(["dot", "ddot", "hat", "bar", "vec", "tilde", "overline", "widehat", "overrightarrow", "mathcal"])
_CLOSING = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
_STOP = frozenset(["+", "-", ")", "]", "}", "\\}", ",", "\\rfloor", "\\rceil", "=", "&", ""])
_AFTER_GROUP = frozenset([")", "]", "}", "!", "\\pi"])
_TIMES = frozenset(["*", "\\cdot", "\\times"])


class Unsupported(Unreadable):
    """Mathematics outside this grammar, such as a sum or an integral."""


def parse_expression(text: str) -> sympy.Expr:
    """The sympy expression of a text in normal form.

    Raises:
        Unreadable: the text, as a whole, is no expression.
        Unsupported: it uses a construct that only a larger grammar knows.
        TooLarge: it would evaluate to something beyond the bounds.
    """
    if _COMPUTED_COMPLEX.match(text):
        text = text.replace("j", "i").replace("I", "i")
    parser = _Parser(_tokens(text))
    value = parser.sum()
    if parser.peek():
        parser.fail(f"{parser.peek()!r} is left over")
    return value


def _tokens(text: str) -> list[tuple[str, bool]]:
    """Tokens with a flag that says whether white space stood before them."""
    tokens: list[tuple[str, bool]] = []
    for match in _LEX.finditer(text):
        kind, token = match.lastgroup, match.group().strip()
        if not token:
            continue
        gap = match.group()[:1].isspace()
        if kind == "word" and len(token) > 1 and not (token in _KNOWN or (len(token) > 2 and token in _GREEK)):
            tokens.extend(_split_word(token, gap))
        elif kind == "word" and token in ("I", "E") and tokens and tokens[-1][0] == "*":
            tokens.append((token.lower(), gap))  # as sympy prints the imaginary unit and Euler's number
        elif kind == "power":
            tokens.append(("^", gap))
        elif kind == "word" and (token in _CONSTANTS or (len(token) > 2 and token in _GREEK)):
            tokens.append(("\\" + token, gap))
        else:
            tokens.append((token, gap))
        if len(tokens) > MAX_TOKENS:
            raise TooLarge(f"more than {MAX_TOKENS} symbols")
    return tokens


def _split_word(word: str, gap: bool) -> list[tuple[str, bool]]:
    if word in ("sqrt", "binom", "binomial", "factorial", "floor", "ceil", "ceiling"):
        return [(word, gap)]
    for name in ("sqrt", *_NAMES):
        if word.startswith(name) and len(word) == len(name) + 1:
            return [(name, gap), (word[-1], False)]
    if word.endswith(("sqrt", "pi")) and len(word) <= 6:
        name = "sqrt" if word.endswith("sqrt") else "\\pi"
        return [*((ch, gap) for ch in word[: -len(name.strip("\\"))]), (name, False)]
    return [(ch, gap and i == 0) for i, ch in enumerate(word)]


class _Parser:
    """Recursive descent; every method consumes what it returns the value of."""

    def __init__(self, tokens: list[tuple[str, bool]]):
        self.tokens = tokens
        self.at = 0
        self.nesting = 0
        self.bars = 0

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][0] if self.at + ahead < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if not token:
            self.fail("it ends too early")
        if expected is not None and token != expected:
            self.fail(f"{expected!r} is expected, not {token!r}")
        self.at += 1
        return token

    def fail(self, message: str) -> NoReturn:
        before = "".join(token for token, _ in self.tokens[max(0, self.at - 8) : self.at])
        raise Unreadable(f"{message} after {before!r}")

    def sum(self) -> sympy.Expr:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise TooLarge(f"nested more than {MAX_NESTING} deep")
        terms = [self.signed_product()]
        while self.peek() in ("+", "-"):
            terms.append(self.signed_product())
        self.nesting -= 1
        return sympy.Add(*terms)

    def signed_product(self) -> sympy.Expr:
        sign = 1
        while self.peek() in ("+", "-"):
            sign = -sign if self.take() == "-" else sign
        value = self.product()
        return -value if sign < 0 else value

    def product(self) -> sympy.Expr:
        value = self.factor(first=True)
        while True:
            token = self.peek()
            if token in _TIMES:
                self.take()
                value = value * self.signed_factor()
            elif token == "/":
                self.take()
                value = divide(value, self.signed_factor())
            elif token in _STOP or (token == "|" and self.bars):
                return value
            else:
                value = value * self.factor()

    def signed_factor(self) -> sympy.Expr:
        if self.peek() in ("+", "-"):
            return -self.signed_factor() if self.take() == "-" else self.signed_factor()
        return self.factor(first=True)

    def factor(self, first: bool = False) -> sympy.Expr:
        """A power with its factorials. A number right behind another factor is not a product."""
        if not first and self.peek()[:1].isdigit() and self.peek(-1) not in _AFTER_GROUP:
            self.fail(f"{self.peek()!r} cannot stand beside what comes before it")
        return self.powers(self.primary())

    def powers(self, base: sympy.Expr) -> sympy.Expr:
        while True:
            token = self.peek()
            if token == "!":
                self.take()
                if self.peek() == "!":
                    self.take()
                    base = factorial(base, double=True)
                else:
                    base = factorial(base)
            elif token == "^":
                self.take()
                base = power(base, self.exponent())
            elif token == "°":
                self.take()
                base = base * sympy.pi / 180
            elif token == "%":
                self.take()
                base = base / 100
            else:
                return base

    def exponent(self) -> sympy.Expr:
        if self.peek() in ("+", "-"):
            sign = self.take()
            inner = self.exponent()
            return -inner if sign == "-" else inner
        value = self.primary(mixed=False)
        while self.peek() in ("^", "!"):
            if self.take() == "^":
                return power(value, self.exponent())
            value = factorial(value)
        return value

    def primary(self, mixed: bool = True) -> sympy.Expr:
        token = self.take()
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            return self.number(token, mixed)
        if len(token) == 1 and token.isalpha():
            return self.symbol(token)
        if token in ("(", "[", "{"):
            value = self.sum()
            self.take(_CLOSING[token])
            return value
        if token == "|":
            self.bars += 1
            value = sympy.Abs(self.sum())
            self.bars -= 1
            self.take("|")
            return value
        return self.command(token)

    def number(self, token: str, mixed: bool) -> sympy.Expr:
        if self.peek() == "\\overline" and "." in token:
            return self.repeating(token)
        value = rational(token)
        if not (mixed and token.isdigit()):
            return value
        start = self.at
        if self.peek() == "\\frac":
            self.take()
            top, bottom = self.argument(), self.argument()
            if top.is_Integer and bottom.is_Integer and 0 < top < bottom:
                return value + top / bottom
        elif self.peek().isdigit() and self.peek(1) == "/" and self.peek(2).isdigit():
            top, bottom = sympy.Integer(int(self.peek())), sympy.Integer(int(self.peek(2)))
            if 0 < top < bottom:
                self.at += 3
                return value + top / bottom
        self.at = start
        return value

    def repeating(self, token: str) -> sympy.Expr:
        self.take("\\overline")
        self.take("{")
        cycle = self.take()
        self.take("}")
        if not cycle.isdigit():
            self.fail("a repeating decimal needs digits under the bar")
        places = len(token.split(".")[1])
        tail = sympy.Rational(int(cycle), 10**places * (10 ** len(cycle) - 1))
        return rational(token) + tail

    def symbol(self, name: str) -> sympy.Expr:
        if self.peek() == "_":
            return sympy.Symbol(name + "_" + self.subscript())
        if name == "e":
            return sympy.E
        return sympy.I if name == "i" else sympy.Symbol(name)

    def subscript(self) -> str:
        self.take("_")
        if self.peek() != "{":
            return self.take()
        self.take("{")
        return "".join(self.group())

    def group(self) -> list[str]:
        """The tokens up to the brace that closes a group, nested ones included."""
        parts: list[str] = []
        level = 1
        while True:
            token = self.take()
            level += (token == "{") - (token == "}")
            if level == 0:
                return parts
            parts.append(token)

    def argument(self) -> sympy.Expr:
        """An argument of a LaTeX command: a group, or a single digit, letter or command."""
        token, gap = self.tokens[self.at] if self.at < len(self.tokens) else ("", False)
        if len(token) > 1 and token.isdigit():
            self.tokens[self.at : self.at + 1] = [(token[0], gap), (token[1:], False)]
            return sympy.Integer(int(self.take()))
        return self.primary(mixed=False)

    def command(self, token: str) -> sympy.Expr:
        name = token.lstrip("\\")
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name in _GREEK:
            return self.symbol(name)
        if name in _ACCENTS:
            return self.accented(name)
        if name == "frac":
            top = self.argument()
            return divide(top, self.argument())
        if name == "sqrt":
            return self.root()
        if name in ("binom", "binomial"):
            return self.binomial(name == "binomial")
        if name == "factorial":
            return factorial(self.parenthesised())
        if name in ("floor", "lfloor", "ceil", "ceiling", "lceil"):
            value = self.parenthesised() if name[0] != "l" else self.sum()
            if name[0] == "l":
                self.take(_CLOSING[token])
            return sympy.floor(value) if "floor" in name else sympy.ceiling(value)
        if name in _SEVERAL:
            return _SEVERAL[name](*self.arguments())
        if name in _NAMES:
            return self.function(name)
        if token == "\\text":
            self.fail("words stand within the mathematics")
        if token.startswith("\\") and name.isalpha():
            raise Unsupported(f"{token} is not in the grammar")
        self.at -= 1
        self.fail(f"{token!r} is not expected")

    def accented(self, name: str) -> sympy.Expr:
        """A letter or name under an accent is a symbol of its own."""
        letters = self.group() if self.peek() == "{" and self.take() else [self.take()]
        if not all(token.isalpha() or token.lstrip("\\") in _GREEK for token in letters):
            self.fail(f"an accent {name!r} over something that is no name")
        return self.symbol(f"{name}_{''.join(letters)}")

    def root(self) -> sympy.Expr:
        degree = sympy.Integer(2)
        if self.peek() == "[":
            self.take()
            degree = self.sum()
            self.take("]")
        return power(self.argument(), divide(sympy.Integer(1), degree))

    def parenthesised(self) -> sympy.Expr:
        self.take("(")
        value = self.sum()
        self.take(")")
        return value

    def arguments(self) -> list[sympy.Expr]:
        self.take("(")
        values = [self.sum()]
        while self.peek() == ",":
            self.take()
            values.append(self.sum())
        self.take(")")
        return values

    def binomial(self, plain: bool) -> sympy.Expr:
        if plain:
            values = self.arguments()
            if len(values) != 2:
                self.fail("binomial needs two arguments")
            n, k = values
        else:
            n, k = self.argument(), self.argument()
        if n.is_Integer and (abs(n) > MAX_FACTORIAL or not k.is_Integer):
            raise TooLarge("a binomial beyond the bounds")
        return sympy.binomial(n, k)

    def function(self, name: str) -> sympy.Expr:
        function = _NAMES[name]
        base: sympy.Expr | None = sympy.Integer(10) if name == "lg" else None
        exponent: sympy.Expr | None = None
        while self.peek() in ("^", "_"):
            if self.take() == "^":
                exponent = self.exponent()
            elif name == "log":
                base = self.argument()
            else:
                self.fail("a subscript on a function")
        inner = self.function_argument()
        if exponent == -1 and function in _INVERSES:
            function, exponent = _INVERSES[function], None
        if function is sympy.exp:
            value = power(sympy.E, inner)
        elif function is sympy.log and base is not None:
            value = sympy.log(inner) / sympy.log(base)
        else:
            value = function(inner)
        return value if exponent is None else power(value, exponent)

    def function_argument(self) -> sympy.Expr:
        if self.peek() in ("(", "[", "{"):
            return self.powers(self.primary()) if self.peek() == "{" else self.primary()
        sign = -1 if self.peek() == "-" else 1
        if sign < 0:
            self.take()
        value = self.factor(first=True)
        while True:
            token = self.peek()
            if token in _STOP or token in _TIMES or token in ("/", "|", "(") or token.lstrip("\\") in _NAMES:
                return sign * value
            value = value * self.factor()
