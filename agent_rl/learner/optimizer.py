"""AdamW over the trainable parameters, its learning-rate schedule, and gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from agent_rl.learner.settings import OptimizerSettings


def learning_rate(update: int, settings: OptimizerSettings, total_updates: int | None) -> float:
    """Learning rate of the update with this 0-based number.

    Warm-up rises linearly and reaches `lr` after `warmup_updates`; linear and cosine then fall to
    `final_lr_ratio * lr` at `total_updates` and stay there.
    """
    if update < settings.warmup_updates:
        return settings.lr * (update + 1) / settings.warmup_updates
    if settings.schedule == "constant":
        return settings.lr
    if total_updates is None:
        raise ValueError(f"optimizer.schedule={settings.schedule} needs optimizer.total_updates")
    span = max(total_updates - settings.warmup_updates, 1)
    done = min((update - settings.warmup_updates) / span, 1.0)
    falling = 1.0 - done if settings.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return settings.lr * (settings.final_lr_ratio + (1.0 - settings.final_lr_ratio) * falling)


def adamw(parameters: Iterable[nn.Parameter], settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only. Frozen parameters are left out."""
    trainable = [p for p in parameters if p.requires_grad]
    if not trainable:
        raise ValueError("no parameter of the model is trainable")
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True,
    )  # fmt: skip


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float | None) -> float:
    """Global gradient norm before clipping, over all ranks; gradients are scaled to at most `limit`."""
    norm: Tensor = torch.nn.utils.clip_grad_norm_(parameters, math.inf if limit is None else limit)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
