"""When a run that lost a part goes on from its last checkpoint, and when it stops."""

from __future__ import annotations

from agent_rl.training.recovery import Breaker, RecoverySettings


def breaker(attempts: int = 3) -> Breaker:
    return Breaker(RecoverySettings(attempts=attempts, wait_s=1.0))


def test_a_run_that_never_worked_is_not_tried_again():
    assert breaker().wait(finished=0, first=0) is None
    assert breaker().wait(finished=7, first=7) is None


def test_a_run_that_worked_goes_on_with_longer_and_longer_waits_until_the_breaker_trips():
    found = breaker()
    assert [found.wait(5, 0) for _ in range(4)] == [1.0, 2.0, 4.0, None]
    assert found.sentence("rank 1 is gone") == (
        "the run lost a part 4 times in a row without finishing a step (recovery.attempts = 3), so it stops; "
        "the last time: rank 1 is gone"
    )


def test_a_finished_step_closes_the_breaker_again():
    found = breaker(attempts=1)
    assert found.wait(5, 0) == 1.0
    assert found.wait(6, 0) == 1.0
    assert found.wait(6, 0) is None


def test_a_run_that_fell_back_to_its_checkpoint_has_made_no_progress():
    found = breaker(attempts=2)
    assert found.wait(9, 0) == 1.0
    assert found.wait(8, 0) == 2.0
    assert found.wait(8, 0) is None


def test_recovery_can_be_turned_off():
    found = breaker(attempts=0)
    assert found.wait(5, 0) is None
    assert found.sentence("gone") == "gone"
