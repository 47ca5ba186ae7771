"""Shapes of public models that shipped configurations name, so that a dry run needs neither the model nor the hub.

Each entry is what the model's own `config.json` on the hub says, as far as sizes depend on it.
"""

from __future__ import annotations

from typing import Any

KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen/Qwen2.5-7B": (
        "qwen2",
        dict(
            hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
            intermediate_size=18944, vocab_size=152064, tie_word_embeddings=False, max_position_embeddings=131072,
        ),
    ),
    "Qwen/Qwen2.5-32B": (
        "qwen2",
        dict(
            hidden_size=5120, num_hidden_layers=64, num_attention_heads=40, num_key_value_heads=8,
            intermediate_size=27648, vocab_size=152064, tie_word_embeddings=False, max_position_embeddings=131072,
        ),
    ),
    "Qwen/Qwen3-1.7B": (
        "qwen3",
        dict(
            hidden_size=2048, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
            intermediate_size=6144, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=40960,
        ),
    ),
    "Qwen/Qwen3-1.7B-Base": (
        "qwen3",
        dict(
            hidden_size=2048, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
            intermediate_size=6144, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=32768,
        ),
    ),
    "Qwen/Qwen3-4B": (
        "qwen3",
        dict(
            hidden_size=2560, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
            intermediate_size=9728, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=40960,
        ),
    ),
    "Qwen/Qwen3-8B-Base": (
        "qwen3",
        dict(
            hidden_size=4096, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
            intermediate_size=12288, vocab_size=151936, tie_word_embeddings=False, max_position_embeddings=32768,
        ),
    ),
    "Qwen/Qwen3-14B": (
        "qwen3",
        dict(
            hidden_size=5120, num_hidden_layers=40, num_attention_heads=40, num_key_value_heads=8, head_dim=128,
            intermediate_size=17408, vocab_size=151936, tie_word_embeddings=False, max_position_embeddings=40960,
        ),
    ),
    "Qwen/Qwen3-30B-A3B-Base": (
        "qwen3_moe",
        dict(
            hidden_size=2048, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
            intermediate_size=6144, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8,
            vocab_size=151936, tie_word_embeddings=False, max_position_embeddings=32768,
        ),
    ),
}  # fmt: skip


def known_config(name: str) -> Any | None:
    """The transformers configuration of a known model; None of another one."""
    from transformers import AutoConfig

    if name not in KNOWN:
        return None
    kind, values = KNOWN[name]
    return AutoConfig.for_model(kind, **values)
