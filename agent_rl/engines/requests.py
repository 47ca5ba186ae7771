"""Checks of a request that every engine makes before anything is sampled: a bad one is the caller's mistake."""

from __future__ import annotations

import math

from agent_rl.engines.base import GenerationRequest, Sampling


def check_request(request: GenerationRequest, *, vocabulary: int, max_length: int, can_stop_at_fence: bool) -> None:
    """Refuse what cannot be sampled.

    Raises:
        ValueError: names the request's trajectory, the value and the limit.
    """
    check_sampling(request.sampling)
    if request.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {request.max_new_tokens}, at least 1 is needed")
    if not request.ids:
        raise ValueError(f"the request of trajectory {request.trajectory!r} has no ids")
    if min(request.ids) < 0 or max(request.ids) >= vocabulary:
        raise ValueError(
            f"the request of trajectory {request.trajectory!r} has ids from {min(request.ids)} to "
            f"{max(request.ids)}, the model's vocabulary has {vocabulary}"
        )
    if len(request.ids) >= max_length:
        raise ValueError(
            f"the request of trajectory {request.trajectory!r} has {len(request.ids)} tokens, the engine serves "
            f"{max_length} with at least one to sample (engine.max_length, max_position_embeddings)"
        )
    if request.stop_at_fence and not can_stop_at_fence:
        raise ValueError("the request sets stop_at_fence, but the engine was made without a scanner")


def check_sampling(sampling: Sampling) -> None:
    """Refuse a temperature, top_p or top_k that means nothing."""
    if not 0.0 <= sampling.temperature < math.inf:
        raise ValueError(f"temperature is {sampling.temperature}; it is 0 (greedy) or a positive number")
    if not 0.0 < sampling.top_p <= 1.0:
        raise ValueError(f"top_p is {sampling.top_p}; it is more than 0 and at most 1 (off)")
    if sampling.top_k < 0:
        raise ValueError(f"top_k is {sampling.top_k}; it is a number of tokens, or 0 (off)")
