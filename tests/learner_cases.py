"""Small models and batches that the learner's tests share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agent_rl.algorithms.choices import Recipe
from agent_rl.algorithms.settings import MethodSettings, resolve
from agent_rl.learner.batch import TrainBatch, TrainRow
from agent_rl.learner.settings import LearnerSettings
from agent_rl.learner.update import Learner, UpdateReport

VOCABULARY = 97


def tiny_llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """Two layers of width 32 with grouped-query attention."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = dict(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=VOCABULARY,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(LlamaConfig(**{**shape, **changes}))


def uneven_batch(lengths: list[int], seed: int = 0, vocabulary: int = VOCABULARY, prompt: int = 3) -> TrainBatch:
    """Rows of two or three turns, four to a group; log mu is near what an untrained policy says."""
    random = torch.Generator().manual_seed(seed)
    rows = []
    for number, length in enumerate(lengths):
        mask = torch.zeros(length, dtype=torch.bool)
        mask[prompt:] = True
        mask[length // 2 : length // 2 + length // 5] = False
        mu = torch.randn(length, generator=random) * 0.1 - 4.5
        rows.append(
            TrainRow(
                key=f"p{number // 4}#{number % 4}",
                group=f"p{number // 4}",
                ids=torch.randint(0, vocabulary, (length,), generator=random),
                loss_mask=mask,
                logp_mu=torch.where(mask, mu, 0.0),
                weight_versions=torch.where(mask, 0, -1),
                advantage=float(torch.randn((), generator=random)),
            )
        )
    return TrainBatch(tuple(rows))


def recipe(preset: str = "ctpo_cppo", **changes: Any) -> Recipe:
    return resolve(MethodSettings(preset=preset, **changes))


def settings(**changes: Any) -> LearnerSettings:
    return LearnerSettings(**{"optimizer": {"lr": 1e-3, "grad_clip": None}, **changes})


def gradients(
    learner: Learner, batch: TrainBatch, old: Mapping[str, torch.Tensor] | None = None
) -> tuple[UpdateReport, dict[str, torch.Tensor]]:
    """The report of one update, and the gradients that it stepped on."""
    found: dict[str, torch.Tensor] = {}

    def keep(*_: Any) -> None:
        for name, parameter in learner.model.named_parameters():
            if parameter.grad is not None:
                found[name] = parameter.grad.clone()

    handle = learner.optimizer.register_step_pre_hook(keep)
    try:
        report = learner.update(batch, old)
    finally:
        handle.remove()
    return report, found


def assert_close(
    first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor], tolerance: float = 1e-6
) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(
            first[name], second[name], atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
