"""Whether a server can be used at all: its model, its tokens, its log-probs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp

from agent_rl.config import ConfigError
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.vllm.wire import NO_IDS, message_of
from agent_rl.types import InfrastructureError

SAMPLE = "Let x = 12.5.\n```python\nprint(3 * 7)\n```\nThe answer is \\boxed{21}."
"""Text whose tokens are compared."""
FEW = 5
DIFFERENCE = 0.02
"""Nats that log-probs of one prompt may differ by between two batches."""


@dataclass(frozen=True)
class Model:
    """What a server serves."""

    name: str
    max_length: int


async def probe(http: aiohttp.ClientSession, url: str, tokenizer: Any, settings: EngineSettings) -> Model:
    """The model behind an address.

    Raises:
        ConfigError: it is not the model, gives no token ids, has another tokenizer, or reports log-probs of another
            distribution than it samples from.
        InfrastructureError: nothing answers there.
    """
    model = await _model(http, url, settings)
    await _check_tokenizer(http, url, model, tokenizer)
    await _check_logprobs(http, url, model, tokenizer)
    return model


async def _model(http: aiohttp.ClientSession, url: str, settings: EngineSettings) -> Model:
    listed = (await _ask(http, "GET", f"{url}/v1/models", settings=settings))["data"]
    names = [entry["id"] for entry in listed]
    wanted = settings.remote.model
    if wanted is None:
        bases = [entry for entry in listed if not entry.get("parent")]
        if len(bases) != 1:
            raise ConfigError(f"{url} serves {', '.join(names)}; name one in engine.remote.model")
        wanted = bases[0]["id"]
    if wanted not in names:
        raise ConfigError(f"engine.remote.model = {wanted!r} is not served at {url}, which serves {', '.join(names)}")
    entry = listed[names.index(wanted)]
    longest = int(entry.get("max_model_len") or 1 << 20)
    return Model(wanted, min(longest, settings.max_length or longest))


async def _check_tokenizer(http: aiohttp.ClientSession, url: str, model: Model, tokenizer: Any) -> None:
    body = {
        "model": model.name,
        "prompt": SAMPLE,
        "max_tokens": 1,
        "return_token_ids": True,
        "add_special_tokens": False,
    }
    answer = await _ask(http, "POST", f"{url}/v1/completions", body)
    theirs = answer["choices"][0].get("prompt_token_ids")
    if theirs is None:
        raise ConfigError(f"{url}: {NO_IDS}")
    ours = list(tokenizer.encode(SAMPLE, add_special_tokens=False))
    if theirs != ours:
        place = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))
        raise ConfigError(
            f"{url} cuts text into other tokens than the tokenizer here (token {place} of {SAMPLE!r} is "
            f"{theirs[place : place + 1]} there and {ours[place : place + 1]} here): name the model that it serves"
        )


async def _check_logprobs(http: aiohttp.ClientSession, url: str, model: Model, tokenizer: Any) -> None:
    """At temperature 2 the differences between log-probs are half of those at temperature 0, which are the model's."""
    ids = list(tokenizer.encode(SAMPLE, add_special_tokens=False))
    plain = await _top(http, url, model, ids, 0.0)
    warm = await _top(http, url, model, ids, 2.0)
    shared = sorted(plain.keys() & warm.keys(), key=lambda token: -plain[token])
    first, last = shared[0], shared[-1]
    half, whole = (plain[first] - plain[last]) / 2, plain[first] - plain[last]
    found = warm[first] - warm[last]
    if abs(found - half) > DIFFERENCE and abs(found - whole) <= abs(found - half):
        raise ConfigError(
            f"{url} reports log-probs without the temperature, so not of the distribution that it samples from; start "
            "it with: vllm serve MODEL --logprobs-mode processed_logprobs"
        )


async def _top(
    http: aiohttp.ClientSession, url: str, model: Model, ids: list[int], temperature: float
) -> dict[str, float]:
    """Log-probs of the most likely next tokens."""
    body = {
        "model": model.name, "prompt": ids, "max_tokens": 1, "temperature": temperature, "top_p": 1.0, "top_k": 0,
        "seed": 0, "logprobs": FEW, "return_tokens_as_token_ids": True,
    }  # fmt: skip
    answer = await _ask(http, "POST", f"{url}/v1/completions", body)
    found = (answer["choices"][0].get("logprobs") or {}).get("top_logprobs")
    if not found:
        raise ConfigError(f"{url} gives no log-probs")
    return found[0]


async def _ask(
    http: aiohttp.ClientSession, method: str, url: str, body: Any = None, *, settings: EngineSettings | None = None
) -> Any:
    try:
        async with http.request(method, url, json=body) as response:
            answer = await response.json(content_type=None)
            if response.status == 401 and settings is not None:
                raise ConfigError(
                    f"{url} wants an API key: put it into the environment variable {settings.remote.token_env}"
                )
            if response.status != 200:
                raise ConfigError(f"{url} answers {response.status}: {message_of(answer)}")
            return answer
    except (aiohttp.ClientError, TimeoutError, ValueError) as problem:
        if isinstance(problem, ConfigError):
            raise
        why = str(problem) or type(problem).__name__
        raise InfrastructureError("engine", f"no vLLM server answers at {url}: {why}", retryable=False) from problem
