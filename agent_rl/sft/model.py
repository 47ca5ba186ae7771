"""The model and tokenizer to train: from nothing, or from a folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from agent_rl.engines.loading import load_model
from agent_rl.sft.dialogue import Dialogue
from agent_rl.sft.settings import LlamaShape
from agent_rl.sft.tokenizer import train_tokenizer

_ROLES = "system\nuser\nassistant\ntool\n"
_TOKENIZER_SAMPLE = 8000
"""Demonstrations that the merges are learnt from; more change next to nothing."""


def from_nothing(shape: LlamaShape, dialogues: Sequence[Dialogue], seed: int) -> tuple[Any, Any]:
    """A Llama with seeded random weights, and a tokenizer trained on the demonstrations."""
    texts = [text for d in dialogues[:_TOKENIZER_SAMPLE] for text in (_ROLES, *d.texts())]
    tokenizer = train_tokenizer(texts, shape.vocabulary, shape.positions)
    if len(tokenizer) != shape.vocabulary:
        raise ValueError(
            f"shape.vocabulary = {shape.vocabulary}: the demonstrations give only {len(tokenizer)} tokens; "
            "lower it or raise families.count"
        )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            max_position_embeddings=shape.positions,
            tie_word_embeddings=True,
            initializer_range=shape.initializer_range,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0
    )
    return model, tokenizer


def from_folder(init: str) -> tuple[Any, Any]:
    """Model (float32) and tokenizer; see `agent_rl.engines.loading.load_model` for what `init` may name."""
    model, tokenizer = load_model(init, dtype="float32", device="cpu")
    if tokenizer.eos_token_id is None:
        raise ValueError(f"init = {init!r}: its tokenizer has no end-of-sequence token, so no turn could end")
    return model, tokenizer
