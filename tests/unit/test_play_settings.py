"""Settings of commands that play a policy: layers, defaults recorded beside the policy, interruption."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from agent_rl.config import ConfigError
from agent_rl.play.policy import find_policy, settings_for
from agent_rl.play.settings import PlaySettings


@pytest.fixture
def policy(tmp_path):
    """A model folder as a warm-up leaves it: the episode that it is meant for is recorded."""
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    recorded = {"settings": {"tir": {"instruction_role": "none", "max_turns": 3, "max_turn_tokens": 70}}}
    (folder / "recipe.json").write_text(json.dumps(recorded))
    return folder


def test_what_was_recorded_beside_the_policy_is_the_default(policy):
    settings, found = settings_for(PlaySettings, model=str(policy), config=None)
    assert settings.tir.instruction_role == "none"
    assert settings.tir.max_turns == 3
    assert settings.tir.max_total_tokens == 4096
    assert settings.model.path == str(policy)
    assert found.name == "policy"


def test_a_configuration_wins_over_it_options_over_that_and_overrides_over_all(policy, tmp_path):
    config = tmp_path / "own.yaml"
    config.write_text("threads: 1\ntir: {max_turns: 4, max_turn_tokens: 80}\n")
    settings, _ = settings_for(
        PlaySettings,
        model=str(policy),
        config=config,
        given={"tir": {"max_turn_tokens": 90}},
        overrides=["tir.max_observation_tokens=33"],
    )
    tir = settings.tir
    assert (tir.instruction_role, tir.max_turns, tir.max_turn_tokens, tir.max_observation_tokens) == ("none", 4, 90, 33)
    assert settings.threads == 1


def test_the_model_may_come_from_the_configuration_or_an_override(policy, tmp_path):
    config = tmp_path / "own.yaml"
    config.write_text(f"model: {{path: {policy}}}\n")
    for arguments in ({"config": config}, {"config": None, "overrides": [f"model.path={policy}"]}):
        settings, _ = settings_for(PlaySettings, model=None, **arguments)
        assert settings.model.path == str(policy)
        assert settings.tir.max_turns == 3
    with pytest.raises(ConfigError, match="given twice"):
        settings_for(PlaySettings, model=str(policy), config=None, overrides=["model.path=x"])


def test_a_damaged_record_is_named(policy):
    (policy / "recipe.json").write_text("{")
    with pytest.raises(ConfigError, match=r"recipe\.json, which was recorded beside the policy, cannot be read"):
        find_policy(str(policy))


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_work_and_gives_the_shells_status(name):
    from agent_rl.play.serve import INTERRUPTED, run_interruptibly

    ended: list[str] = []

    async def work() -> int:
        try:
            asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), name)
            await asyncio.sleep(60)
            return 0
        finally:
            ended.append("cleaned up")

    assert run_interruptibly(work()) == INTERRUPTED
    assert ended == ["cleaned up"]


def test_work_that_ends_gives_its_own_status():
    from agent_rl.play.serve import run_interruptibly

    async def work() -> int:
        return 7

    assert run_interruptibly(work()) == 7
