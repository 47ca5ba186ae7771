"""The text of single token ids."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import PreTrainedTokenizerFast

from agent_rl.engines.pieces import TokenPieces
from tests.engine_models import EOS, byte_tokenizer


def _sentencepiece_like() -> Any:
    """The tokenizer form of Llama 2: a meta symbol for spaces, byte fallback, a stripped first space."""
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    words = ["▁", "▁a", "a", "`", "``", "▁`", "1", "print", "▁print"]
    vocabulary = {piece: index for index, piece in enumerate(["<unk>", "<s>", "</s>", *bytes_, *words])}
    merges = [("▁", "a"), ("`", "`"), ("▁", "`")]
    backend = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


def _word_merges() -> Any:
    backend = Tokenizer(models.BPE())
    from tokenizers import pre_tokenizers

    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(["print the sum of the code ```python\n\n print(1)\n```\n"] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize("make", [byte_tokenizer, _word_merges, _sentencepiece_like])
@settings(deadline=None, max_examples=60)
@given(st.text(alphabet=" a1`\n\t:print", max_size=40))
def test_pieces_add_up_to_the_text(make: Any, text: str) -> None:
    tokenizer = make()
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = TokenPieces(tokenizer)
    joined = "".join(pieces[token] for token in ids)
    # Llama 2 puts a space before the first word, which its decoder strips again.
    assert joined in (text, " " + text)


def test_leading_spaces_and_newlines_are_kept() -> None:
    tokenizer = _sentencepiece_like()
    pieces = TokenPieces(tokenizer)
    ids = {piece: tokenizer.convert_tokens_to_ids(piece) for piece in ("▁a", "▁", "<0x0A>", "▁`", "``")}
    assert [pieces[token] for token in ids.values()] == [" a", " ", "\n", " `", "``"]


def test_a_part_of_a_character_is_a_replacement_character_and_a_control_token_is_its_name() -> None:
    tokenizer = byte_tokenizer()
    pieces = TokenPieces(tokenizer)
    part = tokenizer.encode("é", add_special_tokens=False)[0]
    assert pieces[part] == "\ufffd"
    assert pieces[EOS] == "<eos>"


def test_a_tokenizer_without_common_characters_is_refused() -> None:
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "hello": 1}, unk_token="<unk>"))
    with pytest.raises(ValueError, match="'a', '1'"):
        TokenPieces(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))
