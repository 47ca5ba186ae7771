"""A request of ours as vLLM's sampling parameters."""

from __future__ import annotations

from collections.abc import Iterable

from vllm.sampling_params import RequestOutputKind, SamplingParams

from agent_rl.engines.base import GenerationRequest


def sampling_params(request: GenerationRequest, *, limit: int, eos_ids: Iterable[int], seeds: bool) -> SamplingParams:
    """Parameters of one turn.

    `ignore_eos` with explicit stop ids makes exactly ours end the turn, whatever the model's own configuration says.
    vLLM takes temperatures below 1e-5 as greedy; its log-probs are then softmax(logits)'s, as ours.
    """
    sampling = request.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=request.seed & ((1 << 63) - 1) if seeds and sampling.temperature > 0 else None,
        max_tokens=limit,
        stop_token_ids=sorted(eos_ids),
        ignore_eos=True,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
