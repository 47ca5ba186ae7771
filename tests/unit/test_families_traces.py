"""Demonstrations: right ones end with the gold answer, flawed ones are flawed in the way they say."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from agent_rl.sft.execution import run_own_programs
from agent_rl.tasks.families import FAMILIES, items
from agent_rl.tasks.families.traces import Flaw, Trace, boxed, carry_out, plan, programs_of
from agent_rl.tir.fence import parse_turn

SHARES = {Flaw.MISTAKE: 0.2, Flaw.GUESS: 0.2, Flaw.VOID: 0.1, Flaw.SYNTAX: 0.1}


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    rng = random.Random("traces")
    plans = [plan(family, item, rng, SHARES) for family, item in items(None, 0, 2000)]
    outcomes = run_own_programs(programs_of(plans), deadline_s=60)
    return [carry_out(p, outcomes) for p in plans]


def answers(trace: Trace) -> bool:
    return trace.steps[-1].text == boxed(trace.problem.gold)


def test_flaws_come_in_their_shares(traces: list[Trace]) -> None:
    counts = Counter(t.flaw for t in traces)
    for flaw, share in (SHARES | {Flaw.NONE: 0.4}).items():
        assert abs(counts[flaw] / len(traces) - share) < 0.05


def test_right_demonstrations_use_the_tool_and_box_the_gold_answer(traces: list[Trace]) -> None:
    for trace in (t for t in traces if t.flaw is Flaw.NONE):
        assert answers(trace)
        assert len(trace.steps) == FAMILIES[trace.problem.source].calls + 1


def test_guesses_and_void_turns_run_nothing(traces: list[Trace]) -> None:
    for trace in (t for t in traces if t.flaw in (Flaw.GUESS, Flaw.VOID)):
        (step,) = trace.steps
        assert step.outcome is None and not answers(trace)
        assert ("\\boxed" in step.text) == (trace.flaw is Flaw.GUESS)


def test_syntax_flaws_do_not_compile_and_box_zero(traces: list[Trace]) -> None:
    for trace in (t for t in traces if t.flaw is Flaw.SYNTAX):
        first, last = trace.steps
        assert first.outcome is not None and first.outcome.status == "syntax_error"
        assert last.text == boxed("0")


def test_mistakes_are_nearly_always_wrong(traces: list[Trace]) -> None:
    wrong = [not answers(t) for t in traces if t.flaw is Flaw.MISTAKE]
    assert sum(wrong) > 0.9 * len(wrong)


def test_code_turns_are_read_back_as_the_program_that_ran(traces: list[Trace]) -> None:
    for trace in traces:
        for step in trace.steps:
            parsed = parse_turn(step.text)
            assert (parsed.code is not None) == (step.outcome is not None)
            assert step.outcome is None or step.text.endswith("\n```")


def test_shares_above_one_are_refused() -> None:
    family, item = items(["gcd"], 0, 1)[0]
    with pytest.raises(ValueError, match=r"add up to 1\.200"):
        plan(family, item, random.Random(0), {Flaw.GUESS: 0.7, Flaw.VOID: 0.5})
