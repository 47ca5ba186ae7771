"""Tiny random models and a byte tokenizer for the tests of the generation engines."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

EOS = 256
FENCE = 257
"""A token that is three backticks at once."""
VOCABULARY = 260


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte; `<eos>`, and tokens that hold a part of a fence or more than one."""
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {"<eos>": EOS, "```": FENCE, "``": 258, "`ĊĊ": 259}
    merges = [("`", "`"), ("``", "`"), ("`", "ĊĊ")]
    vocabulary["ĊĊ"] = 260
    merges.insert(0, ("Ċ", "Ċ"))
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


_COMMON: dict[str, Any] = dict(
    vocab_size=264,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=12,
    max_position_embeddings=256,
    bos_token_id=None,
    pad_token_id=None,
    eos_token_id=EOS,
    initializer_range=0.3,
)

_KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama-tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama-untied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": False}),
    "llama-eager": (LlamaConfig, LlamaForCausalLM, {"attn_implementation": "eager"}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    "qwen3-sliding": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "mistral-sliding": (MistralConfig, MistralForCausalLM, {"sliding_window": 9}),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, {"sliding_window": 9, "sliding_window_pattern": 2}),
}
KINDS = tuple(_KINDS)


def tiny_model(kind: str = "llama-tied", seed: int = 0, **changes: Any) -> Any:
    """A random model of a few ten thousand parameters."""
    config_class, model_class, extra = _KINDS[kind]
    config = config_class(**(_COMMON | extra | changes))
    torch.manual_seed(seed)
    return model_class(config).eval()


def plain_logprobs(model: Any, context: list[int], new: list[int], temperature: float = 1.0) -> list[float]:
    """Log-probabilities of `new` behind `context`, from one forward over everything, without a cache."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([context + new]), use_cache=False).logits[0].float()
    logprobs = (logits / (temperature or 1.0)).log_softmax(-1)
    return [float(logprobs[len(context) - 1 + index, token]) for index, token in enumerate(new)]


def say(model: Any, ids: list[int], start: int = 0) -> None:
    """Rig the model's greedy choice: position p is followed by `ids[p - start]` (the last one from then on).

    The embedding of positions is not available to a Llama's head, so that the rule is a forward hook.
    """

    def rig(module: Any, arguments: Any, keywords: dict[str, Any], output: Any) -> Any:
        positions = keywords["position_ids"][:, -output.logits.shape[1] :]
        script = torch.tensor(ids)[(positions - start).clamp(0, len(ids) - 1)]
        output.logits = torch.zeros_like(output.logits).scatter(-1, script[..., None], 50.0)
        return output

    model.register_forward_hook(rig, with_kwargs=True)
