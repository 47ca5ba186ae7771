"""Reward terms beside the verdict are bounded, named, and off unless asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent_rl.rewards.settings import OverlongSettings, RewardSettings, ToolUseSettings
from agent_rl.rewards.shaping import overlong_penalty, reward_parts, tool_use_reward, verdict_reward
from agent_rl.types import Verdict, VerdictKind


def verdict(kind: str, answer: str | None = "5") -> Verdict:
    return Verdict(kind=VerdictKind(kind), reason="", answer=answer, gold="5", verifier="math/1")


def test_by_default_only_the_verdict_counts():
    for kind, reward in (("correct", 1.0), ("wrong", 0.0), ("undecided", 0.0)):
        parts = reward_parts(verdict(kind), RewardSettings(), tokens=10**6, calls_succeeded=3, calls_failed=3)
        assert sum(parts.values()) == reward
        assert parts["verdict"] == reward


def test_undecided_is_worth_what_a_wrong_answer_is():
    settings = RewardSettings(correct=2.0, wrong=-1.0)
    assert verdict_reward(verdict("correct"), settings) == 2.0
    assert verdict_reward(verdict("wrong"), settings) == verdict_reward(verdict("undecided"), settings) == -1.0


def test_overlong_penalty_at_the_published_corners():
    # DAPO: L_max = 20480, L_cache = 4096; no penalty up to 16384, -1 from 20480 on, linear between.
    settings = OverlongSettings(enabled=True, max_tokens=20480, buffer_tokens=4096)
    assert overlong_penalty(16384, settings) == 0.0
    assert overlong_penalty(16384 + 1024, settings) == -0.25
    assert overlong_penalty(20480, settings) == -1.0
    assert overlong_penalty(30000, settings) == -1.0
    assert overlong_penalty(30000, settings.model_copy(update={"enabled": False})) == 0.0


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_overlong_penalty_never_rises_with_length(a, b):
    settings = OverlongSettings(enabled=True, max_tokens=4096, buffer_tokens=1000, penalty=0.5)
    short, long = sorted((a, b))
    assert -0.5 <= overlong_penalty(long, settings) <= overlong_penalty(short, settings) <= 0.0


def test_tool_calls_are_rewarded_up_to_a_bound():
    settings = ToolUseSettings(success_bonus=0.1, failure_penalty=0.05, max_rewarded_calls=2)
    assert tool_use_reward(1, 0, False, settings) == pytest.approx(0.1)
    assert tool_use_reward(50, 0, False, settings) == pytest.approx(0.2)
    assert tool_use_reward(0, 50, False, settings) == pytest.approx(-0.1)
    assert tool_use_reward(5, 0, False, settings.model_copy(update={"only_if_correct": True})) == 0.0


def test_every_term_is_named_and_adds_up():
    settings = RewardSettings.model_validate(
        {
            "tool_call_bonus": 0.1,
            "format": {"answer_bonus": 0.2, "missing_answer_penalty": 0.3},
            "overlong": {"enabled": True, "max_tokens": 100, "buffer_tokens": 50},
        }
    )
    parts = reward_parts(verdict("correct"), settings, tokens=75, calls_succeeded=1)
    assert parts == pytest.approx({"verdict": 1.0, "format": 0.2, "tool_use": 0.1, "overlong": -0.5})
    parts = reward_parts(verdict("wrong", None), settings, tokens=10)
    assert parts == pytest.approx({"verdict": 0.0, "format": -0.3, "tool_use": 0.0, "overlong": 0.0})


def test_settings_that_contradict_themselves_are_refused():
    with pytest.raises(ValidationError, match="buffer_tokens = 20 is more than max_tokens = 10"):
        OverlongSettings(max_tokens=10, buffer_tokens=20)
    with pytest.raises(ValidationError, match="set the same thing"):
        RewardSettings.model_validate({"tool_call_bonus": 0.1, "tool_use": {"success_bonus": 0.2}})
