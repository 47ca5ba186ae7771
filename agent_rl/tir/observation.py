"""What the model is shown of a program's run, and how it becomes token ids that cannot be forged."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

from agent_rl.types import ToolOutcome

NO_OUTPUT = "(no output)"
STDERR_MARK = "stderr:"


def observation_text(outcome: ToolOutcome) -> str:
    """The observation's body: the status unless ok, then stdout, then stderr under a mark.

    Whether a run succeeded is told by its status alone: a warning on stderr is shown beside the output and
    makes nothing a failure.
    """
    parts = [] if outcome.ok else [f"status: {outcome.status}"]
    if outcome.stdout.strip():
        parts.append(outcome.stdout.rstrip("\n"))
    if outcome.stderr.strip():
        parts += [STDERR_MARK, outcome.stderr.rstrip("\n")]
    return well_formed("\n".join(parts or [NO_OUTPUT]))


def well_formed(text: str) -> str:
    """The text with lone surrogates, which no tokenizer takes, replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def text_encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """An encoder for text that is not ours (questions, tool output): control tokens stay plain text.

    Tokenizers turn the characters of an added token (`<|im_end|>`, `<tool_call>`) into that token wherever
    they occur, so that a program could print its way out of its turn. Here such characters are encoded in
    two parts, which no added token matches.
    """
    added = {str(token) for token in tokenizer.get_added_vocab()}
    control = sorted((t for t in added if len(t) > 1 and not t.isspace()), key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(t) for t in control)) if control else None
    forbidden = {tokenizer.convert_tokens_to_ids(t) for t in control}

    def pieces(text: str) -> list[str]:
        if pattern is None:
            return [text]
        cuts = [0, *(match.start() + 1 for match in pattern.finditer(text)), len(text)]
        return [text[a:b] for a, b in itertools.pairwise(cuts) if a < b]

    def encode(text: str) -> list[int]:
        ids: list[int] = []
        for piece in pieces(well_formed(text)):
            part = tokenizer.encode(piece, add_special_tokens=False)
            if forbidden.isdisjoint(part):
                ids += part
            else:  # what is left after a cut can hold another added token: cut it finer
                ids += [i for character in piece for i in tokenizer.encode(character, add_special_tokens=False)]
        return ids

    return encode


def cut_in_the_middle(
    text: str, max_tokens: int, encode: Callable[[str], list[int]], *, longest_token: int = 32
) -> list[int]:
    """Token ids of the text, at most `max_tokens`: head and tail kept, a mark where something is missing."""
    reach = max_tokens * longest_token
    if len(text) <= 2 * reach:
        ids = encode(text)
        if len(ids) <= max_tokens:
            return ids
        head_ids = tail_ids = ids
    else:  # never encode a megabyte to keep 256 tokens
        head_ids, tail_ids = encode(text[:reach]), encode(text[-reach:])
    mark = encode("\n[... cut ...]\n")
    room = max(max_tokens - len(mark), 0)
    head, tail = room - room // 2, room // 2
    return [*head_ids[:head], *mark[: max_tokens - room], *(tail_ids[-tail:] if tail else [])]
