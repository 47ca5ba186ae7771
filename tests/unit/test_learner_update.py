"""What an update does at its edges: nothing to learn, gradients that are not finite, memory, penalties."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from agent_rl.learner.batch import TrainBatch
from agent_rl.learner.errors import LearnerOutOfMemory, TooManyNonfiniteUpdates
from agent_rl.learner.policy import Policy
from agent_rl.learner.update import Learner
from tests.learner_cases import gradients, recipe, settings, tiny_llama, uneven_batch


def weights(learner):
    return {name: p.detach().clone() for name, p in learner.model.named_parameters()}


def unchanged(learner, before):
    return all(torch.equal(p, before[name]) for name, p in learner.model.named_parameters())


def test_an_update_lowers_the_loss_it_is_given():
    batch = uneven_batch([20] * 8)
    learner = Learner(tiny_llama(), recipe("none"), settings())
    old = learner.old_logprobs(batch)
    losses = [learner.update(batch, old).loss for _ in range(5)]
    assert losses[-1] < losses[0] - 0.01


def test_a_batch_without_model_tokens_counts_no_update():
    rows = uneven_batch([9, 12]).rows
    masked = TrainBatch(tuple(replace(row, loss_mask=torch.zeros_like(row.loss_mask)) for row in rows))
    learner = Learner(tiny_llama(), recipe(), settings())
    before = weights(learner)
    for batch in (masked, TrainBatch(())):
        report = learner.update(batch)
        assert (report.loss, report.applied, report.nonfinite, report.model_tokens) == (0.0, False, False, 0)
    assert learner.updates == 0 and unchanged(learner, before)
    assert learner.train_on(TrainBatch(()), seed=0) == []


def test_a_row_without_model_tokens_changes_no_denominator():
    rows = uneven_batch([14, 20, 17]).rows
    empty = replace(rows[1], loss_mask=torch.zeros_like(rows[1].loss_mask))
    with_it = gradients(Learner(tiny_llama(), recipe(), settings()), TrainBatch((rows[0], empty, rows[2])))
    without = gradients(Learner(tiny_llama(), recipe(), settings()), TrainBatch((rows[0], rows[2])))
    assert with_it[0].loss == pytest.approx(without[0].loss, abs=1e-7)
    assert with_it[0].sequences == 2


def test_a_gradient_that_is_not_finite_is_skipped_counted_and_bounded():
    batch = uneven_batch([12, 14, 30])
    learner = Learner(tiny_llama(), recipe(), settings(max_nonfinite_updates=2))
    before = weights(learner)
    handle = learner.model.model.norm.register_forward_hook(lambda *_: _[-1] * float("nan"))
    for _ in range(2):
        report = learner.update(batch)
        assert report.nonfinite and not report.applied
        assert set(report.nonfinite_keys) == {row.key for row in batch.rows}
    assert learner.skipped == learner.skipped_in_row == 2 and learner.updates == 0
    with pytest.raises(TooManyNonfiniteUpdates, match=r"3 updates in a row.*p0#2 \(30 tokens\)"):
        learner.update(batch)
    handle.remove()
    assert unchanged(learner, before)
    assert learner.update(batch).applied and learner.skipped_in_row == 0 and learner.skipped == 3


def test_an_infinite_gradient_under_a_finite_loss_is_skipped():
    learner = Learner(tiny_llama(), recipe(), settings())
    before = weights(learner)
    learner.model.model.norm.weight.register_hook(lambda grad: grad * float("inf"))
    report = learner.update(uneven_batch([12, 14]))
    assert report.nonfinite and report.loss == report.loss and unchanged(learner, before)


class Greedy(nn.Module):
    """Asks for more memory than there is as soon as it is given more than `room` tokens."""

    def __init__(self, inner: nn.Module, room: int):
        super().__init__()
        self.inner, self.room = inner, room

    def forward(self, states, *args, **kwargs):
        if states.shape[0] * states.shape[1] > self.room:
            torch.empty(2**60, dtype=torch.float32)
        return self.inner(states, *args, **kwargs)


@pytest.mark.parametrize(
    ("lengths", "advice"),
    [([30, 40], "turn down learner.micro_batch_tokens"), ([70], "one trajectory alone is too long")],
)
def test_running_out_of_memory_names_the_rows_and_what_to_turn_down(lengths, advice):
    learner = Learner(tiny_llama(), recipe(), settings())
    learner.model.model.layers[1].mlp = Greedy(learner.model.model.layers[1].mlp, room=50)
    with pytest.raises(LearnerOutOfMemory, match=advice) as caught:
        learner.update(uneven_batch(lengths))
    assert f"({max(lengths)} tokens)" in str(caught.value) and "gradient_checkpointing" in str(caught.value)
    assert learner.update(uneven_batch([20, 20])).applied


def test_another_fault_of_the_model_is_not_called_a_lack_of_memory():
    learner = Learner(tiny_llama(), recipe(), settings())
    with pytest.raises(IndexError):
        learner.update(uneven_batch([12], vocabulary=10**6))


def test_a_reference_penalty_pulls_towards_the_start():
    chosen = recipe("grpo", reference_kl={"beta": 0.5})
    batch = uneven_batch([20] * 8)
    learner = Learner(tiny_llama(), chosen, settings())
    first = learner.train_on(batch, seed=0)[0]
    second = learner.train_on(batch, seed=0)[0]
    assert first.diagnostics["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    assert second.diagnostics["reference_kl"] > 1e-4
    assert not any(p.requires_grad for p in learner.reference.parameters())


def test_the_reference_can_be_another_model():
    learner = Learner(
        tiny_llama(), recipe("grpo", reference_kl={"beta": 0.5}), settings(), reference=tiny_llama(seed=1)
    )
    batch = uneven_batch([20] * 4)
    other = Learner(tiny_llama(seed=1), recipe("grpo"), settings()).old_logprobs(batch)
    found = learner.reference_logprobs(batch)
    assert all(torch.equal(found[key], other[key]) for key in other)


def test_reference_logprobs_without_a_reference_are_refused():
    with pytest.raises(ValueError, match="there is no reference model"):
        Learner(tiny_llama(), recipe("grpo"), settings()).reference_logprobs(uneven_batch([9]))


def test_an_entropy_bonus_raises_entropy():
    batch = uneven_batch([20] * 8)
    learner = Learner(tiny_llama(), recipe("grpo", entropy={"coefficient": 100.0}), settings(entropy=False))
    entropies = [learner.update(batch).diagnostics["entropy"] for _ in range(4)]
    assert entropies == sorted(entropies) and entropies[-1] > entropies[0]


def test_temperature_is_that_of_the_sampler():
    batch = uneven_batch([16])
    model, row = tiny_llama(), batch.rows[0]
    found = Learner(model, recipe(), settings(), temperature=0.7).old_logprobs(batch)[row.key]
    logp = (model(input_ids=row.ids[None]).logits[0, :-1] / 0.7).log_softmax(-1)
    expected = logp.gather(1, row.ids[1:, None]).squeeze(1)
    torch.testing.assert_close(found[1:][row.loss_mask[1:]], expected[row.loss_mask[1:]].detach(), atol=1e-5, rtol=0)
    assert (found[~row.loss_mask] == 0).all()


def test_a_missing_snapshot_is_named():
    learner = Learner(tiny_llama(), recipe(), settings())
    with pytest.raises(ValueError, match="no log-probs were given for row 'p0#0'"):
        learner.update(uneven_batch([9]), {})


def test_weights_that_are_not_float32_are_refused():
    with pytest.raises(ValueError, match="load them in float32"):
        Learner(tiny_llama().bfloat16(), recipe(), settings())


def test_a_head_with_more_to_it_is_refused_by_name():
    model = tiny_llama()
    model.lm_head.register_forward_hook(lambda *found: found[-1] * 2.0)
    with pytest.raises(ValueError, match="LlamaForCausalLM: log-probs from its hidden states differ from its own"):
        Policy(model)


def test_heads_that_scale_or_cap_their_logits_are_known():
    from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM

    shape = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=97,
                 intermediate_size=48, initializer_range=0.3)  # fmt: skip
    torch.manual_seed(0)
    cohere = Policy(CohereForCausalLM(CohereConfig(**shape, logit_scale=0.0625)))
    assert cohere.head.scale == 0.0625
    gemma = Policy(Gemma2ForCausalLM(Gemma2Config(**shape, head_dim=8, final_logit_softcapping=2.0)))
    assert gemma.head.softcap == 2.0


def test_attention_that_cannot_be_packed_is_padded_or_refused():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                          vocab_size=97, intermediate_size=48, head_dim=8)  # fmt: skip
    policy = Policy(Gemma2ForCausalLM(config))
    assert not policy.packed and "softcap" in policy.packing_reason
    with pytest.raises(ValueError, match=r"learner\.packing=packed, but Gemma2ForCausalLM cannot be packed"):
        Policy(Gemma2ForCausalLM(config), packing="packed")


def test_generation_still_works_with_the_packed_attention():
    model = tiny_llama()
    ids = torch.arange(5)[None]
    before = model.generate(ids, max_new_tokens=6, do_sample=False)
    assert Policy(model, packing="packed").packed
    assert torch.equal(model.generate(ids, max_new_tokens=6, do_sample=False), before)


def scaled_gradient(logp, logp_old, logp_mu, advantage, mask, segments, settings):
    """A loss function of one's own."""
    loss = -settings.options["scale"] * advantage * (logp - logp_old).exp()
    return torch.where(mask, loss, 0.0), {"negative": ((advantage < 0) & mask).sum()}


def test_a_loss_function_of_ones_own_is_given_plain_tensors_and_its_sums_add_up():
    batch = uneven_batch([20] * 8)
    own = recipe(f"{__name__}:scaled_gradient", options={"scale": 2.0}, aggregation={"mode": "token_mean"})
    learner = Learner(tiny_llama(), own, settings(micro_batch_tokens=50))
    report = learner.update(batch, with_details=True)
    assert report.passes == 4
    negative = sum(row.model_tokens for row in batch.rows if row.advantage < 0)
    assert report.diagnostics == {"negative": negative}
    plain = Learner(tiny_llama(), recipe("none", aggregation={"mode": "token_mean"}), settings()).update(batch)
    assert report.loss == pytest.approx(2 * plain.loss, abs=1e-6)
    assert set(report.details["p0#0"]) == {"logp", "logp_old", "logp_mu", "entropy"}
