"""`agent-rl doctor` as it is typed: exit status, sandbox self-test, JSON."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from agent_rl.cli import app
from tests import broken_setups as setups


def doctor(*arguments: str):
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_a_good_set_up_is_fit_sandbox_included(tmp_path):
    done = doctor(str(setups.good(tmp_path)), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["fit"]
    assert {f["level"] for f in told["findings"]} == {"ok"}
    assert [f["check"] for f in told["findings"]][-1] == "sandbox"
    assert "stops one that never ends" in told["findings"][-1]["sentence"]


def test_a_tier_that_this_machine_does_not_reach_is_named():
    from agent_rl.doctor.sandbox import check_sandbox
    from agent_rl.rollout.settings import SandboxSettings

    (found,) = check_sandbox(SandboxSettings(min_tier="T4"))
    assert found.level == "fault"
    assert "T4" in found.sentence
    assert "min_tier" in found.remedy


def test_no_isolation_is_refused_unless_the_floor_says_so():
    from agent_rl.doctor.sandbox import check_sandbox
    from agent_rl.rollout.settings import SandboxSettings

    (refused,) = check_sandbox(SandboxSettings(backend="unsafe"))
    assert refused.level == "fault"
    assert "does not isolate" in refused.sentence
    (warned,) = check_sandbox(SandboxSettings(backend="unsafe", min_tier="T0"))
    assert warned.level == "warning"
    assert "WITHOUT isolation" in warned.sentence


def test_a_service_that_does_not_answer_is_named():
    from agent_rl.doctor.sandbox import check_sandbox
    from agent_rl.rollout.settings import SandboxSettings

    (found,) = check_sandbox(SandboxSettings(url="http://127.0.0.1:9"))
    assert found.level == "fault"
    assert "sandbox.url" in found.remedy


@pytest.mark.parametrize("override", ["tir.max_turn=5", "problems_per_step=100"])
def test_the_exit_status_says_that_a_set_up_is_not_fit(tmp_path, override):
    skipped = [x for name in ("sandbox", "weights", "gold answers") for x in ("--skip", name)]
    done = doctor(str(setups.good(tmp_path)), override, *skipped)
    assert done.exit_code == 1
    assert "\nnot fit: 1 fault" in "\n" + done.output
    assert "Traceback" not in done.output


def test_without_a_configuration_machine_and_sandbox_are_looked_at():
    done = doctor("--skip", "sandbox")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("ok       python: Python 3")
    assert done.output.rstrip().splitlines()[-1].startswith("fit")
