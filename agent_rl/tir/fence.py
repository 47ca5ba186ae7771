"""Fenced code in the model's text: an incremental scanner for stopping, and a parser for what was said.

One rule serves both. A block opens on a line of three backticks followed by an info string and closes on
the first later line that starts with three backticks. A block whose info string is empty, `py` or `python`
is executable; any other block (```` ```output ````, ```` ```text ````) is only text that is not prose. The
source is taken as it stands: nothing is dedented, stripped or rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass

FENCE = "```"
EXECUTABLE = frozenset({"", "py", "python"})
_LONGEST_OPENING = 64  # a longer first line is no opening of an executable block; bounds the scanner's memory


def _executable(line: str) -> bool:
    return len(line) <= _LONGEST_OPENING and line[len(FENCE) :].rstrip() in EXECUTABLE


class FenceScanner:
    """Feeds on text as it is generated and says when the first executable block has closed.

    The pieces may split the fence anywhere. `feed` is True from the piece that completes the three
    backticks of the closing line; what follows them in that piece does not matter.
    """

    __slots__ = ("_block", "_line")

    def __init__(self) -> None:
        self._line = ""
        self._block: bool | None = None  # None outside a block, else whether the block is executable

    def feed(self, piece: str) -> bool:
        """Take the next piece of text; whether the first executable block is now closed."""
        *complete, self._line = (self._line + piece).split("\n")
        for line in complete:
            if not line.startswith(FENCE):
                continue
            if self._block is None:
                self._block = _executable(line)
            elif self._block:
                return True
            else:
                self._block = None
        if len(self._line) > _LONGEST_OPENING:
            self._line = self._line[: _LONGEST_OPENING + 1]
        return bool(self._block) and self._line.startswith(FENCE)


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What one turn of the model says.

    `code` is the body of the first complete executable block, None if there is none; `prose` is the text
    outside every block, up to the end of that block if there is one. The content of a block that never
    closes is neither.
    """

    code: str | None
    prose: str


def parse_turn(text: str) -> ParsedTurn:
    """Split a turn into code and prose by the rule of this module."""
    prose: list[str] = []
    body: list[str] = []
    block: bool | None = None
    for line in text.split("\n"):
        if not line.startswith(FENCE):
            (prose if block is None else body).append(line)
        elif block is None:
            block, body = _executable(line), []
        elif block:
            return ParsedTurn("\n".join(body), "\n".join(prose))
        else:
            block = None
    return ParsedTurn(None, "\n".join(prose))
