"""The tokenizer from nothing: lossless, single digits, ChatML with tools, the same for the same texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from transformers import AutoTokenizer

from agent_rl.sft.tokenizer import END, PAD, START, train_tokenizer

TEXTS = ["```python\nprint(sum(range(12, 340 + 1)))\n```", "The answer is \\boxed{1234}.", "What is 3 + 4?"] * 5


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(TEXTS, 330, 512)


@given(st.text(max_size=80))
@settings(deadline=None, max_examples=200)
def test_every_text_comes_back_as_it_was(text: str) -> None:
    tokenizer = _cached()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


_MADE: list[Any] = []


def _cached() -> Any:
    if not _MADE:
        _MADE.append(train_tokenizer(TEXTS, 330, 512))
    return _MADE[0]


def test_digits_are_tokens_of_their_own(tokenizer: Any) -> None:
    assert tokenizer.tokenize("1234") == ["1", "2", "3", "4"]
    assert not [t for t in tokenizer.get_vocab() if len(t) > 1 and any(c in "0123456789" for c in t)]


def test_a_fence_is_one_token_so_that_a_turn_ends_with_it(tokenizer: Any) -> None:
    ids = tokenizer.encode("print(1)\n```", add_special_tokens=False)
    assert tokenizer.decode(ids[-1:]) == "```"


def test_control_tokens_are_three_and_differ(tokenizer: Any) -> None:
    ids = [tokenizer.convert_tokens_to_ids(t) for t in (PAD, START, END)]
    assert len(set(ids)) == 3
    assert tokenizer.eos_token == END and tokenizer.pad_token == PAD
    assert tokenizer.encode("a") == tokenizer.encode("a", add_special_tokens=False)


def test_the_template_knows_tools_and_adds_no_system_message(tokenizer: Any) -> None:
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": " a "},
        {"role": "tool", "content": "t"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n a <|im_end|>\n"
        "<|im_start|>tool\nt<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(TemplateError, match="unknown role: critic"):
        tokenizer.apply_chat_template([{"role": "critic", "content": "c"}], tokenize=False)


def test_equal_texts_make_an_equal_tokenizer_that_survives_a_folder(tokenizer: Any, tmp_path: Path) -> None:
    train_tokenizer(TEXTS, 330, 512).save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again.chat_template == tokenizer.chat_template
    assert again.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
