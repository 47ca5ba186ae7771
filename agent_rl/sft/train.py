"""Supervised training: cross-entropy on the tokens that the model is to write, by steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from agent_rl.sft.batches import IGNORED, TokenBatch, batch_order, split_by_length, token_batch
from agent_rl.sft.sequences import TrainingSequence
from agent_rl.sft.settings import SftSettings


@dataclass(frozen=True, slots=True)
class Progress:
    """One optimiser step: mean loss (nats) over learnt tokens, tokens in the batch, seconds since the start."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens: int
    seconds: float


def learning_rate(step: int, settings: SftSettings) -> float:
    """Linear warm-up from 0, then linear decay to `final_lr_share * lr` at the last step. `step` counts from 0."""
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    rest = max(settings.steps - 1 - settings.warmup_steps, 1)
    gone = (step - settings.warmup_steps) / rest
    return settings.lr * (1 - gone * (1 - settings.final_lr_share))


def token_loss(model: Any, batch: TokenBatch, device: torch.device) -> torch.Tensor:
    """Sum of the cross-entropy (nats) over learnt tokens; logits are made only in columns that need them.

    No attention mask is needed: padding stands on the right, and attention is causal.
    """
    logits = model(input_ids=batch.ids.to(device), logits_to_keep=batch.columns_kept.to(device), use_cache=False).logits
    return functional.cross_entropy(
        logits.flatten(0, 1).float(), batch.targets.to(device).flatten(), ignore_index=IGNORED, reduction="sum"
    )


def step_batches(sequences: Sequence[TrainingSequence], settings: SftSettings) -> Iterator[list[int]]:
    """Indices of each step's batch: right demonstrations for `clean_steps` steps, then all kinds."""
    clean = [i for i, s in enumerate(sequences) if not s.flawed]
    if settings.clean_steps and not clean:
        raise ValueError(f"clean_steps = {settings.clean_steps}, but every demonstration is flawed; set it to 0")
    for batch in batch_order(len(clean), settings.batch_size, settings.clean_steps, settings.seed):
        yield [clean[i] for i in batch]
    rest = settings.steps - settings.clean_steps
    yield from batch_order(len(sequences), settings.batch_size, rest, settings.seed + 1)


def train(
    model: Any,
    sequences: Sequence[TrainingSequence],
    settings: SftSettings,
    pad: int,
    report: Callable[[Progress], None],
) -> Progress:
    """Train in place with AdamW; calls `report` after every step and returns the last.

    Raises:
        FloatingPointError: the loss is no longer finite.
    """
    device = next(model.parameters()).device
    model.train()
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    kept = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": kept, "weight_decay": 0.0}],
        lr=settings.lr,
        betas=(0.9, 0.95),
        fused=True,
    )
    cast = torch.autocast(device.type, dtype=torch.bfloat16) if settings.dtype == "bfloat16" else nullcontext()
    start = time.monotonic()
    progress = None
    lengths = [len(s.ids) for s in sequences]
    for step, indices in enumerate(step_batches(sequences, settings)):
        parts = [
            token_batch([sequences[i] for i in part], pad)
            for part in split_by_length(indices, lengths, settings.micro_batch_size)
        ]
        learnt = sum(part.learnt for part in parts)
        total = 0.0
        for part in parts:
            with cast:
                loss = token_loss(model, part, device) / learnt
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the gradient is not finite at step {step + 1}; lower lr = {settings.lr:g}")
        lr = learning_rate(step, settings)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens = sum(int(part.lengths.sum()) for part in parts)
        progress = Progress(step + 1, total, lr, norm.item(), tokens, time.monotonic() - start)
        report(progress)
    assert progress is not None  # steps >= 1
    model.eval()
    return progress
