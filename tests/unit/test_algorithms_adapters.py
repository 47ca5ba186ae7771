"""Losses for padded batches: the verl signature, its counts, weights and anchors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from agent_rl.algorithms.adapters import padded_policy_loss, verl_policy_loss
from agent_rl.algorithms.settings import MethodSettings, resolve

OLD = torch.tensor([[-1.0, -2.0, -1.0], [-0.5, -1.0, 0.0]])
LOGP = OLD + torch.tensor([[0.1, 0.0, -0.1], [0.2, 0.1, float("nan")]])
MASK = torch.tensor([[1, 0, 1], [1, 1, 0]])
ADVANTAGE = torch.tensor([1.0, -1.0])


def recipe_of(name: str, **overrides):
    return resolve(MethodSettings(preset=name, **overrides))


def test_the_padded_loss_is_the_mean_of_row_means() -> None:
    total, per_token, _ = padded_policy_loss(LOGP, OLD, None, ADVANTAGE, MASK, recipe_of("grpo"))
    ratios = [[0.1, -0.1], [0.2, 0.1]]
    rows = [[-pow(2.718281828, x) for x in ratios[0]], [pow(2.718281828, x) for x in ratios[1]]]
    assert per_token[MASK.bool()].tolist() == pytest.approx(rows[0] + rows[1])
    assert float(total) == pytest.approx((sum(rows[0]) / 2 + sum(rows[1]) / 2) / 2)
    per_position, _, _ = padded_policy_loss(
        LOGP, OLD, None, ADVANTAGE.unsqueeze(1).expand(2, 3), MASK, recipe_of("grpo")
    )
    assert torch.equal(total, per_position)


def test_verl_counts_weights_and_metrics() -> None:
    loss = verl_policy_loss(recipe_of("grpo"))
    advantages = ADVANTAGE.unsqueeze(1).expand(2, 3)
    plain, metrics = loss(OLD, LOGP, advantages, MASK, "token-mean")
    assert metrics["actor/tokens"] == 4
    config = SimpleNamespace(global_batch_info={"dp_size": 2, "batch_num_tokens": 16, "global_batch_size": None})
    whole, _ = loss(OLD, LOGP, advantages, MASK, "token-mean", config)
    assert float(whole) == pytest.approx(float(plain) * 4 / 16 * 2)
    weighted, _ = loss(OLD, LOGP, advantages, MASK, "token-mean", None, torch.full((2, 3), 0.5))
    assert float(weighted) == pytest.approx(float(plain) / 2)


def test_without_the_samplers_log_probs_a_gate_on_them_is_refused() -> None:
    with pytest.raises(ValueError, match="bypass mode"):
        verl_policy_loss(recipe_of("ctpo_cppo"))
    loss = verl_policy_loss(recipe_of("ctpo_cppo"), old_log_prob_is="sampler")
    total, _ = loss(OLD, LOGP, ADVANTAGE.unsqueeze(1).expand(2, 3), MASK, "seq-mean-token-mean")
    assert bool(total.isfinite())


def test_an_aggregation_that_verl_alone_has_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="token_sum"):
        verl_policy_loss(recipe_of("grpo"))(OLD, LOGP, ADVANTAGE.unsqueeze(1).expand(2, 3), MASK, "token-sum")
