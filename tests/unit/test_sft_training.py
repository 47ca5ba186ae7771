"""Supervised training: schedule, batches, loss against a slow reference, and a run from nothing to a folder."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from agent_rl.sft import SftSettings, run
from agent_rl.sft.batches import batch_order, split_by_length, token_batch
from agent_rl.sft.sequences import TrainingSequence
from agent_rl.sft.train import learning_rate, step_batches, token_loss

SMALL: dict[str, Any] = {
    "families": {"count": 120},
    "shape": {"hidden": 32, "layers": 1, "heads": 1, "intermediate": 48, "positions": 512, "vocabulary": 320},
    "tir": {"instruction_role": "none"},
    "steps": 4,
    "batch_size": 8,
    "warmup_steps": 1,
    "max_tokens": 512,
    "threads": 1,
}


def quiet() -> Console:
    return Console(file=io.StringIO())


def test_the_learning_rate_rises_then_falls_to_its_share() -> None:
    settings = SftSettings(output="x", steps=101, warmup_steps=10, lr=1.0, final_lr_share=0.1)
    rates = [learning_rate(step, settings) for step in range(101)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == pytest.approx(1.0) and rates[10] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.1)
    falls = [a - b for a, b in itertools.pairwise(rates[10:])]
    assert falls == pytest.approx([0.9 / 90] * 90)


def test_batches_visit_every_sequence_before_any_twice_and_parts_are_alike_in_length() -> None:
    lengths = [10 + (i * 37) % 90 for i in range(640)]
    order = list(batch_order(640, 32, 40, seed=3))
    assert order == list(batch_order(640, 32, 40, seed=3)) != list(batch_order(640, 32, 40, seed=4))
    for epoch in (order[:20], order[20:]):
        assert sorted(itertools.chain(*epoch)) == list(range(640))
    for batch in order:
        parts = split_by_length(batch, lengths, 8)
        assert sorted(itertools.chain(*parts)) == sorted(batch)
        longest = [max(lengths[i] for i in part) for part in parts]
        assert longest == sorted(longest)
        assert all(top <= lengths[part[0]] for top, part in zip(longest, parts[1:], strict=False))


def test_the_first_steps_show_right_demonstrations_only() -> None:
    sequences = [TrainingSequence((1, 2), (False, True), flawed=i % 2 == 1) for i in range(64)]
    settings = SftSettings(output="x", steps=10, clean_steps=4, batch_size=16)
    shown = [[sequences[i].flawed for i in batch] for batch in step_batches(sequences, settings)]
    assert [len(batch) for batch in shown] == [16] * 10
    assert not any(itertools.chain(*shown[:4])) and sum(itertools.chain(*shown[4:8])) == 32
    with pytest.raises(ValueError, match="clean_steps = 4, but every"):
        next(step_batches([s for s in sequences if s.flawed], settings))


def test_the_loss_is_that_of_learnt_tokens_alone_whatever_the_padding() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    ).double()
    sequences = [
        TrainingSequence((3, 4, 5, 6, 7, 8), (False, False, True, True, False, True)),
        TrainingSequence((9, 10, 11), (False, True, True)),
        TrainingSequence((12, 13), (False, False)),
    ]
    batch = token_batch(sequences, pad=0)
    expected = 0.0
    for s in sequences:
        logits = model(input_ids=torch.tensor([s.ids])).logits[0].log_softmax(-1)
        for position in range(1, len(s.ids)):
            if s.mask[position]:
                expected -= logits[position - 1, s.ids[position]].item()
    assert batch.learnt == 5
    assert token_loss(model, batch, torch.device("cpu")).item() == pytest.approx(expected, rel=1e-5)


def test_a_run_from_nothing_leaves_a_folder_that_loads_with_its_recipe(tmp_path: Path) -> None:
    settings = SftSettings(output=str(tmp_path / "policy"), **SMALL)
    output = run(settings, quiet())
    model = AutoModelForCausalLM.from_pretrained(output)
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert len(tokenizer) == model.config.vocab_size == 320
    assert model.config.eos_token_id == tokenizer.eos_token_id != tokenizer.pad_token_id
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    recipe = json.loads((output / "recipe.json").read_text())
    assert SftSettings.model_validate(recipe["settings"]) == settings
    assert sum(recipe["demonstrations"][k] for k in ("none", "mistake", "guess", "void", "syntax")) == 120


def test_the_same_settings_give_the_same_weights(tmp_path: Path) -> None:
    folders = [run(SftSettings(output=str(tmp_path / name), **SMALL), quiet()) for name in ("a", "b")]
    first, second = ((f / "model.safetensors").read_bytes() for f in folders)
    assert first == second


def test_micro_batches_change_the_weights_by_rounding_only(tmp_path: Path) -> None:
    whole = run(SftSettings(output=str(tmp_path / "whole"), **SMALL), quiet())
    parts = run(SftSettings(output=str(tmp_path / "parts"), micro_batch_size=3, **SMALL), quiet())
    one, other = (AutoModelForCausalLM.from_pretrained(f).state_dict() for f in (whole, parts))
    assert all(torch.allclose(one[k], other[k], atol=2e-4) for k in one)


def test_a_model_goes_on_from_a_folder_with_jsonl_demonstrations(tmp_path: Path) -> None:
    start = run(SftSettings(output=str(tmp_path / "start"), **SMALL), quiet())
    rows = [
        {
            "question": f"What is {n} + 1?",
            "steps": [{"text": f"```python\nprint({n}+1)\n```", "observation": str(n + 1)}],
        }
        for n in range(20)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    more = {**SMALL, "source": "jsonl", "jsonl": {"path": str(path)}, "init": str(start), "lr": 1e-2}
    output = run(SftSettings(output=str(tmp_path / "more"), **more), quiet())
    before, after = (AutoModelForCausalLM.from_pretrained(f).state_dict() for f in (start, output))
    assert any(not torch.equal(before[k], after[k]) for k in before)


def test_a_folder_that_holds_something_is_kept_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite = true"):
        run(SftSettings(output=str(tmp_path), **SMALL), quiet())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"source": "jsonl"}, "needs the section jsonl"),
        ({"source": "jsonl", "jsonl": {"path": "x"}}, "needs init"),
        ({"steps": 5, "clean_steps": 6}, "exceeds steps"),
        ({"max_tokens": 4096}, r"shape\.positions"),
        ({"shape": {"hidden": 100, "heads": 3}}, "try hidden = 96"),
        ({"families": {"flaws": {"guess": 0.9, "void": 0.4}}}, "add up to"),
        ({"tir": {"format": "plain"}}, "chat template"),
        ({"stepz": 3}, "stepz"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_remedy(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SftSettings.model_validate({"output": "x", **wrong})
