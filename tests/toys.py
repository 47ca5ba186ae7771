"""Small real tokenizers and models for tests: a byte-level BPE with a ChatML template, random tiny Llamas."""

from __future__ import annotations

from functools import cache

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# knows tool #}"
)
CORPUS = (
    "Solve the problem. ```python\nimport math\nprint(3 * 17 + 4)\n```\nstatus: error\nstderr:\nNameError\n"
    "The answer is \\boxed{55}. How many primes are below 60? Compute the sum of 12 and 30.\n"
)


@cache
def chatml_tokenizer(template: str = CHATML, pad: str = "<|endoftext|>"):
    """A trained byte-level BPE of 400 tokens; `<|im_end|>` is its end-of-sequence token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    core.train_from_iterator(
        [CORPUS] * 4,
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token=pad, chat_template=template)


def tiny_llama(vocabulary: int, *, seed: int = 0, tied: bool = True):
    """A random Llama of two layers, 64 wide."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).eval()
