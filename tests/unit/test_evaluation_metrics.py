"""Figures of a measurement from its trajectories, by hand-counted examples."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from agent_rl.evaluation.metrics import summarise, summarise_trajectories, vote_of
from agent_rl.evaluation.outcomes import outcome_of, trajectory_of
from agent_rl.evaluation.settings import EvaluationSettings
from agent_rl.records.recorder import record
from agent_rl.tir.settings import TirSettings
from agent_rl.types import (
    FinishReason,
    Origin,
    Problem,
    Segment,
    StopReason,
    ToolOutcome,
    ToolStatus,
    Trajectory,
    Turn,
    Verdict,
    VerdictKind,
)


def attempt(problem, sample, answer, kind=VerdictKind.WRONG, tools=(), finish=FinishReason.EOS, void=False, tokens=3):
    turns = [Turn("code", FinishReason.FENCE, code="1", outcome=ToolOutcome(status)) for status in tools]
    turns.append(Turn("end", finish, answer=answer, void=void))
    return Trajectory(
        Problem(problem, "q", "7", source="set", metadata={"level": 2}),
        sample,
        segments=[
            Segment(Origin.PROMPT, (1, 2)),
            Segment(Origin.MODEL, tuple(range(tokens)), (-0.5,) * tokens, (0,) * tokens),
        ],
        turns=turns,
        stop=StopReason.ANSWER if answer else StopReason.VOID,
        answer=answer,
        verdict=Verdict(kind, "", answer, "7", "math/1"),
    )


RIGHT = VerdictKind.CORRECT
TRAJECTORIES = [
    attempt("a", 0, "7", RIGHT, tools=[ToolStatus.OK]),
    attempt("a", 1, "7.0", RIGHT, tools=[ToolStatus.ERROR, ToolStatus.OK]),
    attempt("a", 2, "8"),
    attempt("a", 3, None, finish=FinishReason.LENGTH, void=True, tokens=9),
    attempt("b", 0, "8"),
    attempt("b", 1, "8.0"),
    attempt("b", 2, "7", RIGHT),
    attempt("b", 3, "9!!", VerdictKind.UNDECIDED, tools=[ToolStatus.TIMEOUT]),
]


def test_figures_by_hand():
    summary = summarise_trajectories("s", TRAJECTORIES, 4, pass_ks=[1, 2, 4])
    values = {name: e.value for name, e in summary.estimates.items()}
    assert values == pytest.approx(
        {
            "avg@4": (2 / 4 + 1 / 4) / 2,
            "pass@1": (2 / 4 + 1 / 4) / 2,
            "pass@2": ((1 - 1 / 6) + (1 - 3 / 6)) / 2,
            "pass@4": 1.0,
            "maj@4": (1.0 + 0.0) / 2,
            "mean_turns": (2 + 3 + 1 + 1 + 1 + 1 + 1 + 2) / 8,
            "mean_sampled_tokens": (7 * 3 + 9) / 8,
            "tool_call_rate": 3 / 8,
            "mean_tool_calls": 4 / 8,
            "tool_failure_rate": 2 / 4,
            "no_answer_rate": 1 / 8,
            "truncation_rate": 1 / 8,
            "void_rate": 1 / 8,
            "undecided_rate": 1 / 8,
        }
    )
    assert summary.complete and (summary.problems, summary.attempts, summary.failed) == (2, 8, 0)
    assert [(r.problem, r.correct, r.majority_answer, r.level) for r in summary.rows] == [
        ("a", 2, "7", "2"),
        ("b", 1, "8", "2"),
    ]


def test_failures_of_ours_are_no_wrong_answers():
    failed = Trajectory(Problem("b", "q", "7"), 3, stop=StopReason.FAILED, error="sandbox: gone")
    unjudged = attempt("a", 3, "7")
    unjudged.verdict = None
    summary = summarise_trajectories("s", [*TRAJECTORIES[:3], unjudged, *TRAJECTORIES[4:7], failed], 4, pass_ks=[2, 4])
    assert summary.estimates["avg@4"].value == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert "pass@4" not in summary.estimates and "maj@4" not in summary.estimates
    assert summary.estimates["pass@2"].problems == 2
    assert (summary.failed, summary.attempts, summary.complete) == (2, 6, False)


def test_problems_that_never_ran_leave_no_figure():
    failed = Trajectory(Problem("b", "q", "7"), 0, stop=StopReason.DEADLINE)
    summary = summarise("s", [outcome_of(failed)], 1)
    assert summary.estimates == {}
    assert summary.rows[0].rate is None and not summary.complete


def test_tool_failure_rate_needs_calls():
    assert "tool_failure_rate" not in summarise_trajectories("s", [attempt("a", 0, "7", RIGHT)], 1).estimates


@pytest.mark.parametrize("trajectory", TRAJECTORIES)
def test_records_give_back_their_trajectory(trajectory):
    import json

    assert trajectory_of(json.loads(json.dumps(record(trajectory, set="s")))) == trajectory


def test_equal_numbers_are_one_vote_and_huge_ones_are_not_built():
    assert vote_of("0.5") == vote_of(" 1/2 ") == vote_of("$0.50$")
    assert vote_of("x + 1") == vote_of("x+1") != vote_of("x-1")
    assert vote_of("1e999999999") == "1e999999999"
    assert vote_of("1/0") == "1/0" and vote_of("nan") == "nan" and vote_of(None) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples": 4, "pass_at": [8]}, "pass@k needs k <= samples"),
        ({"samples": 4, "temperature": 0}, "equal"),
        ({"data": {"a/b": {"families": []}}}, "names a folder"),
        ({"data": {"aime24": {"families": []}}, "benchmarks": ["aime24"]}, "both name aime24"),
        ({"top_p": 0}, "top_p"),
    ],
)
def test_settings_that_do_not_fit_together(fields, message):
    with pytest.raises(ValidationError, match=message):
        EvaluationSettings(**fields)


def test_own_limits_replace_those_of_the_episode():
    tir = TirSettings(max_turns=3, max_turn_tokens=100, max_total_tokens=1000)
    settings = EvaluationSettings(max_turns=9, max_total_tokens=2000)
    changed = settings.episode(tir)
    assert (changed.max_turns, changed.max_turn_tokens, changed.max_total_tokens) == (9, 100, 2000)
    assert EvaluationSettings(samples=6).pass_ks == [1, 2, 4, 6]
    with pytest.raises(ValidationError, match="max_turn_tokens"):
        EvaluationSettings(max_total_tokens=50).episode(tir)
