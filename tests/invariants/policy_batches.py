"""Random multi-turn batches: several trajectories, model and tool spans, rubbish at every masked position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from policy_reference import Token
from torch import Tensor

from agent_rl.algorithms.divergences import TopK

VOCABULARY, K = 7, 3
RUBBISH = (float("nan"), float("inf"), float("-inf"), 1.0, -300.0, 1e30)


@dataclass
class Batch:
    """Flat float64 tensors and the same numbers as Python objects for the reference."""

    logp: Tensor
    logp_old: Tensor
    logp_mu: Tensor
    advantage: Tensor
    mask: Tensor
    segments: Tensor
    topk: TopK
    trajectories: list[list[Token]]

    @property
    def size(self) -> int:
        return self.logp.numel()

    def inputs(self) -> tuple[Tensor, ...]:
        return self.logp, self.logp_old, self.logp_mu, self.advantage, self.mask, self.segments


def random_batch(spans: list[list[tuple[bool, int]]], seed: int, drift: float, gap: float) -> Batch:
    """`spans`: per trajectory (is_model, length) runs. drift: pi against pi_old; gap: pi_old against mu (logits)."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list] = {name: [] for name in ("pi", "old", "mu", "a", "m", "s", "pt", "mt", "in")}
    trajectories = []
    for s, runs in enumerate(spans):
        advantage = float(rng.choice([0.0, 1.0, -1.0]) * rng.uniform(0.2, 2.0))
        tokens = []
        for is_model, length in runs:
            for _ in range(length):
                row = _model_row(rng, drift, gap) if is_model else _rubbish_row(rng)
                place = len(columns["pi"])
                if is_model:
                    tokens.append(Token(place, row[0], row[1], row[2], advantage, row[3], row[4], row[5]))
                kept = advantage if is_model else float(rng.choice(RUBBISH))
                for name, value in zip(columns, (*row[:3], kept, is_model, s, *row[3:]), strict=True):
                    columns[name].append(value)
        trajectories.append(tokens)
    wide = {name: torch.tensor(columns[name], dtype=torch.float64) for name in ("pi", "old", "mu", "a")}
    topk = TopK(_rows(columns["pt"]).log(), _rows(columns["mt"]).log(), torch.tensor(columns["in"], dtype=torch.bool))
    mask, segments = torch.tensor(columns["m"], dtype=torch.bool), torch.tensor(columns["s"], dtype=torch.int64)
    return Batch(wide["pi"], wide["old"], wide["mu"], wide["a"], mask, segments, topk, trajectories)


def _rows(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).reshape(-1, K)


def _model_row(rng: np.random.Generator, drift: float, gap: float):
    logits_mu = rng.normal(size=VOCABULARY) * 1.5
    logits_old = logits_mu + gap * rng.normal(size=VOCABULARY)
    logits_pi = logits_old + drift * rng.normal(size=VOCABULARY)
    mu, old, pi = (np.exp(x) / np.exp(x).sum() for x in (logits_mu, logits_old, logits_pi))
    sampled = int(rng.choice(VOCABULARY, p=mu))
    top = np.argsort(-mu)[:K]
    logs = [float(np.log(p[sampled])) for p in (pi, old, mu)]
    return (*logs, pi[top].tolist(), mu[top].tolist(), bool(sampled in top))


def _rubbish_row(rng: np.random.Generator):
    junk = [float(x) for x in rng.choice(RUBBISH, size=3)]
    return (*junk, [float(x) for x in rng.choice(RUBBISH, size=K)], [0.5] * K, bool(rng.integers(2)))
