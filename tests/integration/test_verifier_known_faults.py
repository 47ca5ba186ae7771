"""Faults reported of other verifiers, each by kind and in both directions: the false accept and the false reject.

The numbers are issues of huggingface/Math-Verify, where not said otherwise.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from agent_rl.rewards.extraction import extract_answer
from agent_rl.rewards.settings import VerifierSettings
from agent_rl.rewards.verifier import VERSION, Verifier, verifier_name


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(VerifierSettings(wall_seconds=60.0, cpu_seconds=5.0)) as started:
        yield started


FAULTS = [
    # (fault, answer, gold, equal)
    ("14: tiny numbers are equal", "\\frac{1}{2004!}", "\\frac{1}{2006!}", False),
    ("14: tiny numbers are equal", "\\frac{1}{2006!}", "\\frac{1}{2005! \\cdot 2006}", True),
    ("14: tiny numbers are equal", "2^{-99}", "2^{-98}", False),
    ("14: tiny numbers are equal", "2^{-99}", "\\frac{1}{2^{99}}", True),
    ("14: tiny numbers are equal", "1 + 10^{-300}", "1", False),
    ("41: the unread rest is ignored", "4\\sqrt(2)", "4", False),
    ("41: the unread rest is ignored", "4\\sqrt(2)", "4\\sqrt{2}", True),
    ("60: plain-text equations are all 0", "y = 2*x + 1", "y = 3*x + 7", False),
    ("60: plain-text equations are all 0", "y = 2*x + 1", "y = 2x + 1", True),
    ("60: plain-text equations are all 0", "y = 2*x + 1", "0", False),
    ("10, 25, 71: inequality and interval depend on the order", "x<3", "(-\\infty,3)", True),
    ("10, 25, 71: inequality and interval depend on the order", "x<3", "(-\\infty,3]", False),
    ("10, 25, 71: inequality and interval depend on the order", "1<x<2", "(1,2)", True),
    ("76: a bold answer", "**42**", "42", True),
    ("76: a bold answer", "\\mathbf{42}", "42", True),
    ("76: a bold answer", "**42**", "43", False),
    ("26: equivalent equations of a line", "2x - y + 1 = 0", "y = 2x + 1", True),
    ("26: equivalent equations of a line", "2x - y - 1 = 0", "y = 2x + 1", False),
    ("a tuple is a set", "\\{1,2\\}", "(1,2)", False),
    ("a tuple is a set", "\\{2,1\\}", "\\{1,2\\}", True),
    ("a mixed number is its whole part", "2 2/3", "2", False),
    ("a mixed number is a product", "2 2/3", "\\frac{4}{3}", False),
    ("a mixed number is a product", "2 2/3", "\\frac{8}{3}", True),
    ("an upright e is dropped", "1 - 1/\\mathrm{e}", "1 + 1/\\mathrm{e}", False),
    ("an upright e is dropped", "1 - 1/\\mathrm{e}", "1", False),
    ("an upright e is dropped", "1 - 1/\\mathrm{e}", "1 - e^{-1}", True),
]


@pytest.mark.parametrize(("fault", "answer", "gold", "equal"), FAULTS)
def test_reported_fault(verifier, fault, answer, gold, equal):
    expected = "correct" if equal else "wrong"
    assert verifier.verify_sync(answer, gold).kind == expected
    assert verifier.verify_sync(gold, answer).kind == expected


def test_two_boxes_close_together_are_not_a_set(verifier):
    def judged(text: str) -> str:
        return verifier.verify_sync(extract_answer(text).answer, "3").kind

    assert judged("\\boxed{7}, \\boxed{3}") == "correct"
    assert judged("\\boxed{3}, \\boxed{7}") == "wrong"


def test_a_power_tower_ends_as_undecided(verifier):  # 65
    for tower in ("9^{9^{9^{9}}}", "2^{3^{4^{5^{6^{7}}}}}", "((9!)!)!"):
        assert verifier.verify_sync(tower, "7").kind == "undecided"
    assert verifier.verify_sync("2^{3^{2}}", "512").kind == "correct"


def test_deadlines_hold_outside_the_main_thread_and_in_event_loops():  # 50, 55; huggingface/trl 5281
    kinds: list[str] = []
    hang = "\\int_0^1 e^{\\sin(x^2)} \\cos(x^3) dx"
    with Verifier(VerifierSettings(wall_seconds=60, cpu_seconds=0.5)) as verifier:

        def ask() -> None:
            kinds.append(verifier.verify_sync(hang, "7").kind)
            kinds.append(asyncio.run(verifier.verify(hang, "7")).kind)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(timeout=120)
    assert kinds == ["undecided", "undecided"]


async def test_the_event_loop_is_free_while_answers_are_compared():  # volcengine/verl 6673
    async with Verifier(VerifierSettings(wall_seconds=60, cpu_seconds=1.0)) as verifier:
        hang = asyncio.create_task(verifier.verify("\\int_0^1 e^{\\sin(x^2)} \\cos(x^3) dx", "7"))
        turns = 0
        while not hang.done():
            await asyncio.sleep(0.01)
            turns += 1
        assert hang.result().kind == "undecided"
        assert turns >= 10


def test_what_cannot_be_decided_is_not_called_wrong(verifier):  # 40: exceptions swallowed into False
    verdict = verifier.verify_sync("\\sum_{k=1}^{\\infty} \\frac{1}{k^3+k+1}", "7")
    assert verdict.kind == "undecided" and not verdict.reason.startswith("not equal")


def test_every_record_can_name_the_rules_that_judged_it(verifier):  # simpleRL-reason 95, lm-evaluation-harness 3477
    assert verifier.verify_sync("5", "5").verifier == verifier_name("math") == f"math/{VERSION}"
