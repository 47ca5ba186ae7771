"""Why a run is not learning: each number out of range is told, a healthy run gets no advice."""

from __future__ import annotations

import numpy as np
import pytest

from agent_rl.records.diagnose import diagnose, findings
from agent_rl.records.schema import Summary
from agent_rl.records.token_updates import Update
from tests.recordings import make_run

HEALTHY = Summary(
    split="train", step=1, problem="p", sample=0, source="a", stop="answer", verdict="correct", answer="1", gold="1",
    reward=1.0, advantage=1.0, filters=[], void=False, truncated=False, timed_out=False, failed=False, turns=2,
    tool_calls=1, tool_failures=0, length=50, sampled_tokens=30, seconds=1.0, shard="s", start=0, end=1, row=0,
)  # fmt: skip
METRICS = [{"step": 1, "policy/mismatch_mean": 0.0, "policy/entropy": 0.5, "learner/grad_norm": 1.0}]


def rows(**changes) -> list[Summary]:
    """Forty rows, of which half are changed."""
    return [HEALTHY._replace(problem=f"p{n}", source="abc"[n % 3], **(changes if n % 2 else {})) for n in range(40)]


def update(**changes) -> Update:
    n = 20
    tokens = {
        "logp": np.full(n, -1.0), "logp_old": np.full(n, -1.0), "log_ratio": np.zeros(n), "reason": np.ones(n),
        "position_weight": np.ones(n), "divergence": np.full(n, 0.001), "budget": np.full(n, 0.15),
    } | changes  # fmt: skip
    keys = ("a", "b", "c", "d")
    return Update(0, 0.1, 1.0, 1e-3, True, n, 4, keys, {}, dict.fromkeys(keys, 1.0), dict.fromkeys(keys, tokens))


def whats(*arguments) -> list[str]:
    return [finding.what for finding in findings(*arguments)]


def test_a_healthy_run_gets_no_advice():
    assert whats(METRICS, rows(), [[update()]]) == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"void": True}, "many void turns"),
        ({"truncated": True}, "many truncated turns"),
        ({"timed_out": True}, "programs time out"),
        ({"failed": True}, "failures that are ours, not the model's"),
        ({"verdict": "undecided"}, "the verifier cannot decide"),
        ({"stop": "context_full"}, "trajectories run out of context"),
        ({"stop": "max_turns"}, "trajectories use all their turns"),
        ({"tool_calls": 4, "tool_failures": 4}, "most tool calls fail"),
    ],
)
def test_shares_out_of_range_are_told(changes, what):
    assert what in whats(METRICS, rows(**changes), [])


def test_no_calls_no_reward_and_dead_groups_are_told():
    bad = [row._replace(tool_calls=0, reward=0.0, verdict="wrong", filters=["dead_group"]) for row in rows()]
    told = whats(METRICS, bad, [])
    assert "hardly any tool calls" in told and "hardly any reward" in told
    assert "all groups are dead: nothing can be learnt" in told


def test_reward_from_one_source_only_is_told():
    bad = [row._replace(verdict="correct" if row.source == "a" else "wrong") for row in rows() + rows()]
    assert "reward comes from one source only" in whats(METRICS, bad, [])


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("policy/mismatch_mean", -0.2, "sampler and trainer disagree about log-probs"),
        ("policy/clip_rate", 0.6, "most tokens are clipped"),
        ("policy/mask_rate", 0.6, "most tokens are gated"),
        ("policy/entropy", 0.001, "the policy has collapsed: it hardly varies its text"),
        ("learner/skipped_updates", 1.0, "updates were skipped: their gradient was not finite"),
        ("learner/grad_norm", 0.0, "the gradient is zero"),
    ],
)
def test_metrics_out_of_range_are_told(name, value, what):
    assert what in whats([{**METRICS[0], name: value}], rows(), [])


def test_a_first_ratio_that_is_not_one_is_told():
    assert whats(METRICS, rows(), [[update(logp=np.full(20, -1.1))]]) == ["the ratio is not 1 on the first mini-batch"]


def test_a_budget_that_is_spent_early_is_told_with_its_token():
    reason = np.where(np.arange(20) >= 6, 5, 1)
    (found,) = findings(METRICS, rows(), [[update(reason=reason)]])
    assert found.what == "the prefix budget is spent early" and "token 7" in found.number


def test_ratios_that_run_away_are_told():
    assert whats(METRICS, rows(), [[update(log_ratio=np.full(20, 3.0))]]) == ["ratios run away within a batch"]


def test_the_command_says_what_it_looked_at(tmp_path, capsys):
    run = make_run(tmp_path, steps=2)
    assert diagnose(run) in (0, 1)
    assert "steps 1 to 2" in capsys.readouterr().out
    assert diagnose(tmp_path / "nothing") == 2
