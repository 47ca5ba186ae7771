"""Tool tokens, padding, packing and micro-batching must not change a loss, a gradient or a diagnostic."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_batches import RUBBISH, Batch, random_batch
from torch import Tensor

from agent_rl.algorithms.adapters import padded_policy_loss
from agent_rl.algorithms.aggregation import Counts, aggregate, count
from agent_rl.algorithms.diagnostics import Diagnostics, summarise
from agent_rl.algorithms.method import explain, policy_loss
from agent_rl.algorithms.presets import PRESETS
from agent_rl.algorithms.settings import MethodSettings, resolve

MODES = ("seq_mean_token_mean", "token_mean", "seq_mean_token_sum_norm")
SPANS = [
    [(False, 4), (True, 7), (False, 3), (True, 5)],
    [(False, 2), (True, 1)],
    [(True, 9), (False, 6), (True, 2), (False, 1)],
    [(False, 3)],
    [(False, 1), (True, 12)],
]


def recipe_of(name: str):
    return resolve(MethodSettings(preset=name))


def run(recipe, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Diagnostics]:
    """Loss and gradient at the model tokens, in order, and the diagnostics."""
    logp = inputs[0].clone().requires_grad_(True)
    loss, diagnostics = policy_loss(logp, *inputs[1:], recipe)
    weights = torch.linspace(0.5, 1.5, int(inputs[4].sum()), dtype=loss.dtype)
    (loss[inputs[4].bool()] * weights).sum().backward()
    assert bool((loss[~inputs[4].bool()] == 0).all())
    assert bool((logp.grad[~inputs[4].bool()] == 0).all())
    return loss.detach()[inputs[4].bool()], logp.grad[inputs[4].bool()], diagnostics


def same(first, second) -> None:
    """Bit for bit."""
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert first[2].to_dict() == second[2].to_dict()


def pick(batch: Batch, order: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor[order] for tensor in batch.inputs())


@pytest.mark.parametrize("name", PRESETS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), filler=st.sampled_from(RUBBISH))
def test_changing_tool_tokens_changes_nothing(name, seed, filler) -> None:
    batch = random_batch(SPANS, seed, 0.3, 0.05)
    changed = [torch.where(batch.mask, t, filler) if t.is_floating_point() else t for t in batch.inputs()]
    same(run(recipe_of(name), batch.inputs()), run(recipe_of(name), tuple(changed)))


@pytest.mark.parametrize("name", PRESETS)
def test_deleting_or_inserting_tool_tokens_changes_nothing(name) -> None:
    batch = random_batch(SPANS, 5, 0.3, 0.05)
    expected = run(recipe_of(name), batch.inputs())
    bare = pick(batch, batch.mask.nonzero().squeeze(1))
    same(expected, run(recipe_of(name), bare))
    doubled = pick(batch, torch.arange(batch.size).repeat_interleave(torch.where(batch.mask, 1, 3)))
    same(expected, run(recipe_of(name), doubled))


@pytest.mark.parametrize("name", PRESETS)
def test_padding_width_changes_nothing(name) -> None:
    recipe = recipe_of(name)
    batch = random_batch(SPANS, 6, 0.3, 0.05)
    totals = []
    for width in (19, 25, 64):
        rows = len(SPANS)
        grids = []
        for tensor in batch.inputs()[:5]:
            grid = torch.zeros(rows, width, dtype=tensor.dtype)
            if tensor.is_floating_point():
                grid.fill_(float("nan"))
            for s in range(rows):
                values = tensor[batch.segments == s]
                grid[s, : values.numel()] = values
            grids.append(grid)
        counts = Counts(float(batch.mask.sum()), 4.0, 50.0)
        totals.append(padded_policy_loss(*grids, recipe, counts)[0])
    assert all(torch.equal(totals[0], other) for other in totals)
    flat, _ = policy_loss(*batch.inputs(), recipe)
    whole = aggregate(flat, batch.mask, batch.segments, recipe.aggregation.mode, counts)
    torch.testing.assert_close(totals[0], whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", PRESETS)
def test_packing_order_changes_nothing(name) -> None:
    recipe = recipe_of(name)
    batch = random_batch(SPANS, 8, 0.3, 0.05)
    narrow = tuple(t.float() if t.is_floating_point() else t for t in batch.inputs())
    details = explain(*narrow, recipe)
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        positions = torch.cat([(batch.segments == s).nonzero().squeeze(1) for s in order])
        moved = [tensor[positions] for tensor in narrow]
        moved[5] = torch.repeat_interleave(torch.arange(5), torch.bincount(batch.segments)[torch.tensor(order)])
        for key, value in explain(*moved, recipe).items():
            torch.testing.assert_close(value, details[key][positions], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["grpo", "gspo", "ctpo", "cppo", "ctpo_cppo"])
def test_micro_batches_add_up_to_the_whole_batch(name, mode) -> None:
    recipe = recipe_of(name)
    batch = random_batch(SPANS, 9, 0.3, 0.05)
    counts = count(batch.mask, batch.segments, horizon=30.0)
    assert (counts.tokens, counts.sequences) == (36.0, 4.0)
    logp = batch.logp.clone().requires_grad_(True)
    loss, whole = policy_loss(logp, *batch.inputs()[1:], recipe)
    total = aggregate(loss, batch.mask, batch.segments, mode, counts)
    total.backward()
    pieces, gradient, added = [], torch.zeros_like(batch.logp), None
    for part in ([0, 1], [2], [3], [4]):
        inside = torch.isin(batch.segments, torch.tensor(part))
        inputs = [tensor[inside] for tensor in batch.inputs()]
        inputs[5] = inputs[5] - part[0]
        leaf = inputs[0].clone().requires_grad_(True)
        loss, diagnostics = policy_loss(leaf, *inputs[1:], recipe, trajectory_ids=torch.tensor(part))
        piece = aggregate(loss, inputs[4], inputs[5], mode, counts)
        piece.backward()
        pieces.append(piece.detach())
        gradient[inside] = leaf.grad
        added = diagnostics if added is None else added + diagnostics
    torch.testing.assert_close(sum(pieces), total.detach(), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradient, logp.grad, rtol=1e-10, atol=1e-14)
    assert summarise(added) == pytest.approx(summarise(whole), rel=1e-9, abs=1e-12)
    assert Diagnostics.from_dict(added.to_dict()).to_dict() == added.to_dict()


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("mode", MODES)
def test_an_all_masked_micro_batch_is_zero_and_has_a_gradient(name, mode) -> None:
    batch = random_batch([[(False, 5)], [(False, 3)]], 1, 0.3, 0.05)
    logp = batch.logp.clone().requires_grad_(True)
    loss, diagnostics = policy_loss(logp, *batch.inputs()[1:], recipe_of(name))
    total = aggregate(loss, batch.mask, batch.segments, mode, Counts(0.0, 0.0, 10.0))
    total.backward()
    assert float(total.detach()) == 0.0
    assert bool((logp.grad == 0).all())
    numbers = summarise(diagnostics)
    assert numbers["tokens"] == 0 and all(value == value for value in numbers.values())


@pytest.mark.parametrize("name", PRESETS)
def test_an_empty_batch_is_accepted(name) -> None:
    empty = torch.zeros(0, requires_grad=True)
    nothing = torch.zeros(0, dtype=torch.int64)
    loss, diagnostics = policy_loss(
        empty, empty.detach(), empty.detach(), empty.detach(), nothing, nothing, recipe_of(name)
    )
    assert loss.shape == (0,) and summarise(diagnostics)["tokens"] == 0


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("step", [0.5, -0.5])
def test_four_thousand_tokens_of_drift_stay_finite_and_are_counted(name, step) -> None:
    recipe = recipe_of(name)
    old = torch.full((4000,), -2500.0)
    for sign in (1.0, -1.0):
        logp = (old + step).requires_grad_(True)
        ones = torch.ones(4000)
        loss, diagnostics = policy_loss(logp, old, old, sign * ones, ones, torch.zeros(4000, dtype=torch.int64), recipe)
        loss.mean().backward()
        assert bool(loss.isfinite().all()) and bool(logp.grad.isfinite().all())
        numbers = summarise(diagnostics)
        if recipe.ratio.kind != "prefix":
            continue
        # The mean log-ratio is L_t = t * step; +10 is passed after 20 tokens.
        assert numbers["clamped_cumulative"] == (3980 if step > 0 else 0)
        greedy = sign * step > 0
        stopped = greedy or (step > 0 and recipe.clip.dual is not None)
        assert numbers["clip_rate"] == (1.0 if stopped else 0.0)
