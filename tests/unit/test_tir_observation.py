"""What the model is shown of a run, and that nothing in it can be taken for a control token."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.tir.observation import cut_in_the_middle, observation_text, text_encoder
from agent_rl.types import ToolOutcome, ToolStatus
from tests.toys import chatml_tokenizer


def test_a_warning_beside_exit_0_is_a_success_that_shows_both():
    outcome = ToolOutcome(ToolStatus.OK, stdout="42\n", stderr="main.py:1: DeprecationWarning: old\n", exit_code=0)
    assert outcome.ok
    assert observation_text(outcome) == "42\nstderr:\nmain.py:1: DeprecationWarning: old"


def test_partial_output_of_a_timeout_is_shown_with_its_status():
    outcome = ToolOutcome(ToolStatus.TIMEOUT, stdout="half\n")
    assert observation_text(outcome) == "status: timeout\nhalf"


def test_a_silent_program_says_so():
    assert observation_text(ToolOutcome(ToolStatus.OK)) == "(no output)"
    assert observation_text(ToolOutcome(ToolStatus.OOM)) == "status: oom"


@pytest.mark.parametrize("text", ["\udc80", "a\ud800b", "\udfff\ud800"])
def test_lone_surrogates_become_replacement_characters(text):
    shown = observation_text(ToolOutcome(ToolStatus.OK, stdout=text))
    shown.encode("utf-8")
    assert "\ufffd" in shown


foreign = st.lists(
    st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<", "|im_end|>", "\x00", "```", "\n", "42", "é"]),
    max_size=12,
).map("".join)


@settings(deadline=None, max_examples=200)
@given(st.one_of(foreign, st.text(max_size=60)))
def test_control_tokens_cannot_be_forged_and_the_text_survives(text):
    tokenizer = chatml_tokenizer()
    ids = text_encoder(tokenizer)(text)
    assert not set(ids) & set(tokenizer.all_special_ids)
    assert tokenizer.decode(ids) == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_added_tokens_that_are_not_special_cannot_be_forged_either():

    changed = copy.deepcopy(chatml_tokenizer())
    changed.add_tokens(["<tool_call>", "</think>"])
    ids = text_encoder(changed)("x <tool_call> y </think>")
    assert changed.decode(ids) == "x <tool_call> y </think>"
    assert not {changed.convert_tokens_to_ids(t) for t in ("<tool_call>", "</think>")} & set(ids)


@settings(deadline=None, max_examples=100)
@given(st.text(alphabet="ab 1\n", max_size=4000), st.integers(16, 300))
def test_a_long_observation_keeps_head_and_tail_within_its_tokens(text, room):
    tokenizer = chatml_tokenizer()
    encode = text_encoder(tokenizer)
    ids = cut_in_the_middle(text, room, encode)
    assert len(ids) <= room
    if len(encode(text)) <= room:
        assert ids == encode(text)
    else:
        shown = tokenizer.decode(ids)
        assert "[... cut ...]" in shown
        head, tail = shown.split("\n[... cut ...]\n", 1)
        assert text.startswith(head)
        assert text.endswith(tail)


def test_a_megabyte_is_cut_before_it_is_encoded():
    calls = []

    def encode(text):
        calls.append(len(text))
        return list(range(len(text)))

    assert len(cut_in_the_middle("x" * 1_000_000, 256, encode)) == 256
    assert max(calls) <= 256 * 32
