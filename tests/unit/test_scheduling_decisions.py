"""Which groups start, are waited for, trained on and given up; on a clock that the tests move."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.scheduling.schedule import Schedule
from agent_rl.scheduling.settings import AsyncSettings


def schedule(batch: int = 4, samples: int = 1, **rules) -> Schedule:
    options = {name: rules.pop(name) for name in ("max_attempts", "replacements", "steps") if name in rules}
    return Schedule(AsyncSettings(**rules), batch=batch, samples=samples, **{"max_attempts": 1000, **options})


def start(plan: Schedule, served: int, now: float = 0.0) -> list[int]:
    """Start all that may start."""
    return [plan.start(f"p{plan.counters.started}", served, now).ticket for _ in range(plan.room(served))]


def finish(plan: Schedule, *tickets: int, version: int | None = None, dead: bool = False, now: float = 1.0) -> None:
    for ticket in tickets:
        group = plan.groups[ticket]
        oldest = group.version if version is None else version
        for sample in range(group.samples):
            if sample not in group.ended:
                plan.end(ticket, sample, oldest, now)
        plan.judge(ticket, dead=dead)


def test_as_many_groups_start_as_the_batches_within_reach_hold():
    plan = schedule(batch=4, max_staleness=2)
    assert len(start(plan, served=0)) == 12
    assert plan.room(0) == 0


def test_without_staleness_nothing_starts_while_the_learner_works():
    plan = schedule(batch=4, max_staleness=0)
    tickets = start(plan, served=0)
    finish(plan, *tickets)
    assert plan.take().batch == tuple(tickets)
    assert plan.room(served=0) == 0
    assert plan.room(served=1) == 4


def test_nothing_starts_that_no_step_of_the_run_would_train_on():
    plan = schedule(batch=4, max_staleness=3, steps=2)
    assert len(start(plan, served=0)) == 8


def test_attempts_in_flight_are_bounded_and_a_group_larger_than_the_bound_plays_alone():
    plan = schedule(batch=4, samples=3, max_staleness=5, max_attempts=7)
    assert len(start(plan, served=0)) == 2
    alone = schedule(batch=4, samples=8, max_staleness=5, max_attempts=3)
    assert len(start(alone, served=0)) == 1


def test_a_full_buffer_stops_new_groups():
    plan = schedule(batch=4, max_staleness=3, max_buffered=5)
    tickets = start(plan, served=0)
    finish(plan, *tickets[:5])
    plan.take()
    assert plan.ready == 1 and plan.room(served=0) == 0 + plan.batch * 3 - 12
    finish(plan, *tickets[5:9])
    assert plan.ready == 5 and plan.room(served=1) == 0


def test_a_batch_waits_for_the_groups_that_are_due_although_later_ones_are_finished():
    plan = schedule(batch=4, max_staleness=1)
    first = start(plan, served=0)
    finish(plan, *first[:4])
    plan.take()
    later = start(plan, served=1)
    finish(plan, *later)
    assert len(later) == 4 and plan.ready == 4
    assert not plan.complete(0.0), "the other half of the first groups can be in no batch after this one"
    finish(plan, *first[4:])
    assert plan.complete(0.0) and plan.take().batch == tuple(first[4:])


def test_a_batch_looks_ahead_to_groups_that_would_not_all_fit_later():
    plan = schedule(batch=4, max_staleness=2)
    first = start(plan, served=0)
    finish(plan, *first[:4])
    plan.take()
    later = start(plan, served=1)
    finish(plan, *later)
    assert not plan.complete(0.0), "eight groups of version 0 remain for the two batches that may have them"
    finish(plan, *first[4:7])
    assert not plan.complete(0.0)
    finish(plan, first[7])
    assert plan.take().batch == tuple(first[4:8])


def test_over_sampling_completes_a_batch_early_and_gives_up_the_rest_that_gets_too_old():
    plan = schedule(batch=4, max_staleness=0, oversample=1.5)
    tickets = start(plan, served=0)
    assert len(tickets) == 6
    finish(plan, *tickets[1:4])
    assert not plan.complete(0.0)
    finish(plan, tickets[5])
    assert plan.complete(0.0)
    taken = plan.take()
    assert taken.batch == (1, 2, 3, 5) and taken.cancelled == (0, 4)
    assert plan.counters.stale_cancelled == 2 and not plan.groups


def test_surplus_that_is_fresh_enough_goes_on_or_is_cancelled_by_setting():
    for rule, left in (("keep", 2), ("cancel", 0)):
        plan = schedule(batch=4, max_staleness=1, oversample=1.5, surplus=rule, steps=2)
        tickets = start(plan, served=0)
        finish(plan, *tickets[2:])
        taken = plan.take()
        assert len(taken.cancelled) == 2 - left
        assert sum(group.running > 0 for group in plan.groups.values()) == left
        assert plan.counters.surplus_cancelled == 2 - left


def test_no_surplus_is_started_while_a_whole_batch_is_ready():
    plan = schedule(batch=4, max_staleness=1, oversample=2.0)
    tickets = start(plan, served=0)
    assert len(tickets) == 12
    finish(plan, *tickets[:8])
    plan.take()
    assert plan.ready == 4 and plan.room(served=1) == 0
    assert len(plan.take().cancelled) == 4
    assert plan.room(served=2) == 12


def test_dead_groups_are_replaced_up_to_a_bound_and_come_with_the_batch():
    plan = schedule(batch=2, max_staleness=0, replacements=2)
    first = start(plan, served=0)
    finish(plan, *first, dead=True)
    assert plan.ready == 0 and plan.room(served=0) == 2
    second = start(plan, served=0)
    finish(plan, *second, dead=True)
    taken = plan.take()
    assert taken.dead == tuple(first) and taken.batch == tuple(second)
    assert plan.counters.dead_replaced == 2
    plan.trained()
    assert plan.counters.trained == 2 and not plan.problems()


def test_stragglers_are_named_once_most_of_their_group_has_waited():
    plan = schedule(batch=1, samples=4, straggler_s=10.0)
    (ticket, *_) = start(plan, served=0)
    for sample, now in ((0, 1.0), (1, 2.0)):
        plan.end(ticket, sample, 0, now)
    assert plan.next_straggler() is None
    plan.end(ticket, 2, 0, 5.0)
    assert plan.next_straggler() == 15.0
    assert plan.stragglers(14.9) == []
    assert plan.stragglers(15.0) == [(ticket, 3)]


def test_a_step_that_waited_too_long_takes_what_is_finished():
    plan = schedule(batch=4, max_staleness=0, step_deadline_s=60.0)
    tickets = start(plan, served=0)
    assert not plan.complete(60.0), "there is nothing to take"
    finish(plan, tickets[0])
    assert not plan.complete(59.0) and plan.complete(60.0)
    taken = plan.take()
    assert taken.short and taken.batch == (tickets[0],) and taken.cancelled == tuple(tickets[1:])
    assert plan.counters.short_batches == 1


def test_an_attempt_ends_once():
    plan = schedule(batch=1, samples=2)
    (ticket, *_) = start(plan, served=0)
    plan.end(ticket, 0, 0, 1.0)
    with pytest.raises(ValueError, match="ended before"):
        plan.end(ticket, 0, 0, 1.0)
    with pytest.raises(ValueError, match="unknown"):
        plan.end(ticket, 2, 0, 1.0)


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no group is finished"):
        schedule().take()


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 5),
    staleness=st.integers(0, 4),
    oversample=st.sampled_from([1.0, 1.0, 1.3, 2.0]),
    surplus=st.sampled_from(["keep", "cancel"]),
    replacements=st.integers(0, 3),
)
def test_random_runs_keep_every_promise(seed, batch, staleness, oversample, surplus, replacements):
    """Whatever order things happen in: no batch is too old, nothing is used twice, and without over-sampling nothing
    that was started is ever given up, and the run never stands still."""
    rng, steps = random.Random(seed), 12
    plan = schedule(batch, 2, max_staleness=staleness, oversample=oversample, surplus=surplus,
                    replacements=replacements, steps=steps, max_attempts=rng.choice([4, 100]))  # fmt: skip
    served, learning, used, gone, happened = 0, False, [], set(), 0
    while plan.version < steps or learning:
        happened += 1
        assert happened < 20_000, "the run stands still"
        moves = ["start"] if plan.room(served) else []
        playing = [g for g in plan.groups.values() if g.running]
        moves += ["end"] * 2 if playing else []
        moves += ["learn"] if learning else ["resume"]
        if not learning and plan.complete(0.0):
            moves.append("take")
        assert moves != ["resume"], "nothing can happen any more"
        move = rng.choice(moves)
        if move == "start":
            plan.start(f"p{happened}", served, float(happened))
        elif move == "end":
            group = rng.choice(playing)
            sample = next(s for s in range(2) if s not in group.ended)
            if plan.end(group.ticket, sample, rng.randint(group.version, served), float(happened)):
                plan.judge(group.ticket, dead=rng.random() < 0.3)
        elif move == "take":
            oldest = {ticket: group.version for ticket, group in plan.groups.items()}
            taken = plan.take()
            learning = True
            assert len(taken.batch) == batch
            assert all(taken.version - oldest[ticket] <= staleness for ticket in taken.batch)
            used += taken.batch
            gone |= {*taken.dropped, *taken.cancelled}
            assert len(taken.dead) <= replacements
        elif move == "resume":
            if rng.random() < 0.1:
                plan = resumed(plan, served)
        else:
            plan.trained()
            served, learning = plan.version, False
    assert len(used) == len(set(used)) and not gone & set(used)
    assert plan.counters.trained == batch * steps
    if oversample == 1.0:
        assert not gone
    assert plan.counters.started == len(used) + len(gone) + plan.counters.dead_replaced + len(plan.groups)


def resumed(plan: Schedule, served: int) -> Schedule:
    """The same schedule in a new process that has found all attempts that ended."""
    again = Schedule(plan.rules, batch=plan.batch, samples=plan.samples, max_attempts=plan.max_attempts,
                     replacements=plan.replacements, steps=plan.steps, version=plan.version)  # fmt: skip
    saved = json.loads(json.dumps(plan.saved()))
    kept = {(group["ticket"], sample) for group in saved["groups"] for sample in group["ended"]}
    again.restore(saved, served, 0.0, kept)
    assert again.counters == plan.counters
    assert again.problems() == plan.problems() and again.ready == plan.ready
    return again
