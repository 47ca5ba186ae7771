"""Models whose greedy text is known beforehand."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.engine_models import EOS

VOCABULARY = 264


def untied_model(seed: int) -> Any:
    """A random Llama of 0.8 M parameters whose hidden size has room for one dimension a token."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=288,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        pad_token_id=None,
        eos_token_id=EOS,
        initializer_range=0.1,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).eval()


def chain_model(chain: list[int]) -> Any:
    """A model of the same shape that follows each id of `chain` with the next one, and the last one with itself.

    Attention and MLP add nothing, the embedding of an id is a dimension of its own, and the head reads it.
    """
    assert len(set(chain)) == len(chain), "an id has one successor"
    model = untied_model(seed=0)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(VOCABULARY, model.config.hidden_size))
        head = torch.zeros_like(model.lm_head.weight)
        for here, there in zip(chain, [*chain[1:], chain[-1]], strict=True):
            head[there, here] = 3.0
        model.lm_head.weight.copy_(head)
    return model
