"""Loading a causal language model and its tokenizer."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from agent_rl.engines.sources import ModelError, ModelSource, resolve_model

__all__ = [
    "ModelError",
    "choose_device",
    "load_description",
    "load_model",
    "loadable",
    "model_fingerprint",
    "resolve_model",
    "save_model",
    "weights_fingerprint",
]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    path_or_name: str,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    gguf_file: str | None = None,
    attn_implementation: str = "sdpa",
) -> tuple[Any, Any]:
    """Load a model, in evaluation mode, and its tokenizer.

    A model that comes from a GGUF file is dequantised into an ordinary one, which `save_pretrained` can write.

    Args:
        path_or_name: see `resolve_model`.
        dtype: `auto` (float32 on a CPU; elsewhere the checkpoint's own, bfloat16 for GGUF), `float32`, `bfloat16`,
            `float16`, or a `torch.dtype`.
        device: `auto` (the first accelerator, else the CPU) or a device name.
        gguf_file: name of a GGUF file inside the folder or hub repository.
        attn_implementation: of transformers; the embedded engine serves `sdpa` and `eager`.

    Raises:
        ModelError: the model cannot be found or read, does not fit its tokenizer, or is a GGUF file and the package
            that reads it is missing; says what to do.
    """
    source = resolve_model(path_or_name, gguf_file)
    if source.gguf_file is not None and importlib.util.find_spec("gguf") is None:
        raise ModelError(
            f"model {path_or_name!r} is a GGUF file, which needs the extra `gguf`: pip install 'agent-rl[gguf]'"
        )
    place = choose_device(device)
    number = _number_format(dtype, place, source)
    options: dict[str, Any] = {} if source.gguf_file is None else {"gguf_file": source.gguf_file}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.location, **options)
        model = AutoModelForCausalLM.from_pretrained(
            source.location, dtype=number, attn_implementation=attn_implementation, **options
        )
    except (OSError, ValueError, KeyError) as problem:
        where = "on this machine" if source.local else "on the hub, or it cannot be reached from here"
        raise ModelError(f"model {path_or_name!r} cannot be loaded; it was looked for {where}: {problem}") from problem
    if source.gguf_file is not None:
        model = _without_quantisation(model)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > vocabulary:
        raise ModelError(
            f"model {path_or_name!r}: the tokenizer has {len(tokenizer)} tokens, the embedding has {vocabulary}; "
            "they belong to different models, or tokens were added without resize_token_embeddings"
        )
    return model.to(place).eval(), tokenizer


def load_description(path_or_name: str) -> tuple[Any, Any]:
    """What `load_model` gives, without weights: something with the model's `config` and `generation_config`, and its
    tokenizer. For a model whose weights another process has.

    Raises:
        ModelError: the model cannot be found or read.
    """
    source = resolve_model(path_or_name)
    options: dict[str, Any] = {} if source.gguf_file is None else {"gguf_file": source.gguf_file}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.location, **options)
        config = AutoConfig.from_pretrained(source.location, **options)
    except (OSError, ValueError, KeyError) as problem:
        raise ModelError(f"configuration or tokenizer of {path_or_name!r} cannot be loaded: {problem}") from problem
    try:
        generation = GenerationConfig.from_pretrained(source.location)
    except OSError:  # no generation_config.json: transformers takes the model's own configuration
        generation = GenerationConfig.from_model_config(config)
    return SimpleNamespace(config=config, generation_config=generation), tokenizer


def loadable(path_or_name: str) -> str | None:
    """Folder or hub name that any program loads this model from; None for a GGUF file, which must be converted."""
    source = resolve_model(path_or_name)
    return source.location if source.gguf_file is None else None


def weights_fingerprint(location: str) -> str:
    """Checksum of a folder's weight files (BLAKE2b, 32 hexadecimal digits), read and not loaded; of a hub name, the
    name."""
    digest = hashlib.blake2b(digest_size=16)
    files = sorted(f for f in Path(location).glob("*") if f.suffix in (".safetensors", ".bin"))
    if not files:
        return location
    for file in files:
        digest.update(file.name.encode())
        with file.open("rb") as content:
            while block := content.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """The device of that name; for `auto` the first accelerator, else the CPU."""
    if device != "auto":
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def model_fingerprint(model: nn.Module) -> str:
    """Checksum of all parameters: names, shapes, number formats and bits; 32 hexadecimal digits (BLAKE2b).

    Tied parameters count once, under their first name, so that it does not matter whether a checkpoint stores both.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        flat = parameter.detach().reshape(-1).contiguous()
        digest.update(flat.view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


def save_model(model: Any, tokenizer: Any, folder: str | Path) -> None:
    """Write model and tokenizer as one folder that `load_model` reads."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _number_format(dtype: str | torch.dtype, device: torch.device, source: ModelSource) -> str | torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        if device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if source.gguf_file is not None else "auto"
    if dtype not in _DTYPES:
        raise ModelError(f"dtype {dtype!r} is none of auto, {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def _without_quantisation(model: Any) -> Any:
    """The same weights in a model that does not say it is quantised: such a one refuses `save_pretrained`."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = type(model)(config).to(model.dtype)
    fresh.load_state_dict(model.state_dict(), strict=True)
    fresh.tie_weights()
    fresh.generation_config = model.generation_config
    return fresh
