"""What each token id adds to the text, one id at a time.

A fence is looked for while tokens arrive, so that the text of one token must be known without decoding the
whole turn again. The piece of an id is what it adds behind an anchor token: `decode([anchor, id])` without
`decode([anchor])`. That keeps the leading space and the newline that decoders of the SentencePiece family
strip at the start of a text, and needs no knowledge of the vocabulary's form. An id that holds a part of a
UTF-8 character gives the replacement character.
"""

from __future__ import annotations

from typing import Any


class TokenPieces:
    """Text pieces of token ids, computed at first use and kept.

    Args:
        tokenizer: a Hugging Face tokenizer.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {}
        self._anchor = self._find_anchor()
        self._skip = len(self._decode([self._anchor]))

    def __getitem__(self, token: int) -> str:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._decode([self._anchor, token])[self._skip :]
            self._pieces[token] = piece
        return piece

    def _find_anchor(self) -> int:
        for text in ("a", "1", ".", "x"):
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            if ids and self._decode([ids[-1]]).strip() == text:
                return int(ids[-1])
        raise ValueError(f"{type(self._tokenizer).__name__} has no token for any of the texts 'a', '1', '.', 'x'")

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
