"""What a vLLM server is sent and what it answers, on its OpenAI-compatible completions route."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agent_rl.engines.base import GenerationRequest
from agent_rl.types import InfrastructureError

PREFIX = "data:"
END = "[DONE]"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that came together; `finish` is set with the last ones."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str | None


def completion_body(request: GenerationRequest, *, model: str, limit: int, eos_ids: Iterable[int]) -> dict[str, Any]:
    """The request as JSON: ids for a prompt, ids and log-probs back, our ends of turn and no others."""
    sampling = request.sampling
    return {
        "model": model,
        "prompt": list(request.ids),
        "max_tokens": limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": request.seed & ((1 << 63) - 1),
        "stop": [],
        "stop_token_ids": sorted(eos_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": True,
    }


def parse_event(line: str) -> Chunk | None:
    """One line of the event stream; None if it carries no tokens.

    Raises:
        InfrastructureError: the server reports an error, or gives no token ids or log-probs.
    """
    line = line.strip()
    if not line.startswith(PREFIX) or line.removeprefix(PREFIX).strip() == END:
        return None
    try:
        event = json.loads(line.removeprefix(PREFIX))
    except ValueError as error:
        raise InfrastructureError(
            "engine", f"the server's stream holds a line that is no JSON: {line[:80]!r}"
        ) from error
    if "error" in event:
        raise InfrastructureError("engine", f"the server failed: {message_of(event)}")
    if not event.get("choices"):
        return None
    choice = event["choices"][0]
    ids = choice.get("token_ids")
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    finish = choice.get("finish_reason")
    if not ids:
        if ids is None and choice.get("text"):
            raise InfrastructureError("engine", NO_IDS, retryable=False)
        return Chunk((), (), finish) if finish else None
    if logprobs is None:
        raise InfrastructureError("engine", "the server gives no log-probs", retryable=False)
    return Chunk(tuple(ids), tuple(float(value) for value in logprobs), finish)


NO_IDS = (
    "the server gives text without token ids (return_token_ids); a vLLM server of version 0.10.2 or newer is needed"
)


def message_of(body: Any) -> str:
    """The error message in a server's JSON answer."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return str(error)[:500]
