r"""Turns an answer as models and data sets write it into one plain LaTeX-like spelling. Pure and linear.

The value is never changed: only markup, spacing, synonyms of commands and Unicode signs go. Everything that
needs a decision (is `1,234` a number or a pair?) is left to :mod:`agent_rl.rewards.structure`.
"""

from __future__ import annotations

import re
import unicodedata

_VULGAR = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5",
           "⅘": "4/5", "⅙": "1/6", "⅚": "5/6", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8"}  # fmt: skip
_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUBSCRIPT = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_GREEK = {"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "θ": "theta", "λ": "lambda",
          "μ": "mu", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "ω": "omega", "Δ": "Delta",
          "Ω": "Omega", "Σ": "Sigma", "ϕ": "phi"}  # fmt: skip
_SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ",
    "∙": r"\cdot ", "÷": "/", "∕": "/", "⁄": "/", "∞": r"\infty ", "√": r"\sqrt ", "≤": r"\le ", "≥": r"\ge ",
    "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
    "±": r"\pm ", "∓": r"\mp ", "≈": r"\approx ", "º": "°", "⟨": r"\langle ", "⟩": r"\rangle ", "∖": r"\setminus ",
    "“": '"', "”": '"', "‘": "'", "’": "'", "′": "'", "ℝ": r"\mathbb{R}", "\u200b": "", "\ufeff": "",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "∨": r"\lor ", "∧": r"\land ",
}  # fmt: skip
_UNICODE = str.maketrans(
    {**_SIGNS, **{k: f" {v} " for k, v in _VULGAR.items()}, **{k: f"\\{v} " for k, v in _GREEK.items()}}
)

_SIZE = re.compile(
    r"\\(?:left|right|m?left|m?right|bigl?|bigr?|Bigl?|Bigr?|biggl?|biggr?|Biggl?|Biggr?)(?![A-Za-z])\s*\.?"
)
_STYLE = re.compile(r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it|mathstrut)(?![A-Za-z])")
_SPACE = re.compile(r"(?<!\\)\\[,;:! ]|\\(?:quad|qquad|enspace|thinspace|hspace\*?\{[^{}]*\})(?![A-Za-z])|~|&nbsp;")
_DIGIT_GAP = re.compile(r"(?<=\d)(?:,?\\[,!;:]|\{,\})\s*(?=\d{3}(?!\d))")
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|sf|sc|tt)?|mbox|hbox|mathrm|mathbf|mathit|mathsf|mathtt|mathnormal"
    r"|operatorname\*?|bold|boldsymbol|bm|emph|underline|color\{[^{}]*\})\s*\{([^{}]*)\}"
)
_OLD_STYLE = re.compile(r"\{\\(?:rm|bf|it|sf|tt)\s+([^{}]*)\}")
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_SYNONYMS = {
    "leq": "le", "geq": "ge", "leqslant": "le", "geqslant": "ge", "neq": "ne", "lt": "<", "gt": ">", "ast": "*",
    "lbrace": "{", "rbrace": "}", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")", "vert": "|",
    "lvert": "|", "rvert": "|", "mid": "|", "varnothing": "emptyset", "dots": "ldots", "cdots": "ldots",
    "degree": "°", "percent": "%", "colon": ":", "dbinom": "binom", "tbinom": "binom", "vee": "lor",
    "wedge": "land", "backslash": "setminus", "div": "/", "varphi": "phi", "varepsilon": "epsilon",
    "infin": "infty", "bullet": "cdot", "imath": "i", "euro": "€", "pounds": "£", "cent": "¢",
}  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]+)(\s*)")
_DEGREE = re.compile(r"\^\s*(?:\{\s*(?:\\circ|°)\s*\}|\\circ(?![A-Za-z]))")
_CHOOSE = re.compile(r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}")
_TEMPERATURE = re.compile(r"°\s*([CF])(?![A-Za-z])")
_FUNCTIONS_LIST = """
    sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp gcd lcm
"""
_FUNCTIONS = frozenset(_FUNCTIONS_LIST.split())
_SUPERS = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_SUBS = re.compile(r"[₀₁₂₃₄₅₆₇₈₉]+")
_ORDINAL = re.compile(
    r"(?<=\d)\s*(?:\^\s*)?(?:\\text\{\s*(?:th|st|nd|rd)\s*\}|\{\s*\\text\{(?:th|st|nd|rd)\}\s*\}|(?:st|nd|rd|th)(?![A-Za-z]))\s*$"
)


def _text(match: re.Match[str]) -> str:
    content = match.group(1)
    bare = content.strip()
    if len(bare) == 1 or bare.isdigit():
        return f" {bare} " if bare.isalpha() else bare
    if bare in _FUNCTIONS:
        return f"\\{bare} "
    if re.fullmatch(r"[-+]?[\d.,/]+%?|[0-9A-F]*\d[0-9A-F]*", bare):
        return bare
    return f"\\text{{{bare}}}" if bare else " "


def _command(match: re.Match[str]) -> str:
    name, gap = match.groups()
    target = _SYNONYMS.get(name)
    if target is None:
        return match.group(0) if not gap else f"\\{name} "
    if target in "{}":
        return f"\\{target}"
    return target if not target.isalpha() else f"\\{target} " if len(target) > 1 else f" {target} "


def _unwrap_boxes(text: str) -> str:
    """Drop box commands and their own braces; the braces of the content stay."""
    out, position = [], 0
    closers: list[bool] = []
    for match in re.finditer(r"\\(?:boxed|fbox)(?![A-Za-z])\s*\{?|\\.|[{}]", text):
        symbol = match.group()
        out.append(text[position : match.start()])
        position = match.end()
        if symbol.startswith(("\\boxed", "\\fbox")):
            if symbol.endswith("{"):
                closers.append(False)
        elif symbol == "{":
            closers.append(True)
            out.append(symbol)
        elif symbol == "}":
            if not closers or closers.pop():
                out.append(symbol)
        else:
            out.append(symbol)
    out.append(text[position:])
    return "".join(out)


def normalise(text: str) -> str:
    """One spelling of an answer. Total: any string gives a string; equal spellings mean equal answers."""
    text = _SUPERS.sub(lambda m: "^{" + m.group().translate(_SUPERSCRIPT) + "}", text)
    text = _SUBS.sub(lambda m: "_{" + m.group().translate(_SUBSCRIPT) + "}", text)
    text = unicodedata.normalize("NFKC", text.translate(_UNICODE)) if not text.isascii() else text
    if "\\boxed" in text or "\\fbox" in text:
        text = _unwrap_boxes(text)
    text = _strip_delimiters(text)
    if "\\" in text:
        text = _DIGIT_GAP.sub("", text)
        text = _SIZE.sub("", text)
        text = _OLD_STYLE.sub(r"\\text{\1}", text)
        text = _STYLE.sub(" ", text)
        text = text.replace("\\\\%", "%").replace("\\%", "%").replace("\\#", "#").replace("\\&", "and")
        text = text.replace("\\$", "$")
        text = _SPACE.sub(" ", text)
        for _ in range(3):
            changed = _TEXT.sub(_text, text)
            if changed == text:
                break
            text = changed
        text = _FRACTION.sub(r"\\frac", text)
        text = _DEGREE.sub("°", text)
        text = _CHOOSE.sub(r"\\binom{\1}{\2}", text)
        text = _COMMAND.sub(_command, text)
    else:
        text = _DIGIT_GAP.sub("", text)
    if text.count("$") >= 2 and not re.search(r"\$\s*[\d.]", text):
        text = text.replace("$", " ")  # delimiters in the middle; money stands before a digit
    if "°" in text:
        text = _TEMPERATURE.sub(r"\\text{deg\1}", text)
    text = _ORDINAL.sub("", " ".join(text.split()))
    return _strip_punctuation(text)


def _strip_delimiters(text: str) -> str:
    """Remove markdown and mathematics delimiters around the whole; a lone dollar sign is money."""
    for _ in range(4):
        before = text
        text = text.strip().strip("`").strip()
        for left, right in (("**", "**"), ("__", "__"), ("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
            inner = text[len(left) : len(text) - len(right)]
            if (
                len(text) > len(left) + len(right)
                and text.startswith(left)
                and text.endswith(right)
                and not text.endswith("\\" + right)
                and left not in inner.replace("\\$", "")
            ):
                text = inner.strip()
        if text.replace("\\$", "").count("$") == 2 and text.startswith("$") and not text.endswith("\\$"):
            # `$5$ apples`: the delimiters close before the unit.
            head, _, tail = text[1:].partition("$")
            if not re.match(r"\s*[\d.]", tail):
                text = f"{head} {tail}"
        if text.endswith((".", ",", ";", ":")) and not text.endswith("\\" + text[-1]):
            text = text[:-1]
        if text == before:
            break
    return text


def _strip_punctuation(text: str) -> str:
    while text and text[-1] in ".,;:" and not text.endswith("\\" + text[-1]):
        text = text[:-1].rstrip()
    return text


def squeeze(text: str) -> str:
    """The normal form without spaces and optional braces: equal strings are equal answers."""
    text = re.sub(r"\\text\{([^{}]*)\}", lambda m: "\\text{" + m.group(1).strip().lower() + "}", text)
    text = re.sub(r"(?<!\d) +| +(?!\d)", "", text)
    return re.sub(r"([_^])\{(\w)\}", r"\1\2", text)
