"""Checkpoints on disk: what is in them, which one is found, which are kept, and which are refused."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_rl.learner.checkpoint import CheckpointError, load, newest_complete, retire, save
from agent_rl.learner.settings import CheckpointSettings
from agent_rl.learner.update import Learner
from tests.learner_cases import recipe, settings, tiny_llama, uneven_batch

PRINTS = {"data": "d1", "model": "m1"}


def learner(seed=0, model=None, **changes):
    changes = {"updates_per_batch": 2, **changes}
    return Learner(model or tiny_llama(seed), recipe(), settings(**changes), total_updates=50)


def put(directory, step, owner, **changes):
    return save(directory, step, owner, None, {"next": step}, **{"fingerprints": PRINTS, **changes})


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_resumed_learner_goes_on_bit_for_bit(tmp_path, schedule):
    optimizer = {"lr": 1e-3, "schedule": schedule, "warmup_updates": 3}
    first = learner(optimizer=optimizer)
    first.train_on(uneven_batch([20] * 8), seed=0)
    put(tmp_path, 1, first)
    expected = first.train_on(uneven_batch([15, 30] * 4, seed=1), seed=1)

    second = learner(seed=9, optimizer=optimizer)
    path, ignored = newest_complete(tmp_path)
    restored = load(path, second, PRINTS)
    assert ignored == [] and restored.step == 1 and restored.progress == {"next": 1}
    found = second.train_on(uneven_batch([15, 30] * 4, seed=1), seed=1)

    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.loss, mine.grad_norm, mine.lr, mine.update) == (
            theirs.loss,
            theirs.grad_norm,
            theirs.lr,
            theirs.update,
        )
        assert mine.diagnostics == theirs.diagnostics
    for (name, mine), (_, theirs) in zip(second.full_state(), first.full_state(), strict=True):
        assert torch.equal(mine, theirs), name


def test_random_number_states_come_back(tmp_path):
    owner = learner()
    path = put(tmp_path, 1, owner)
    expected = random.random(), np.random.rand(), torch.rand(3)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    load(path, owner, PRINTS)
    found = random.random(), np.random.rand(), torch.rand(3)
    assert found[:2] == expected[:2] and torch.equal(found[2], expected[2])


@pytest.mark.parametrize("tied", [True, False])
def test_the_model_folder_loads_with_transformers(tmp_path, tied):
    from tests.engine_models import byte_tokenizer

    owner = learner(model=tiny_llama(tie_word_embeddings=tied))
    owner.train_on(uneven_batch([20] * 4), seed=0)
    tokenizer = byte_tokenizer()
    path = save(tmp_path, 3, owner, tokenizer, {}, fingerprints=PRINTS)
    loaded = AutoModelForCausalLM.from_pretrained(path / "model", dtype=torch.float32)
    ids = torch.arange(9)[None]
    assert torch.equal(loaded(input_ids=ids).logits, owner.model(input_ids=ids).logits)
    assert AutoTokenizer.from_pretrained(path / "model").encode("1+1") == tokenizer.encode("1+1")
    assert type(loaded).__name__ == "LlamaForCausalLM" and loaded.config._attn_implementation == "sdpa"


def test_the_newest_whole_one_is_found_and_the_rest_explained(tmp_path):
    owner = learner()
    for step in (1, 2, 3, 4, 5, 6):
        put(tmp_path, step, owner)
    (tmp_path / "step-00000006" / "complete.json").unlink()
    (tmp_path / "step-00000005" / "complete.json").write_text("{")
    weights = tmp_path / "step-00000004" / "model" / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    (tmp_path / "step-00000003" / "optimizer.safetensors").unlink()
    (tmp_path / ".draft-step-00000007-abc").mkdir()
    (tmp_path / "notes").mkdir()

    path, ignored = newest_complete(tmp_path)
    assert path == tmp_path / "step-00000002"
    reasons = {found.path.name: found.reason for found in ignored}
    assert list(reasons)[1:] == ["step-00000006", "step-00000005", "step-00000004", "step-00000003"]
    assert "still being written" in reasons[".draft-step-00000007-abc"]
    assert "has no complete.json" in reasons["step-00000006"]
    assert "cannot be read" in reasons["step-00000005"]
    assert "model/model.safetensors has another SHA-256" in reasons["step-00000004"]
    assert "optimizer.safetensors is missing" in reasons["step-00000003"]
    with pytest.raises(CheckpointError, match="SHA-256"):
        load(tmp_path / "step-00000004", owner, PRINTS)


def test_a_folder_without_checkpoints_has_none(tmp_path):
    assert newest_complete(tmp_path) == (None, [])
    assert newest_complete(tmp_path / "missing") == (None, [])


@pytest.mark.parametrize(("schema", "word"), [(99, "a newer"), (0, "an older")])
def test_another_schema_is_named(tmp_path, schema, word):
    owner = learner()
    path = put(tmp_path, 1, owner)
    marker = json.loads((path / "complete.json").read_text())
    (path / "complete.json").write_text(json.dumps({**marker, "schema": schema}))
    with pytest.raises(CheckpointError, match=rf"written by {word} version \(schema {schema}; this one reads 1\)"):
        load(path, owner, PRINTS)


@pytest.mark.parametrize("changed", [{"data": "d2", "model": "m1"}, {"data": "d1"}, {**PRINTS, "sandbox": "s"}])
def test_a_changed_fingerprint_is_refused(tmp_path, changed):
    owner = learner()
    path = put(tmp_path, 1, owner)
    with pytest.raises(CheckpointError, match=r"was made with another (data|model|sandbox) \(fingerprint"):
        load(path, owner, changed)


def test_weights_of_another_shape_are_refused(tmp_path):
    path = put(tmp_path, 1, learner())
    with pytest.raises(CheckpointError, match=r"has shape \(32, 48\), the model's \(32, 64\)"):
        load(path, learner(model=tiny_llama(intermediate_size=64)), PRINTS)
    with pytest.raises(CheckpointError, match="lacks 9 of the model's weights"):
        load(path, learner(model=tiny_llama(num_hidden_layers=3)), PRINTS)
    with pytest.raises(CheckpointError, match="which the model does not have"):
        load(path, learner(model=tiny_llama(num_hidden_layers=1)), PRINTS)


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({"keep_last": 2}, [6, 7]),
        ({"keep_last": 1, "keep_every": 3}, [3, 6, 7]),
        ({"keep_last": 1, "keep_best": True}, [2, 7]),
        ({"keep_last": 9}, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_retention_keeps_the_last_the_regular_and_the_best(tmp_path, rule, kept):
    owner = learner()
    scores = {1: 0.1, 2: 0.9, 3: 0.2, 5: 0.8}
    for step in range(1, 8):
        put(tmp_path, step, owner, score=scores.get(step))
    removed = retire(tmp_path, CheckpointSettings(**{"keep_best": False, **rule}))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"step-{step:08d}" for step in kept]
    assert len(removed) == 7 - len(kept)


def test_saving_a_step_again_replaces_it_and_clears_leftovers(tmp_path):
    owner = learner()
    put(tmp_path, 1, owner)
    (tmp_path / ".draft-step-00000001-dead").mkdir()
    save(tmp_path, 1, owner, None, {"again": True}, fingerprints=PRINTS, retention=CheckpointSettings())
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert load(tmp_path / "step-00000001", owner, PRINTS).progress == {"again": True}
