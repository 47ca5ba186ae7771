"""Each preset, and each choice of each part, against a Python loop over tokens: values and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_batches import Batch, random_batch
from policy_reference import reference

from agent_rl.algorithms.method import policy_loss
from agent_rl.algorithms.presets import PRESETS
from agent_rl.algorithms.settings import MethodSettings, resolve

SPANS = st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), min_size=1, max_size=6), min_size=1, max_size=5)
EACH = settings(max_examples=15, deadline=None)

VARIANTS: dict[str, dict] = {
    "ctpo fixed window": {"preset": "ctpo", "clip": {"power": 0.0}},
    "ctpo token tis": {"preset": "ctpo", "mismatch": {"kind": "token_tis", "cap": 1.1}},
    "ctpo prefix tis": {"preset": "ctpo", "mismatch": {"kind": "prefix_tis", "cap": 1.2}},
    "ctpo icepop": {"preset": "ctpo", "mismatch": {"kind": "icepop", "lo": 0.9, "hi": 1.1}},
    "grpo sequence mask": {"preset": "grpo", "mismatch": {"kind": "sequence_mask", "hi": 1.2}},
    "grpo geometric mask": {"preset": "grpo", "mismatch": {"kind": "geometric_mask", "lo": 0.99, "hi": 1.01}},
    "ctpo anchored on mu": {"preset": "ctpo_paper", "ratio": {"anchor": "mu"}},
    "ppo dual clip": {"preset": "dapo", "clip": {"dual": 3.0}},
    "gspo token": {"preset": "gspo", "ratio": {"kind": "sequence_token"}},
    "cppo adaptive": {"preset": "cppo", "prefix_budget": {"adaptive": True, "delta_b": 0.02}},
    "cppo soft": {"preset": "cppo", "prefix_budget": {"soft": True}},
    "cppo soft adaptive": {"preset": "cppo", "prefix_budget": {"soft": True, "adaptive": True}},
    "cppo binary kl": {"preset": "cppo", "prefix_budget": {"divergence": "binary_kl", "delta": 0.1, "delta_b": 0.002}},
    "cppo topk tv": {"preset": "cppo", "prefix_budget": {"divergence": "topk_tv"}},
    "dppo topk tv": {"preset": "dppo_tv", "divergence_mask": {"divergence": "topk_tv"}},
    "dppo topk kl": {"preset": "dppo_kl", "divergence_mask": {"divergence": "topk_kl"}},
    "trm mean": {"preset": "trm", "sequence_mask": {"statistic": "mean", "delta": 0.002}},
    "trm k2": {"preset": "trm", "sequence_mask": {"divergence": "k2"}},
    "trm binary kl": {"preset": "trm", "sequence_mask": {"divergence": "binary_kl"}},
    "trm topk kl": {"preset": "trm", "sequence_mask": {"divergence": "topk_kl"}},
    "everything at once": {
        "preset": "ctpo_cppo",
        "divergence_mask": {"delta": 0.05},
        "sequence_mask": {"delta": 0.5},
    },
    "tight clamps": {"preset": "ctpo_paper", "log_ratio_clamp": 0.2, "cumulative_clamp": 0.3},
    "uncapped": {"preset": "cppo", "clip": {"ratio_cap": 1.05, "gradient": "ratio"}},
}
METHODS = {name: {"preset": name} for name in PRESETS} | VARIANTS


def check(batch: Batch, method: dict, seed: int) -> None:
    recipe = resolve(MethodSettings(**method))
    upstream = torch.randn(batch.size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    logp = batch.logp.clone().requires_grad_(True)
    loss, _ = policy_loss(logp, *batch.inputs()[1:], recipe, topk=batch.topk)
    (loss * upstream).sum().backward()
    value, gradient = reference(recipe, batch.trajectories, batch.size, upstream.tolist())
    torch.testing.assert_close(loss.detach(), torch.tensor(value, dtype=torch.float64), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(logp.grad, torch.tensor(gradient, dtype=torch.float64), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", METHODS)
@EACH
@given(
    spans=SPANS,
    seed=st.integers(0, 10**6),
    drift=st.sampled_from([0.02, 0.2, 1.0, 8.0]),
    gap=st.sampled_from([0.01, 0.1, 1.0]),
)
def test_loss_and_gradient_equal_the_loop_over_tokens(name, spans, seed, drift, gap) -> None:
    check(random_batch(spans, seed, drift, gap), METHODS[name], seed)


@pytest.mark.parametrize("name", METHODS)
def test_a_long_multi_turn_batch_equals_the_loop_over_tokens(name) -> None:
    spans = [[(False, 3), (True, 120), (False, 40), (True, 90)], [(False, 5), (True, 1)], [(False, 4)], [(True, 200)]]
    check(random_batch(spans, 7, 0.3, 0.05), METHODS[name], 7)


@pytest.mark.parametrize("name", METHODS)
def test_float32_agrees_with_float64_to_rounding(name) -> None:
    batch = random_batch([[(False, 3), (True, 60), (False, 9), (True, 70)], [(True, 80)]], 3, 0.3, 0.05)
    recipe = resolve(MethodSettings(**METHODS[name]))
    narrow = [t.float() if t.is_floating_point() else t for t in batch.inputs()]
    wide = [t.double() if t.is_floating_point() else t for t in narrow]
    topk32, topk64 = (
        type(batch.topk)(batch.topk.logp.to(d), batch.topk.logp_mu.to(d), batch.topk.holds_sampled)
        for d in (torch.float32, torch.float64)
    )
    single, _ = policy_loss(*narrow, recipe, topk=topk32)
    double, _ = policy_loss(*wide, recipe, topk=topk64)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("name", METHODS)
def test_only_sequence_ratios_send_gradient_to_other_tokens(name) -> None:
    """Prefix ratios carry the prefix in their value alone: the Jacobian is diagonal."""
    batch = random_batch([[(False, 2), (True, 9), (False, 3), (True, 8)], [(True, 6)]], 11, 0.05, 0.02)
    recipe = resolve(MethodSettings(**METHODS[name]))
    # Inward updates: no clip and no one-sided gate can hide a gradient that leaks to another token.
    moved = torch.where(batch.mask, batch.logp - batch.logp_old, 0.0)
    inward = -torch.zeros(2, dtype=torch.float64).index_add(0, batch.segments, moved).sign()[batch.segments]

    def loss(logp: torch.Tensor) -> torch.Tensor:
        given = (logp, batch.logp_old, batch.logp_mu, inward, batch.mask, batch.segments)
        return policy_loss(*given, recipe, topk=batch.topk)[0]

    jacobian = torch.autograd.functional.jacobian(loss, batch.logp)
    assert bool((jacobian.diagonal() != 0).any())
    off_diagonal = jacobian - torch.diag(jacobian.diagonal())
    spreads = recipe.ratio.kind == "sequence" or recipe.clip.kind == "gmpo"
    assert bool((off_diagonal != 0).any()) == spreads
