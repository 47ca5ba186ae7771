"""Known special cases in which one method must become another, or must keep everything."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_batches import random_batch

from agent_rl.algorithms.method import explain, policy_loss
from agent_rl.algorithms.presets import PRESETS
from agent_rl.algorithms.settings import MethodSettings, resolve

SPANS = [[(False, 4), (True, 9), (False, 3), (True, 7)], [(False, 2), (True, 1)], [(True, 20)]]
SEEDS = st.integers(0, 10**6)
FEW = settings(max_examples=20, deadline=None)


def recipe_of(**method):
    return resolve(MethodSettings(**method))


@FEW
@given(seed=SEEDS)
def test_a_flat_weight_and_an_unbounded_budget_make_cppo_dppo(seed) -> None:
    batch = random_batch(SPANS, seed, 0.8, 0.1)
    cppo = recipe_of(preset="cppo", prefix_budget={"w_min": 1.0, "delta_b": 1e6})
    dppo = recipe_of(preset="dppo_tv")
    first, _ = policy_loss(*batch.inputs(), cppo)
    second, _ = policy_loss(*batch.inputs(), dppo)
    assert torch.equal(first, second)


@FEW
@given(seed=SEEDS, soft=st.booleans(), adaptive=st.booleans())
def test_cppo_keeps_everything_without_a_move_and_without_an_advantage(seed, soft, adaptive) -> None:
    recipe = recipe_of(preset="cppo", prefix_budget={"soft": soft, "adaptive": adaptive, "delta_b": 1e-6})
    batch = random_batch(SPANS, seed, 0.8, 0.1)
    _, old, mu, advantage, mask, segments = batch.inputs()
    assert bool((explain(mu, old, mu, advantage, mask, segments, recipe)["gate"][mask] == 1).all())
    nothing = torch.zeros_like(advantage)
    assert bool((explain(batch.logp, old, mu, nothing, mask, segments, recipe)["gate"][mask] == 1).all())


@FEW
@given(seed=SEEDS)
def test_the_first_model_token_is_gated_by_delta_alone(seed) -> None:
    recipe = recipe_of(preset="cppo", prefix_budget={"delta_b": 0.0})
    batch = random_batch(SPANS, seed, 1.5, 0.1)
    details = explain(*batch.inputs(), recipe)
    first = (details["index"] == 1) & batch.mask
    assert bool((details["budget"][first] == 0.15).all())
    move = batch.advantage * (batch.logp - batch.logp_mu)
    closed = (move > 0) & (details["divergence"] > 0.15)
    assert torch.equal(details["gate"][first] == 0, closed[first])


@FEW
@given(seed=SEEDS)
def test_position_weights_run_from_one_to_w_min_over_model_tokens(seed) -> None:
    batch = random_batch(SPANS, seed, 0.1, 0.1)
    details = explain(*batch.inputs(), recipe_of(preset="cppo"))
    weight = [details["position_weight"][batch.mask & (batch.segments == s)] for s in range(3)]
    torch.testing.assert_close(weight[0], torch.linspace(1.0, 0.8, 16, dtype=torch.float64))
    assert weight[1].tolist() == [1.0]
    torch.testing.assert_close(weight[2], torch.linspace(1.0, 0.8, 20, dtype=torch.float64))


@FEW
@given(seed=SEEDS)
def test_ctpo_cppo_is_ctpo_times_the_gate_of_cppo(seed) -> None:
    batch = random_batch(SPANS, seed, 0.8, 0.1)
    both, _ = policy_loss(*batch.inputs(), recipe_of(preset="ctpo_cppo"))
    ctpo, _ = policy_loss(*batch.inputs(), recipe_of(preset="ctpo", mismatch={"kind": "prefix_tis"}))
    gate = explain(*batch.inputs(), recipe_of(preset="cppo"))["gate"]
    torch.testing.assert_close(both, ctpo * gate, rtol=1e-12, atol=1e-14)
    alone, _ = policy_loss(*batch.inputs(), recipe_of(preset="ctpo_cppo", prefix_budget=False))
    assert torch.equal(alone, ctpo)


@FEW
@given(seed=SEEDS)
def test_gspo_and_its_token_form_have_the_same_gradient_under_sequence_means(seed) -> None:
    batch = random_batch(SPANS, seed, 0.01, 0.01)
    gradients = []
    for kind in ("sequence", "sequence_token"):
        logp = batch.logp.clone().requires_grad_(True)
        recipe = recipe_of(preset="gspo", ratio={"kind": kind}, clip={"eps_lo": 0.5, "eps_hi": 0.5})
        loss, _ = policy_loss(logp, *batch.inputs()[1:], recipe)
        loss.sum().backward()
        gradients.append(logp.grad)
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"gmpo", "gspo"}))
@FEW
@given(seed=SEEDS)
def test_on_policy_every_method_is_the_plain_policy_gradient(name, seed) -> None:
    """pi = pi_old = mu: the coefficient of grad log pi is -A on every model token."""
    batch = random_batch(SPANS, seed, 0.0, 0.0)
    logp = batch.logp_mu.clone().requires_grad_(True)
    loss, _ = policy_loss(logp, batch.logp_mu, batch.logp_mu, *batch.inputs()[3:], recipe_of(preset=name))
    loss.sum().backward()
    expected = torch.where(batch.mask, -batch.advantage, 0.0)
    torch.testing.assert_close(logp.grad, expected, rtol=1e-12, atol=1e-14)


@FEW
@given(seed=SEEDS)
def test_weights_and_gates_carry_no_gradient_to_anchors(seed) -> None:
    batch = random_batch(SPANS, seed, 0.5, 0.1)
    logp, old, mu = (t.clone().requires_grad_(True) for t in batch.inputs()[:3])
    loss, _ = policy_loss(logp, old, mu, *batch.inputs()[3:], recipe_of(preset="ctpo_cppo"))
    loss.sum().backward()
    assert old.grad is None and mu.grad is None
