"""The numbers that explain a step, on batches small enough to count by hand."""

from __future__ import annotations

import math

import pytest
import torch

from agent_rl.algorithms.diagnostics import summarise
from agent_rl.algorithms.evaluation import Reason
from agent_rl.algorithms.method import explain, policy_loss
from agent_rl.algorithms.settings import MethodSettings, resolve


def flat(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


ZEROS = torch.zeros(4, dtype=torch.int64)


def test_clip_rates_by_sign_and_position() -> None:
    recipe = resolve(MethodSettings(preset="grpo"))
    tokens = 40
    old = torch.full((tokens,), -1.0)
    logp = old.clone()
    logp[:4] += 1.0
    logp[30:] += 1.0
    advantage = torch.cat([torch.ones(20), -torch.ones(20)])
    segments = torch.cat([torch.zeros(20), torch.ones(20)]).long()
    _, diagnostics = policy_loss(logp, old, None, advantage, torch.ones(tokens), segments, recipe)
    numbers = summarise(diagnostics)
    assert numbers["clip_rate/pos"] == pytest.approx(4 / 20)
    assert numbers["clip_rate/neg"] == 0.0
    assert numbers["clip_rate"] == pytest.approx(4 / 40)
    assert numbers["clip_rate/pos/t<=16"] == pytest.approx(4 / 16)
    assert numbers["clip_rate/pos/t<=64"] == 0.0
    assert "clip_rate/zero" not in numbers and "clip_rate/pos/t>4096" not in numbers
    assert numbers["mask_rate"] == 0.0


def test_extremes_name_trajectory_and_position() -> None:
    recipe = resolve(MethodSettings(preset="ctpo_paper"))
    old = torch.zeros(4)
    logp = flat(0.1, 0.2, -0.5, 0.1)
    segments, ids = torch.tensor([0, 0, 1, 1]), torch.tensor([70, 42])
    _, diagnostics = policy_loss(logp, old, None, torch.ones(4), torch.ones(4), segments, recipe, trajectory_ids=ids)
    numbers = summarise(diagnostics)
    assert numbers["log_ratio_max"] == pytest.approx(0.3)
    assert (numbers["log_ratio_max_trajectory"], numbers["log_ratio_max_position"]) == (70, 2)
    assert numbers["log_ratio_min"] == pytest.approx(-0.5)
    assert (numbers["log_ratio_min_trajectory"], numbers["log_ratio_min_position"]) == (42, 1)


def test_prefix_spread_is_the_deviation_of_the_scaled_walk() -> None:
    recipe = resolve(MethodSettings(preset="grpo"))
    old = torch.zeros(4, dtype=torch.float64)
    logp = flat(0.1, 0.2, -0.5, 0.1)
    _, diagnostics = policy_loss(logp, old, None, torch.ones(4), torch.ones(4), torch.tensor([0, 0, 1, 1]), recipe)
    scaled = flat(0.1, 0.3 / math.sqrt(2), -0.5, -0.4 / math.sqrt(2))
    expected = float(scaled.std(correction=0))
    numbers = summarise(diagnostics)
    assert numbers["prefix_spread"] == pytest.approx(expected)
    assert numbers["prefix_spread/t<=16"] == pytest.approx(expected)


def test_token_test_and_budget_are_told_apart() -> None:
    recipe = resolve(MethodSettings(preset="cppo", prefix_budget={"delta_b": 0.0, "w_min": 1.0}))
    mu, pi = flat(0.5, 0.5, 0.5, 0.5).log(), flat(0.7, 0.52, 0.55, 0.4).log()
    given = (pi, None, mu, torch.ones(4), torch.ones(4), ZEROS, recipe)
    _, diagnostics = policy_loss(*given)
    numbers = summarise(diagnostics)
    # 0.2 fails delta; then the budget is spent (0.15 - 0.2 < 0); the last one moves inward.
    assert numbers["mask_rate/token_test"] == 0.25
    assert numbers["mask_rate/budget"] == 0.5
    assert numbers["mask_rate"] == numbers["mask_rate/pos"] == 0.75
    assert numbers["budget_used_mean"] == pytest.approx((0.2 + 0.02 + 0.05 + 0.1) / 4)
    assert explain(*given)["reason"].tolist() == [
        Reason.TOKEN_TEST,
        Reason.OVER_BUDGET,
        Reason.OVER_BUDGET,
        Reason.KEPT,
    ]


def test_mismatch_moments_and_truncation() -> None:
    recipe = resolve(MethodSettings(preset="ctpo", mismatch={"kind": "token_tis", "cap": 1.05}))
    gaps = flat(0.1, -0.1, 0.3, 25.0)
    old = flat(-1.0, -1.0, -1.0, -1.0)
    _, diagnostics = policy_loss(old, old, old - gaps, torch.ones(4), torch.ones(4), ZEROS, recipe)
    numbers = summarise(diagnostics)
    clamped = gaps.clamp(max=20)
    assert numbers["mismatch_mean"] == pytest.approx(float(clamped.mean()))
    assert numbers["mismatch_std"] == pytest.approx(float(clamped.std(correction=0)))
    assert numbers["mismatch_truncated_rate"] == 0.75
    assert numbers["clamped_mismatch"] == 1
    assert numbers["mismatch_weight_mean"] == pytest.approx((3 * 1.05 + math.exp(-0.1)) / 4)


def test_clamps_are_counted() -> None:
    recipe = resolve(MethodSettings(preset="ctpo_paper"))
    logp, old = flat(0.0, -30.0, -1.0, -1.0), flat(-8.0, -1.0, -26.0, -1.0)
    _, diagnostics = policy_loss(logp, old, None, torch.ones(4), torch.ones(4), ZEROS, recipe)
    numbers = summarise(diagnostics)
    # l = 8, -29 -> -20, 25 -> 20, 0 and L = 8, -12, 8, 8.
    assert numbers["clamped_token"] == 2 and numbers["clamped_cumulative"] == 0
    logp = flat(0.0, -1.0, -1.0, -1.0)
    _, diagnostics = policy_loss(logp, flat(-11.0, -1, -1, -1), None, torch.ones(4), torch.ones(4), ZEROS, recipe)
    assert summarise(diagnostics)["clamped_cumulative"] == 4


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ({"preset": "grpo"}, Reason.CLIPPED_HIGH),
        ({"preset": "dppo_tv"}, Reason.DIVERGED),
        ({"preset": "trm"}, Reason.SEQUENCE_DROPPED),
        ({"preset": "grpo", "mismatch": {"kind": "icepop", "lo": 2.0}}, Reason.MISMATCH_DROPPED),
    ],
)
def test_the_reason_of_a_stopped_token(method, reason) -> None:
    mu = torch.full((4,), -1.5)
    details = explain(
        mu + 1.0, mu, mu, torch.ones(4), torch.tensor([1, 1, 0, 1]), ZEROS, resolve(MethodSettings(**method))
    )
    assert details["reason"].tolist() == [reason, reason, Reason.NOT_TRAINED, reason]


@pytest.mark.parametrize(("sign", "step", "reason"), [(-1, -1.0, Reason.CLIPPED_LOW), (-1, 1.0, Reason.DUAL_CLIPPED)])
def test_the_reason_on_the_negative_side(sign, step, reason) -> None:
    old = torch.full((4,), -1.5)
    recipe = resolve(MethodSettings(preset="ctpo", mismatch={"kind": "none"}))
    details = explain(old + step, old, None, sign * torch.ones(4), torch.ones(4), ZEROS, recipe)
    assert details["reason"].tolist() == [reason] * 4


@pytest.mark.parametrize(
    ("name", "value"), [("logp", float("nan")), ("logp_mu", float("-inf")), ("advantage", float("inf"))]
)
def test_a_model_token_without_a_number_is_refused_by_name(name, value) -> None:
    given = {key: torch.full((4,), -1.0) for key in ("logp", "logp_old", "logp_mu", "advantage")}
    given[name] = torch.tensor([-1.0, -1.0, -1.0, value])
    recipe = resolve(MethodSettings())
    segments = torch.tensor([0, 0, 1, 1])
    with pytest.raises(ValueError, match=rf"{name} is {value} at model token 2 of trajectory 1"):
        policy_loss(**given, mask=torch.ones(4), segments=segments, settings=recipe)
    policy_loss(**given, mask=torch.tensor([1, 1, 1, 0]), segments=segments, settings=recipe)


def test_missing_and_misshapen_tensors_are_refused_by_name() -> None:
    ones, recipe = torch.ones(4), resolve(MethodSettings())
    with pytest.raises(ValueError, match="logp_mu"):
        policy_loss(ones, ones, None, ones, ones, ZEROS, recipe)
    with pytest.raises(ValueError, match=r"advantage has shape \(2,\)"):
        policy_loss(ones, ones, ones, torch.ones(2), ones, ZEROS, recipe)
    with pytest.raises(ValueError, match="non-decreasing"):
        policy_loss(ones, ones, ones, ones, ones, torch.tensor([0, 1, 0, 0]), recipe)
    topk = resolve(MethodSettings(preset="cppo", prefix_budget={"divergence": "topk_tv"}))
    with pytest.raises(ValueError, match="topk_tv needs topk"):
        policy_loss(ones, ones, ones, ones, ones, ZEROS, topk)
