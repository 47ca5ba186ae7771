"""Low-rank adapters: only they are trained, and merged weights say what weights with adapters say."""

from __future__ import annotations

import builtins

import pytest
import torch
from transformers import AutoModelForCausalLM

from agent_rl.learner.checkpoint import load, save
from agent_rl.learner.update import Learner
from tests.learner_cases import assert_close, recipe, settings, tiny_llama, uneven_batch

LORA = {"rank": 4, "alpha": 8.0}


@pytest.fixture
def learner():
    pytest.importorskip("peft", reason="peft is not installed (extra `lora`)")
    return Learner(tiny_llama(), recipe("grpo"), settings(lora=LORA))


def trained(learner, seed=0):
    for round_ in range(3):
        learner.train_on(uneven_batch([20] * 8, seed=seed), seed=round_)
    return learner


def test_adapters_change_nothing_before_the_first_update(learner):
    batch = uneven_batch([30, 20, 11])
    assert_close(learner.old_logprobs(batch), Learner(tiny_llama(), recipe(), settings()).old_logprobs(batch), 0.0)


def test_only_adapters_are_trained(learner):
    before = {name: p.clone() for name, p in learner.model.named_parameters()}
    trained(learner)
    changed = {name for name, p in learner.model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {name for name in before if ".lora_" in name}
    assert any("q_proj" in name for name in changed) and any("down_proj" in name for name in changed)
    assert not any("lm_head" in name or "embed" in name for name in changed)


def test_merged_weights_give_the_same_logprobs(learner):
    trained(learner)
    plain = tiny_llama()
    merged = dict(learner.full_state())
    assert merged.keys() == dict(plain.named_parameters()).keys()
    plain.load_state_dict(merged, strict=False)
    batch = uneven_batch([40, 12, 33, 9], seed=8)
    found = Learner(plain, recipe(), settings()).old_logprobs(batch)
    mine = learner.old_logprobs(batch)
    for key in found:  # 1e-6 of each log-prob, and of their mean: what float32 leaves after another order of sums
        torch.testing.assert_close(mine[key], found[key], rtol=1e-6, atol=2e-6)
    whole = [torch.cat([part[key] for key in sorted(part)]).mean() for part in (mine, found)]
    assert float(whole[0]) == pytest.approx(float(whole[1]), abs=1e-6)
    start = Learner(tiny_llama(), recipe(), settings()).old_logprobs(batch)
    assert max(float((found[key] - start[key]).abs().max()) for key in found) > 1e-2


def test_a_checkpoint_loads_merged_and_resumes_bit_for_bit(learner, tmp_path):
    trained(learner)
    path = save(tmp_path, 1, learner, None, {}, fingerprints={})
    merged = dict(learner.full_state())
    loaded = AutoModelForCausalLM.from_pretrained(path / "model", dtype=torch.float32)
    assert_close(dict(loaded.named_parameters()), merged, 0.0)

    other = Learner(tiny_llama(), recipe("grpo"), settings(lora=LORA))
    load(path, other, {})
    trained(learner, seed=1)
    trained(other, seed=1)
    assert_close(dict(other.full_state()), dict(learner.full_state()), 0.0)


def test_gradient_checkpointing_reaches_the_adapters(learner):
    other = Learner(tiny_llama(), recipe("grpo"), settings(lora=LORA, gradient_checkpointing=True))
    other.model.load_state_dict(learner.model.state_dict())
    trained(learner)
    trained(other)
    assert_close(dict(other.full_state()), dict(learner.full_state()), 1e-5)


def test_adapters_on_the_head_are_refused():
    pytest.importorskip("peft", reason="peft is not installed (extra `lora`)")
    with pytest.raises(ValueError, match="names the output head"):
        Learner(
            tiny_llama(tie_word_embeddings=False),
            recipe(),
            settings(lora={"target_modules": ("q_proj", "lm_head")}),
        )


def test_the_missing_package_is_named(monkeypatch):
    real = builtins.__import__

    def without_peft(name, *args, **kwargs):
        if name.partition(".")[0] == "peft":
            raise ImportError("No module named 'peft'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_peft)
    with pytest.raises(ImportError, match=r"pip install 'agent-rl\[lora\]'"):
        Learner(tiny_llama(), recipe(), settings(lora=LORA))
