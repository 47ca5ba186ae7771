"""Fixed prompts that trainer and engine both score: the engine by really generating, the trainer by its own passes.

The prompts are the same at every hand-over, so that a prefix cache which outlived its weights answers them, too.
The engine samples a few tokens behind each and reports their log-probs; the trainer scores the very same ids.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_rl.engines.base import Engine, GenerationRequest, Sampling
from agent_rl.learner.batch import TrainBatch, TrainRow
from agent_rl.weights.proof import CanaryGap

LIMITS = {torch.float32: 1e-3, torch.float64: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}
"""Mean difference in nats that rounding explains, by the coarser of the two number formats."""


@dataclass(frozen=True, slots=True)
class CanaryAnswer:
    """What an engine sampled behind one prompt."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]


def canary_prompts(count: int, length: int, vocabulary: int) -> list[tuple[int, ...]]:
    """`count` prompts of fixed ids below `vocabulary`: the first of `length` ids, the others of a sixth."""
    return [
        tuple(
            (place * 7919 + number * 104729 + place * place) % vocabulary
            for place in range(max(1, length // 6) if number else length)
        )
        for number in range(count)
    ]


async def ask(
    engine: Engine,
    prompts: Sequence[tuple[int, ...]],
    *,
    new_tokens: int,
    temperature: float,
    version: int,
    wait: float,
) -> list[CanaryAnswer]:
    """Let the engine sample behind each prompt, all at once, the way rollouts do."""
    requests = [
        GenerationRequest(
            trajectory=f"canary/{version}/{number}",
            ids=prompt,
            max_new_tokens=new_tokens,
            seed=number,
            sampling=Sampling(temperature=temperature),
            stop_at_fence=False,
            deadline=time.monotonic() + wait,
        )
        for number, prompt in enumerate(prompts)
    ]
    engine.expect([request.trajectory for request in requests])
    try:
        answers = await asyncio.gather(*(engine.generate(request) for request in requests))
    finally:
        for request in requests:
            engine.release(request.trajectory)
    return [
        CanaryAnswer(request.ids, answer.ids, answer.logprobs, answer.weight_versions)
        for request, answer in zip(requests, answers, strict=True)
    ]


def batch_of(answers: Sequence[CanaryAnswer]) -> TrainBatch:
    """The answers as rows whose log-probs the learner computes in its usual passes."""
    rows = []
    for number, answer in enumerate(answers):
        ids = torch.tensor(answer.prompt + answer.ids)
        mask = torch.arange(len(ids)) >= len(answer.prompt)
        rows.append(
            TrainRow(
                key=f"canary-{number}",
                group="canary",
                ids=ids,
                loss_mask=mask,
                logp_mu=torch.zeros(len(ids)),
                weight_versions=torch.where(mask, 0, -1),
                advantage=0.0,
            )
        )
    return TrainBatch(tuple(rows))


def gap(answers: Sequence[CanaryAnswer], scores: Mapping[str, Tensor], limit: float) -> CanaryGap:
    """Compare log-probs of sampled tokens; `scores` maps the names of `batch_of` to the trainer's, [length]."""
    differences = []
    for number, answer in enumerate(answers):
        theirs = torch.tensor(answer.logprobs, dtype=torch.float64)
        ours = scores[f"canary-{number}"][len(answer.prompt) :].to(torch.float64).cpu()
        differences.append((ours - theirs).abs())
    every = torch.cat(differences) if differences else torch.zeros(0)
    if not every.numel():
        return CanaryGap(mean=float("nan"), largest=float("nan"), limit=limit, tokens=0)
    return CanaryGap(mean=float(every.mean()), largest=float(every.max()), limit=limit, tokens=every.numel())
