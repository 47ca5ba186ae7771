"""KL to a reference and entropy: additive, over model tokens, safe far away."""

from __future__ import annotations

import math

import pytest
import torch

from agent_rl.algorithms.diagnostics import summarise
from agent_rl.algorithms.method import policy_loss
from agent_rl.algorithms.mismatch import rejected
from agent_rl.algorithms.settings import MethodSettings, resolve
from agent_rl.algorithms.tokens import model_tokens

LOGP = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
REF = torch.tensor([-1.3, -1.5, float("nan")], dtype=torch.float64)
MASK, SEGMENTS = torch.tensor([1, 1, 0]), torch.zeros(3, dtype=torch.int64)
ZERO = torch.zeros(3, dtype=torch.float64)
FORMULAS = {
    "k1": (lambda d: d, lambda d: 1.0),
    "k2": (lambda d: d * d / 2, lambda d: d),
    "k3": (lambda d: math.exp(-d) - 1 + d, lambda d: 1 - math.exp(-d)),
}


@pytest.mark.parametrize("estimator", FORMULAS)
def test_kl_estimates_and_their_gradients(estimator) -> None:
    recipe = resolve(MethodSettings(preset="grpo", reference_kl={"beta": 0.1, "estimator": estimator}))
    logp = LOGP.clone().requires_grad_(True)
    loss, diagnostics = policy_loss(logp, LOGP, None, ZERO, MASK, SEGMENTS, recipe, logp_ref=REF)
    loss.sum().backward()
    value, slope = FORMULAS[estimator]
    assert loss.tolist() == pytest.approx([0.1 * value(0.3), 0.1 * value(-0.5), 0.0])
    assert logp.grad.tolist() == pytest.approx([0.1 * slope(0.3), 0.1 * slope(-0.5), 0.0])
    assert summarise(diagnostics)["reference_kl"] == pytest.approx(sum(loss.tolist()) / 2)


@pytest.mark.parametrize("estimator", FORMULAS)
def test_a_reference_far_away_stays_finite(estimator) -> None:
    recipe = resolve(MethodSettings(preset="grpo", reference_kl={"beta": 1.0, "estimator": estimator}))
    logp = torch.tensor([-500.0, 0.0, 0.0]).requires_grad_(True)
    far = torch.tensor([0.0, -500.0, 0.0])
    loss, _ = policy_loss(logp, logp.detach(), None, torch.zeros(3), torch.ones(3), SEGMENTS, recipe, logp_ref=far)
    loss.sum().backward()
    assert bool(loss.isfinite().all()) and bool(logp.grad.isfinite().all())


def test_entropy_bonus_lowers_the_loss_and_passes_its_gradient() -> None:
    recipe = resolve(MethodSettings(preset="grpo", entropy={"coefficient": 0.01}))
    entropy = torch.tensor([0.7, 1.1, float("nan")], dtype=torch.float64).requires_grad_(True)
    loss, diagnostics = policy_loss(LOGP, LOGP, None, ZERO, MASK, SEGMENTS, recipe, entropy=entropy)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([-0.007, -0.011, 0.0])
    assert entropy.grad.tolist() == pytest.approx([-0.01, -0.01, 0.0])
    assert summarise(diagnostics)["entropy"] == pytest.approx(0.9)


def test_entropy_is_reported_without_a_bonus() -> None:
    recipe = resolve(MethodSettings(preset="grpo"))
    _, diagnostics = policy_loss(LOGP, LOGP, None, ZERO, MASK, SEGMENTS, recipe, entropy=torch.ones(3))
    assert summarise(diagnostics)["entropy"] == 1.0


@pytest.mark.parametrize("override", [{"reference_kl": {"beta": 0.1}}, {"entropy": {"coefficient": 0.1}}])
def test_a_missing_input_is_named(override) -> None:
    recipe = resolve(MethodSettings(preset="grpo", **override))
    with pytest.raises(ValueError, match="hand it in or set"):
        policy_loss(LOGP, LOGP, None, ZERO, MASK, SEGMENTS, recipe)


def test_rejected_trajectories_are_known_before_the_update() -> None:
    old = torch.tensor([-1.0, -1.0, -1.0, -1.0])
    mu = torch.tensor([-1.0, -1.0, -3.0, -1.0])
    tokens = model_tokens(old, old, mu, old, torch.ones(4), torch.tensor([0, 0, 1, 1]))
    recipe = resolve(MethodSettings(preset="grpo", mismatch={"kind": "sequence_mask", "hi": 3.0}))
    assert rejected(tokens, recipe.mismatch).tolist() == [False, True]
    assert rejected(tokens, resolve(MethodSettings(preset="ctpo")).mismatch).tolist() == [False, False]
