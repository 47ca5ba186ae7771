"""Worked examples with numbers computed by hand: CTPO with and without its dual clip, CPPO for both signs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agent_rl.algorithms.aggregation import Counts, aggregate
from agent_rl.algorithms.evaluation import Reason
from agent_rl.algorithms.method import explain, policy_loss
from agent_rl.algorithms.settings import MethodSettings, resolve

MASK = torch.tensor([1, 1, 1, 0, 0, 1, 1, 1])
SEGMENTS = torch.zeros(8, dtype=torch.int64)
NAN = float("nan")


def spread(model: list[float], tool: float = NAN) -> Tensor:
    """[8] with the six model values in place and `tool` at the two tool tokens."""
    return torch.tensor([*model[:3], tool, tool, *model[3:]])


LOG_RATIOS = spread([0.08, -0.06, 0.12, 0.30, -0.25, 0.06])
OLD = torch.full((8,), -1.0)
MU = spread([0.60, 0.30, 0.80, 0.50, 0.90, 0.40]).log()
PI = spread([0.66, 0.40, 0.78, 0.64, 0.97, 0.30]).log()
WITHOUT_CORRECTION = {"kind": "none"}


def ctpo(preset: str, advantage: float) -> tuple[list[float], list[float], float]:
    """Losses and gradients of the model tokens, and the sequence mean."""
    recipe = resolve(MethodSettings(preset=preset, mismatch=WITHOUT_CORRECTION))
    logp = (OLD + LOG_RATIOS).requires_grad_(True)
    loss, _ = policy_loss(logp, OLD, None, torch.full((8,), advantage), MASK, SEGMENTS, recipe)
    loss.sum().backward()
    mean = aggregate(loss, MASK, SEGMENTS, "seq_mean_token_mean", Counts(6, 1))
    inside = MASK.bool()
    assert loss[~inside].tolist() == [0.0, 0.0]
    assert logp.grad[~inside].tolist() == [0.0, 0.0]
    return loss[inside].tolist(), logp.grad[inside].tolist(), float(mean.detach())


CLIPPED = [1.051271, 1.020201, 1.090463, 1.105171, 1.118293, 1.130290]
UNCLIPPED = [1.083287, 1.020201, 1.150274, 1.552707, 1.209250, 1.284025]
SECOND_ONLY = [0, 1.020201, 0, 0, 0, 0]


@pytest.mark.parametrize("preset", ["ctpo", "ctpo_paper"])
def test_ctpo_with_a_positive_advantage_stops_at_the_window(preset) -> None:
    loss, gradient, mean = ctpo(preset, 1.0)
    assert loss == pytest.approx([-x for x in CLIPPED], abs=1e-6)
    assert gradient == pytest.approx([-x for x in SECOND_ONLY], abs=1e-6)
    assert mean == pytest.approx(-1.085948, abs=1e-6)


def test_ctpo_as_printed_lets_a_negative_advantage_push_without_bound() -> None:
    loss, gradient, mean = ctpo("ctpo_paper", -1.0)
    assert loss == pytest.approx(UNCLIPPED, abs=1e-6)
    assert gradient == pytest.approx(UNCLIPPED, abs=1e-6)
    assert mean == pytest.approx(1.216624, abs=1e-6)


def test_ctpo_as_released_stops_a_negative_advantage_at_the_dual_clip() -> None:
    loss, gradient, mean = ctpo("ctpo", -1.0)
    assert loss == pytest.approx(CLIPPED, abs=1e-6)
    assert gradient == pytest.approx(SECOND_ONLY, abs=1e-6)
    assert mean == pytest.approx(1.085948, abs=1e-6)


def test_ctpo_window_at_given_positions() -> None:
    recipe = resolve(MethodSettings(preset="ctpo_paper"))
    zeros = torch.zeros(8000)
    details = explain(zeros, zeros, None, zeros, torch.ones(8000), torch.zeros(8000, dtype=torch.int64), recipe)
    at = torch.tensor([1, 100, 1000, 4000, 8000]) - 1
    lower, upper = details["window_lower"][at].exp(), details["window_upper"][at].exp()
    assert lower.tolist() == pytest.approx([0.975, 0.779, 0.454, 0.206, 0.107], abs=1e-3)
    assert upper.tolist() == pytest.approx([1.051, 1.649, 4.86, 23.6, 87.5], rel=2e-3)


@pytest.mark.parametrize(("advantage", "kept"), [(1.0, [1, 1, 1, 0, 0, 1]), (-1.0, [1, 1, 1, 1, 1, 0])])
def test_cppo_gate_and_everything_it_is_made_of(advantage, kept) -> None:
    recipe = resolve(MethodSettings(preset="cppo", prefix_budget={"delta_b": 0.02}))
    details = explain(PI, None, MU, torch.full((8,), advantage), MASK, SEGMENTS, recipe)
    inside = MASK.bool()

    def model(name: str) -> list[float]:
        assert details[name][~inside].tolist() == [0, 0]
        return details[name][inside].tolist()

    assert model("position_weight") == pytest.approx([1, 0.96, 0.92, 0.88, 0.84, 0.80], abs=1e-6)
    assert model("divergence") == pytest.approx([0.06, 0.10, 0.02, 0.14, 0.07, 0.10], abs=1e-6)
    assert model("budget") == pytest.approx([0.15, 0.11, 0.0332, 0.0332, -0.0724, -0.1144], abs=1e-6)
    assert model("gate") == kept
    reasons = [Reason.KEPT if keep else Reason.OVER_BUDGET for keep in kept]
    assert model("reason") == reasons


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_cppo_gradient_is_the_gated_ratio_times_the_advantage(advantage) -> None:
    recipe = resolve(MethodSettings(preset="cppo", prefix_budget={"delta_b": 0.02}))
    logp = PI.clone().requires_grad_(True)
    loss, _ = policy_loss(logp, None, MU, torch.full((8,), advantage), MASK, SEGMENTS, recipe)
    loss.sum().backward()
    kept = [1, 1, 1, 0, 0, 1] if advantage > 0 else [1, 1, 1, 1, 1, 0]
    ratios = [0.66 / 0.60, 0.40 / 0.30, 0.78 / 0.80, 0.64 / 0.50, 0.97 / 0.90, 0.30 / 0.40]
    expected = [-advantage * k * r for k, r in zip(kept, ratios, strict=True)]
    assert logp.grad[MASK.bool()].tolist() == pytest.approx(expected, abs=1e-6)


def test_cppo_caps_the_detached_ratio_and_keeps_the_gradient() -> None:
    recipe = resolve(MethodSettings(preset="cppo", prefix_budget=False))
    mu = torch.tensor([-5.0])
    logp = torch.tensor([-1.0]).requires_grad_(True)
    ones, zero = torch.ones(1), torch.zeros(1, dtype=torch.int64)
    loss, _ = policy_loss(logp, None, mu, ones, ones, zero, recipe)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([20.0]) and logp.grad.tolist() == pytest.approx([-20.0])
