"""Drawing one token a row, with its log-probability under the distribution that was drawn from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agent_rl.engines.base import Sampling


def sum_type(device: torch.device) -> torch.dtype:
    """In what to add probabilities up: float64, since in float32 the increments of a large vocabulary's tail vanish
    beside 1 and its tokens would never be drawn. Apple's MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def truncate(logits: Tensor, top_p: float, top_k: int) -> Tensor:
    """Logits [rows, vocabulary] with -inf outside the kept set.

    `top_k` keeps the k largest (ties with the k-th are all kept); of those, `top_p` keeps the smallest set of
    most probable tokens whose probability reaches p (Holtzman et al., "The Curious Case of Neural Text
    Degeneration", 2020). The most probable token is always kept.
    """
    if 0 < top_k < logits.shape[-1]:
        floor = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < floor, -torch.inf)
    if top_p < 1.0:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        mass = ordered.softmax(-1)
        before = mass.cumsum(-1) - mass
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= top_p)
        drop.scatter_(-1, order[:, :1], False)
        logits = logits.masked_fill(drop, -torch.inf)
    return logits


def draw(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """One token a row.

    Args:
        logits: [rows, vocabulary], any float type; computed with in float32.
        sampling: temperature, top_p, top_k, the same for all rows.
        uniforms: [rows, 1] in (0, 1), of the type to add probabilities up in (see `sum_type`); unused if greedy.

    Returns:
        ids [rows] int64 and log-probabilities [rows] float32 of the distribution sampled from. A row with a
        NaN or +inf logit has a log-probability that is not finite, whatever its id.
    """
    logits = logits.float()
    if sampling.temperature == 0.0:
        logprobs = logits.log_softmax(-1)
        ids = logits.argmax(-1, keepdim=True)
    else:
        if sampling.temperature != 1.0:
            logits = logits / sampling.temperature
        logprobs = truncate(logits, sampling.top_p, sampling.top_k).log_softmax(-1)
        # Inverse of the cumulative distribution. A draw may round up to the whole sum, hence the clamp.
        cumulative = logprobs.exp().cumsum(-1, dtype=uniforms.dtype)
        ids = torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
        ids = ids.clamp_max(logits.shape[-1] - 1)
    return ids.squeeze(-1), logprobs.gather(-1, ids).squeeze(-1)


def draw_mixed(logits: Tensor, samplings: Sequence[Sampling], uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """As `draw`, with a `Sampling` a row. Rows of equal settings are drawn together."""
    groups: dict[Sampling, list[int]] = {}
    for row, sampling in enumerate(samplings):
        groups.setdefault(sampling, []).append(row)
    if len(groups) == 1:
        return draw(logits, samplings[0], uniforms)
    ids = torch.empty(len(samplings), dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(len(samplings), dtype=torch.float32, device=logits.device)
    for sampling, rows in groups.items():
        index = torch.tensor(rows, device=logits.device)
        ids[index], logprobs[index] = draw(logits[index], sampling, uniforms[index])
    return ids, logprobs
