"""Numbers that explain a run, kept as sums and counts so that micro-batches and ranks can be added.

    total = first + second            # micro-batches
    numbers = summarise(total)        # dict[str, float]

Ranks: `all_gather_object` of `to_dict()`, then add the `Diagnostics.from_dict(...)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_rl.algorithms.evaluation import Evaluation

BUCKET_EDGES = (16, 64, 256, 1024, 4096)
"""Upper ends (inclusive) of the position buckets, in model tokens; the last bucket is open."""
BUCKETS = ("t<=16", "t<=64", "t<=256", "t<=1024", "t<=4096", "t>4096")
SIGNS = ("neg", "zero", "pos")


@dataclass(frozen=True)
class Diagnostics:
    """Addable. Sums are float64 tensors (scalars, or one entry per cell); extremes keep their place."""

    sums: dict[str, Tensor]
    largest: Tensor
    """[3] largest log-ratio in front of an advantage, its trajectory, its model-token index."""
    smallest: Tensor
    """[3] the smallest one."""

    def __add__(self, other: Diagnostics) -> Diagnostics:
        sums = dict(self.sums)
        for name, value in other.sums.items():
            sums[name] = sums[name] + value if name in sums else value
        return Diagnostics(
            sums,
            self.largest if bool(self.largest[0] >= other.largest[0]) else other.largest,
            self.smallest if bool(self.smallest[0] <= other.smallest[0]) else other.smallest,
        )

    def to_dict(self) -> dict[str, list[float]]:
        """Plain numbers, for sending to another process."""
        parts = {**self.sums, "/largest": self.largest, "/smallest": self.smallest}
        return {name: value.reshape(-1).tolist() for name, value in parts.items()}

    @classmethod
    def from_dict(cls, plain: dict[str, list[float]]) -> Diagnostics:
        """The inverse of `to_dict` (on the CPU)."""
        parts = {name: torch.tensor(value, dtype=torch.float64) for name, value in plain.items()}
        largest, smallest = parts.pop("/largest"), parts.pop("/smallest")
        return cls({name: v if v.numel() > 1 else v.squeeze() for name, v in parts.items()}, largest, smallest)


def collect(found: Evaluation, trajectory_ids: Tensor | None = None) -> Diagnostics:
    """Sums over one micro-batch. `trajectory_ids` ([S] int64) names the trajectories of the extremes."""
    with torch.no_grad():
        sums = {
            "tokens": _number(found, found.tokens.count),
            "sequences": (found.tokens.counts > 0).sum().double(),
            **_cells(found),
            **_ratio_sums(found),
            **_gate_sums(found),
            **_mismatch_sums(found),
        }
        for name, value in (("entropy", found.entropy), ("reference_kl", found.kl)):
            if value is not None:
                sums[name] = _sum(value.detach())
        return Diagnostics(sums, _extreme(found, trajectory_ids, True), _extreme(found, trajectory_ids, False))


def _number(found: Evaluation, value: float) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64, device=found.tokens.logp.device)


def _sum(values: Tensor) -> Tensor:
    return values.sum(dtype=torch.float64)


def _cells(found: Evaluation) -> dict[str, Tensor]:
    """Tokens per (bucket, sign, clipped, masked), and moments of L_t / sqrt(t) per bucket."""
    tokens = found.tokens
    edges = torch.tensor(BUCKET_EDGES, dtype=tokens.index.dtype, device=tokens.index.device)
    bucket = torch.bucketize(tokens.index, edges)
    clipped = found.clip.high | found.clip.low | found.clip.dual
    key = bucket * 12 + (tokens.advantage.sign().long() + 1) * 4 + clipped.long() * 2 + _masked(found).long()
    scaled = (found.ratio.prefix / tokens.index.sqrt()).double()
    size = len(BUCKETS)
    return {
        "cells": torch.bincount(key, minlength=size * 12).double(),
        "walk": torch.bincount(bucket, weights=scaled, minlength=size),
        "walk_square": torch.bincount(bucket, weights=scaled.square(), minlength=size),
    }


def _masked(found: Evaluation) -> Tensor:
    closed = torch.zeros_like(found.clip.high)
    if found.budget is not None:
        closed = closed | found.budget.by_token | found.budget.by_budget
    for other in (found.diverged, found.dropped):
        closed = closed if other is None else closed | (other[0] == 0)
    return closed if found.weight is None else closed | (found.weight.weight == 0)


def _ratio_sums(found: Evaluation) -> dict[str, Tensor]:
    token = found.ratio.token
    return {
        "ratio": _sum(found.ratio.value.detach().exp()),
        "log_ratio": _sum(token),
        "kl_old_k3": _sum(token.expm1() - token),
        "dual_clipped": _sum(found.clip.dual),
        "clamped_token": _sum(found.ratio.token_clamped),
        "clamped_cumulative": _sum(found.ratio.cumulative_clamped),
    }


def _gate_sums(found: Evaluation) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    if found.budget is not None:
        sums["gate"] = _sum(found.budget.gate)
        sums["divergence"] = _sum(found.budget.divergence)
        sums["masked_token_test"] = _sum(found.budget.by_token)
        sums["masked_budget"] = _sum(found.budget.by_budget)
        present = found.tokens.counts > 0
        sums["budget_used"] = _sum(torch.where(present, found.budget.used, 0.0))
        sums["budget_size"] = _sum(torch.where(present, found.budget.budget, 0.0))
    if found.diverged is not None:
        sums["divergence"] = _sum(found.diverged[1])
        sums["masked_divergence"] = _sum(found.diverged[0] == 0)
    if found.dropped is not None:
        sums["masked_sequence"] = _sum(found.dropped[0] == 0)
    return sums


def _mismatch_sums(found: Evaluation) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    tokens = found.tokens
    if tokens.logp_old is not None and tokens.logp_mu is not None:
        gap = (tokens.logp_old - tokens.logp_mu).clamp(-20.0, 20.0).double()
        sums["mismatch"] = gap.sum()
        sums["mismatch_square"] = gap.square().sum()
    if found.weight is not None:
        sums["weight"] = _sum(found.weight.weight)
        sums["weight_truncated"] = _sum(found.weight.truncated)
        sums["clamped_mismatch"] = _sum(found.weight.clamped)
    return sums


def _extreme(found: Evaluation, trajectory_ids: Tensor | None, largest: bool) -> Tensor:
    tokens, value = found.tokens, found.ratio.value.detach()
    if tokens.count == 0:
        missing = -math.inf if largest else math.inf
        return torch.tensor([missing, -1.0, -1.0], dtype=torch.float64, device=value.device)
    at = value.argmax() if largest else value.argmin()
    owner = tokens.segment[at]
    owner = owner if trajectory_ids is None else trajectory_ids[owner]
    return torch.stack([value[at].double(), owner.double(), tokens.index[at].double()])


_PER_TOKEN = {
    "ratio": "ratio_mean",
    "log_ratio": "log_ratio_mean",
    "kl_old_k3": "kl_k3",
    "dual_clipped": "dual_clip_rate",
    "gate": "gate_mean",
    "divergence": "divergence_mean",
    "masked_token_test": "mask_rate/token_test",
    "masked_budget": "mask_rate/budget",
    "masked_divergence": "mask_rate/divergence",
    "masked_sequence": "mask_rate/sequence",
    "mismatch": "mismatch_mean",
    "weight": "mismatch_weight_mean",
    "weight_truncated": "mismatch_truncated_rate",
    "entropy": "entropy",
    "reference_kl": "reference_kl",
}
_PER_SEQUENCE = {"budget_used": "budget_used_mean", "budget_size": "budget_size_mean"}
_AS_COUNTS = ("tokens", "sequences", "clamped_token", "clamped_cumulative", "clamped_mismatch")


def summarise(diagnostics: Diagnostics) -> dict[str, float]:
    """Rates, means and extremes by name (docs/algorithms.md lists them). Cells without tokens are left out."""
    sums = {name: value.cpu() for name, value in diagnostics.sums.items()}
    tokens, sequences = max(float(sums["tokens"]), 1.0), max(float(sums["sequences"]), 1.0)
    numbers = {name: float(sums[name]) for name in _AS_COUNTS if name in sums}
    numbers |= {label: float(sums[name]) / tokens for name, label in _PER_TOKEN.items() if name in sums}
    numbers |= {label: float(sums[name]) / sequences for name, label in _PER_SEQUENCE.items() if name in sums}
    if "mismatch" in sums:
        mean = float(sums["mismatch"]) / tokens
        numbers["mismatch_std"] = math.sqrt(max(float(sums["mismatch_square"]) / tokens - mean**2, 0.0))
    numbers |= _rates(sums["cells"].reshape(len(BUCKETS), len(SIGNS), 2, 2))
    numbers |= _spread(sums["walk"], sums["walk_square"], sums["cells"].reshape(len(BUCKETS), -1).sum(1))
    for label, extreme in (("max", diagnostics.largest.cpu()), ("min", diagnostics.smallest.cpu())):
        if bool(extreme[0].isfinite()):
            numbers[f"log_ratio_{label}"] = float(extreme[0])
            numbers[f"log_ratio_{label}_trajectory"] = float(extreme[1])
            numbers[f"log_ratio_{label}_position"] = float(extreme[2])
    return numbers


def _rates(cells: Tensor) -> dict[str, float]:
    """From [bucket, sign, clipped, masked] counts: overall, per sign, per bucket, per both."""
    numbers: dict[str, float] = {}

    def put(suffix: str, part: Tensor) -> None:
        total = float(part.sum())
        if total > 0 or not suffix:
            numbers[f"clip_rate{suffix}"] = float(part[..., 1, :].sum()) / max(total, 1.0)
            numbers[f"mask_rate{suffix}"] = float(part[..., :, 1].sum()) / max(total, 1.0)

    put("", cells)
    for s, sign in enumerate(SIGNS):
        put(f"/{sign}", cells[:, s])
        for b, bucket in enumerate(BUCKETS):
            put(f"/{sign}/{bucket}", cells[b, s])
    for b, bucket in enumerate(BUCKETS):
        put(f"/{bucket}", cells[b])
    return numbers


def _spread(walk: Tensor, square: Tensor, count: Tensor) -> dict[str, float]:
    """std(L_t) / sqrt(t), overall and per bucket."""

    def std(total: float, squares: float, number: float) -> float:
        mean = total / number
        return math.sqrt(max(squares / number - mean**2, 0.0))

    numbers: dict[str, float] = {}
    if float(count.sum()) > 0:
        numbers["prefix_spread"] = std(float(walk.sum()), float(square.sum()), float(count.sum()))
    for b, bucket in enumerate(BUCKETS):
        if float(count[b]) > 0:
            numbers[f"prefix_spread/{bucket}"] = std(float(walk[b]), float(square[b]), float(count[b]))
    return numbers
