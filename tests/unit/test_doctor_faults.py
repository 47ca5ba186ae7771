"""The doctor names the fault of each broken set-up, and only that."""

from __future__ import annotations

import pytest

from agent_rl.config import load
from agent_rl.doctor.examine import findings, fit, line, verdict
from agent_rl.doctor.findings import Level
from agent_rl.doctor.machine import check_disk, check_extras
from agent_rl.training.settings import RunConfig
from tests import broken_setups as setups

BROKEN = [
    (setups.nothing, ["tir.max_turn=5"], "configuration", "did you mean 'tir.max_turns'?"),
    (setups.nothing, ["learner.updates_per_batch=7"], "configuration", "cannot be cut into"),
    (setups.nothing, ["method.preset=ctpo_cpo"], "configuration", "ctpo_cppo"),
    (setups.nothing, ["learner.micro_batch_tokens=900000000"], "memory", "does not fit"),
    (setups.nothing, ["tir.max_total_tokens=5000"], "context", "the model's context 512"),
    (setups.nothing, ["model.eos_ids=[0]"], "turn ends", "closes a turn with '<|im_end|>' (2)"),
    (setups.nothing, ["model.path=./no/such/folder"], "model", "./no/such/folder"),
    (setups.no_model, [], "model", "no config.json"),
    (setups.small_embedding, [], "tokenizer", "the model's embedding 300"),
    (setups.lower_case, [], "tokenizer", "does not survive the tokenizer"),
    (setups.strip_history, [], "template", "rewrites earlier turns"),
    (setups.drop_template, [], "template", "no chat template"),
    (setups.one_character_control_token, [], "control tokens", "forges the control token"),
    (setups.broken_weights, [], "weights", "model.norm.weight"),
    (setups.unreadable_rows, [], "data", "train.jsonl"),
    (setups.no_data, [], "data", "train.jsonl"),
    (setups.few_problems, [], "data", "a step needs 4 different problems and the data has 3"),
    (setups.failing_golds, [], "gold answers", "fail their own verifier"),
    (setups.contaminated, ["data.on_overlap=warn"], "contamination", "3 training problems are evaluation problems"),
    (setups.long_prompts, [], "prompts", "leave no room for a turn"),
]


@pytest.mark.parametrize(
    ("breaks", "overrides", "check", "reason"), BROKEN, ids=[f"{b.__name__} {' '.join(o)}" for b, o, _, _ in BROKEN]
)
def test_the_fault_is_named(tmp_path, breaks, overrides, check, reason):
    config = setups.good(tmp_path)
    breaks(tmp_path)
    found = list(findings(config, overrides, skip=["sandbox"]))
    faults = [f for f in found if f.level is Level.FAULT]
    assert not fit(found)
    assert {f.check for f in faults} == {check}, [line(f) for f in faults]
    assert any(reason in f.sentence for f in faults), [line(f) for f in faults]


def test_a_good_set_up_has_no_complaint(tmp_path):
    found = list(findings(setups.good(tmp_path), skip=["sandbox"]))
    assert [line(f) for f in found if f.level is not Level.OK] == []
    assert fit(found)
    assert verdict(found) == "fit: nothing to complain about"


def test_pad_equal_to_eos_is_said_to_be_harmless_and_why(tmp_path):
    config = setups.good(tmp_path)
    setups.pad_is_eos(tmp_path)
    found = list(findings(config, skip=["sandbox", "weights", "gold answers"]))
    (said,) = [f for f in found if "pad = eos" in f.sentence]
    assert said.level is Level.OK
    assert "id != pad" in said.sentence


def test_several_ids_that_end_a_turn_are_listed(tmp_path):
    config = setups.good(tmp_path)
    found = list(findings(config, ["model.eos_ids=[0,2]"], skip=["sandbox", "weights", "gold answers"]))
    said = next(f for f in found if f.check == "turn ends")
    assert said.level is Level.OK
    assert "2 tokens end a turn" in said.sentence


def test_a_missing_extra_is_named_with_its_command(tmp_path):
    config = load(setups.good(tmp_path), ["learner.lora={rank: 4}", "trackers.mlflow=true"], model=RunConfig)
    found = check_extras(config, lambda module: module not in ("peft", "mlflow"))
    assert [(f.level, f.remedy) for f in found] == [
        (Level.FAULT, "pip install 'agent-rl[lora]'"),
        (Level.FAULT, "pip install 'agent-rl[trackers]'"),
    ]
    assert all(f.level is Level.OK for f in check_extras(config, lambda module: True))


def test_checkpoints_that_do_not_fit_the_disk_are_told(tmp_path):
    config = load(setups.good(tmp_path), model=RunConfig)
    (told,) = check_disk(config, parameters=10**15)
    assert told.level is Level.FAULT
    assert "keep_last" in told.remedy
    assert check_disk(config, parameters=1000)[0].level is Level.OK


def test_the_remedy_for_memory_names_changes_that_suffice(tmp_path):
    from agent_rl.doctor.memory import check_memory
    from agent_rl.training.plan import ModelShape, estimate_memory

    config = load(setups.good(tmp_path), ["learner.micro_batch_tokens=65536"], model=RunConfig)
    shape = ModelShape(parameters=500_000_000, layers=24, hidden=1024, kv_width=128, max_positions=4096)
    room = 10 << 30
    assert estimate_memory(config, shape).total > room
    (told,) = check_memory(config, shape, room, room)
    assert told.level is Level.FAULT
    assert told.remedy.startswith("learner.gradient_checkpointing = true; learner.micro_batch_tokens = 256 (then about")
    (tight,) = check_memory(config, shape, 200 << 30, room)
    assert tight.level is Level.WARNING


def test_what_rests_on_a_fault_is_not_checked_and_says_so(tmp_path):
    config = setups.good(tmp_path)
    setups.no_data(tmp_path)
    found = {f.check: f for f in findings(config, skip=["sandbox", "weights"])}
    assert found["gold answers"].sentence == "not checked, because of data"
    assert found["template"].level is Level.OK
