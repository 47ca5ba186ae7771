"""However an update is cut, packed, recomputed or adapted, loss and gradient are the same to 1e-6."""

from __future__ import annotations

import pytest
import torch

from agent_rl.learner.packing import lay_out
from agent_rl.learner.policy import Policy
from agent_rl.learner.update import Learner
from tests.learner_cases import assert_close, gradients, recipe, settings, tiny_llama, uneven_batch

LENGTHS = [40, 12, 33, 12, 25, 40, 17, 9]
PRESETS = ["ctpo_cppo", "grpo", "gspo", "ctpo", "cppo", "dapo", "none"]


def old_of(batch, scale: float = 0.02):
    """A snapshot that differs from the policy, so that ratios, clips and gates are at work."""
    learner = Learner(tiny_llama(), recipe(), settings())
    random = torch.Generator().manual_seed(5)
    found = learner.old_logprobs(batch)
    return {
        row.key: found[row.key] + row.loss_mask * torch.randn(row.length, generator=random) * scale
        for row in batch.rows
    }


def update(preset="ctpo_cppo", batch=None, old=None, model=None, **changes):
    learner = Learner(model or tiny_llama(), recipe(preset), settings(**changes))
    return gradients(learner, batch or uneven_batch(LENGTHS), old)


def assert_same(first, second, tolerance=1e-6):
    assert first[0].loss == pytest.approx(second[0].loss, abs=tolerance)
    assert_close(first[1], second[1], tolerance)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_the_number_of_micro_batches_changes_nothing(preset, packing):
    batch = uneven_batch(LENGTHS)
    old = old_of(batch)
    one = update(preset, batch, old, packing=packing, micro_batch_tokens=10_000)
    some = update(preset, batch, old, packing=packing, micro_batch_tokens=80)
    each = update(preset, batch, old, packing=packing, micro_batch_tokens=1)
    assert one[0].passes == 1 and 1 < some[0].passes < 8 and each[0].passes == 8
    assert_same(one, some)
    assert_same(one, each)
    assert one[0].diagnostics["clip_rate"] == each[0].diagnostics["clip_rate"]


@pytest.mark.parametrize("preset", PRESETS)
def test_packed_and_padded_rows_give_the_same_update(preset):
    batch = uneven_batch(LENGTHS)
    old = old_of(batch)
    assert_same(update(preset, batch, old, packing="packed"), update(preset, batch, old, packing="padded"))


@pytest.mark.parametrize("chunk", [1, 4 * 97 * 7, 10**9])
def test_the_size_of_a_chunk_of_logits_changes_nothing(chunk):
    batch = uneven_batch(LENGTHS)
    old = old_of(batch)
    assert_same(update(batch=batch, old=old), update(batch=batch, old=old, logprob_chunk_bytes=chunk))


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_gradient_checkpointing_changes_nothing(packing):
    batch = uneven_batch(LENGTHS)
    plain = update(batch=batch, packing=packing)
    assert_same(plain, update(batch=batch, packing=packing, gradient_checkpointing=True))


def test_gradient_checkpointing_keeps_no_layer_activations():
    """What autograd saves between forward and backward shrinks."""

    def saved(checkpointing: bool) -> int:
        policy = Policy(tiny_llama(num_hidden_layers=6), gradient_checkpointing=checkpointing)
        held = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t.numel()) or t, lambda t: t):
            policy(policy.lay_out(uneven_batch([50] * 8).rows))
        return sum(held)

    assert saved(True) < saved(False) / 3


@pytest.mark.parametrize("tied", [True, False])
def test_the_update_is_that_of_a_plain_full_softmax(tied):
    """REINFORCE with a token mean, written out with the model's own logits."""
    model = tiny_llama(tie_word_embeddings=tied)
    batch = uneven_batch(LENGTHS)
    total = torch.zeros(())
    for row in batch.rows:
        logits = model(input_ids=row.ids[None]).logits[0, :-1]
        logp = logits.log_softmax(-1).gather(1, row.ids[1:, None]).squeeze(1)
        total = total - row.advantage * logp[row.loss_mask[1:]].sum() / batch.model_tokens
    total.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}

    plain = recipe("none", aggregation={"mode": "token_mean"})
    _, found = gradients(Learner(tiny_llama(tie_word_embeddings=tied), plain, settings()), batch)
    assert_close(found, expected)


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_first_ratios_are_exactly_one(packing):
    """The snapshot is made in the passes of the update: not nearly the same numbers, the same."""
    batch = uneven_batch(LENGTHS)
    learner = Learner(tiny_llama(), recipe("ctpo_cppo"), settings(packing=packing, micro_batch_tokens=90))
    old = learner.old_logprobs(batch)
    report = learner.update(batch, old, with_details=True)
    for row in batch.rows:
        details = report.details[row.key]
        assert torch.equal(details["logp"], old[row.key])
        assert (details["ratio"][row.loss_mask] == 1).all()
    assert report.diagnostics["ratio_mean"] == 1.0 and report.diagnostics["clip_rate"] == 0.0


def test_train_on_uses_the_snapshot_of_its_start():
    """Updates two and later see the log-probs of the weights before update one."""
    batch = uneven_batch(LENGTHS * 2)
    learner = Learner(tiny_llama(), recipe("grpo"), settings(updates_per_batch=4))
    before = Learner(tiny_llama(), recipe("grpo"), settings()).old_logprobs(batch)
    reports = learner.train_on(batch, seed=3, with_details=True)
    assert [report.update for report in reports] == [0, 1, 2, 3] and learner.updates == 4
    for report in reports:
        for key, details in report.details.items():
            torch.testing.assert_close(details["logp_old"], before[key], atol=1e-5, rtol=0)
    assert reports[0].diagnostics["ratio_mean"] == 1.0
    assert all(report.diagnostics["ratio_mean"] != 1.0 for report in reports[1:])


def test_epochs_pass_over_all_rows_again_with_one_snapshot():
    batch = uneven_batch(LENGTHS)
    learner = Learner(tiny_llama(), recipe("grpo"), settings(updates_per_batch=2, epochs=2))
    before = Learner(tiny_llama(), recipe("grpo"), settings()).old_logprobs(batch)
    reports = learner.train_on(batch, seed=0, with_details=True)
    seen = [key for report in reports for key in report.details]
    assert len(reports) == 4 and sorted(seen) == sorted([row.key for row in batch.rows] * 2)
    for report in reports[2:]:
        for key, details in report.details.items():
            torch.testing.assert_close(details["logp_old"], before[key], atol=1e-5, rtol=0)


def test_what_stands_at_tool_tokens_changes_nothing():
    batch = uneven_batch(LENGTHS)
    old = old_of(batch)
    poisoned = {row.key: torch.where(row.loss_mask, old[row.key], float("nan")) for row in batch.rows}
    assert_same(update(batch=batch, old=old), update(batch=batch, old=poisoned), 0.0)


def test_long_and_short_rows_do_not_see_each_other():
    """Each row's log-probs are those it has alone, for every row of a pack of several buckets."""
    policy = Policy(tiny_llama(), packing="packed")
    rows = uneven_batch([60, 58, 30, 29, 11, 5]).rows
    layout = lay_out(rows, policy.device, packed=True)
    assert len(layout.buckets) == 4
    with torch.no_grad():
        together = policy(layout)[0]
        alone = torch.cat([policy(lay_out((row,), policy.device, packed=False))[0] for row in rows])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_a_sliding_window_is_kept_when_packed():
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        vocab_size=97, sliding_window=4, initializer_range=0.2,
    )  # fmt: skip
    model = MistralForCausalLM(config)
    policy = Policy(model, packing="packed")
    rows = uneven_batch([30, 28, 12]).rows
    with torch.no_grad():
        packed = policy(lay_out(rows, policy.device, packed=True))[0]
        alone = torch.cat([policy(lay_out((row,), policy.device, packed=False))[0] for row in rows])
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=0)


def test_bf16_autocast_keeps_float32_weights_and_stays_near():
    batch = uneven_batch(LENGTHS)
    learner = Learner(tiny_llama(), recipe(), settings(autocast="bfloat16"))
    report, found = gradients(learner, batch)
    exact, _ = update(batch=batch)
    assert report.loss == pytest.approx(exact.loss, abs=0.05)
    assert {g.dtype for g in found.values()} == {torch.float32}
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}
    assert report.diagnostics["ratio_mean"] == 1.0
