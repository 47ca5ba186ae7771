"""Order, mixture and resumption: the same seed gives the same problems, from wherever a run goes on."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.tasks.problems import Problems, shares
from agent_rl.tasks.stream import ProblemStream
from agent_rl.types import Problem


def make(count, source="s", weights=None, other=0):
    items = [Problem(f"{source}/{i}", f"q{i}", "1", source=source) for i in range(count)]
    items += [Problem(f"t/{i}", f"r{i}", "1", source="t") for i in range(other)]
    return Problems(tuple(items), weights=weights)


def test_every_epoch_is_another_permutation():
    problems = make(50)
    orders = [problems.order(7, epoch) for epoch in range(3)]
    assert all(sorted(o) == list(range(50)) for o in orders)
    assert orders[0] != orders[1] != orders[2]
    assert problems.order(7, 1) == orders[1]
    assert problems.order(8, 0) != orders[0]


def test_order_is_pinned_across_versions():
    assert make(8).order(0, 0) == [2, 5, 7, 0, 4, 1, 6, 3]


@given(
    count=st.integers(1, 30),
    batch=st.integers(1, 30),
    seed=st.integers(0, 5),
    before=st.integers(0, 8),
    after=st.integers(1, 8),
)
@settings(deadline=None, max_examples=150)
def test_restored_stream_goes_on_as_if_nothing_had_happened(count, batch, seed, before, after):
    problems = make(count)
    if batch > count:
        with pytest.raises(ValueError, match=f"{batch} different problems"):
            ProblemStream(problems, batch, seed)
        return
    stream = ProblemStream(problems, batch, seed)
    for _ in range(before):
        stream.next_batch()
    state = json.loads(json.dumps(stream.state()))
    other = ProblemStream(problems, batch, seed)
    other.restore(state)
    assert [stream.next_batch() for _ in range(after)] == [other.next_batch() for _ in range(after)]
    assert other.state() == stream.state()


@given(count=st.integers(1, 24), batch=st.integers(1, 24), batches=st.integers(1, 12))
@settings(deadline=None, max_examples=150)
def test_batches_hold_different_problems_and_epochs_are_whole(count, batch, batches):
    if batch > count:
        return
    stream = ProblemStream(make(count), batch, 1)
    drawn: Counter[str] = Counter()
    for _ in range(batches):
        chosen = stream.next_batch()
        assert len({p.id for p in chosen}) == batch
        drawn.update(p.id for p in chosen)
        drawn_fresh = stream.epoch * count + stream.position
        assert drawn.total() + len(stream.state()["waiting"]) == drawn_fresh
        assert 0 <= stream.position < count
    per_problem = [drawn[f"s/{i}"] for i in range(count)]
    assert max(per_problem) <= stream.epoch + 1
    assert sum(per_problem) == batches * batch


def test_the_end_of_an_epoch_is_the_start_of_the_next():
    stream = ProblemStream(make(6), 3, 0)
    stream.next_batch()
    assert (stream.epoch, stream.position) == (0, 3)
    stream.next_batch()
    assert (stream.epoch, stream.position) == (1, 0)
    resumed = ProblemStream(make(6), 3, 0)
    resumed.restore(stream.state())
    order = make(6).order(0, 1)
    assert [p.id for p in resumed.next_batch()] == [f"s/{i}" for i in order[:3]]


def test_state_of_other_data_or_seed_is_refused():
    state = ProblemStream(make(6), 2, 0).state()
    with pytest.raises(ValueError, match="data changed"):
        ProblemStream(make(7), 2, 0).restore(state)
    with pytest.raises(ValueError, match="seed 0"):
        ProblemStream(make(6), 2, 1).restore(state)
    with pytest.raises(ValueError, match="outside an epoch"):
        ProblemStream(make(6), 2, 0).restore({**state, "position": 6})


def test_fingerprint_follows_the_content():
    one = make(3)
    assert one.fingerprint == make(3).fingerprint
    assert one.fingerprint != make(4).fingerprint
    changed = Problems((*one.items[:2], Problem("s/2", "q2", "2", source="s")))
    assert changed.fingerprint != one.fingerprint
    assert make(3, weights={"s": 1.0}).fingerprint != one.fingerprint


def test_repeated_ids_are_refused():
    with pytest.raises(ValueError, match="unique"):
        Problems((Problem("a", "q", "1"), Problem("a", "r", "1")))


@given(st.dictionaries(st.sampled_from("abcd"), st.floats(0.01, 10), min_size=1), st.integers(1, 200))
@settings(deadline=None, max_examples=100)
def test_shares_add_up_and_are_within_one_of_exact(weights, total):
    counts = shares(weights, total)
    assert sum(counts.values()) == total
    for source, weight in weights.items():
        assert abs(counts.get(source, 0) - total * weight / sum(weights.values())) < 1


def test_mixture_draws_by_weight_and_evenly_within_a_source():
    problems = make(30, other=10, weights={"s": 1.0, "t": 1.0})
    counts: Counter[int] = Counter()
    for epoch in range(6):
        order = problems.order(3, epoch)
        assert len(order) == 40
        assert sum(problems[i].source == "t" for i in order) == 20
        counts.update(order)
    assert {counts[i] for i in range(30)} == {4}
    assert {counts[i] for i in range(30, 40)} == {12}


@given(st.integers(0, 20))
@settings(deadline=None, max_examples=20)
def test_mixed_stream_keeps_its_promises_over_many_batches(seed):
    stream = ProblemStream(make(30, other=4, weights={"s": 1.0, "t": 1.0}), 8, seed)
    seen: Counter[str] = Counter()
    for _ in range(100):
        batch = stream.next_batch()
        assert len({p.id for p in batch}) == 8
        seen.update(p.source for p in batch)
    assert abs(seen["t"] - 400) <= 40


def test_mixture_that_cannot_fill_a_batch_is_refused():
    with pytest.raises(ValueError, match=r"needs about 8 problems of 't', which has 4"):
        ProblemStream(make(30, other=4, weights={"s": 1.0, "t": 1.0}), 16, 0)
    with pytest.raises(ValueError, match="no weight for t"):
        make(3, other=2, weights={"s": 1.0})
    with pytest.raises(ValueError, match="no problem of source u"):
        make(3, weights={"s": 1.0, "u": 1.0})


def test_a_refill_takes_other_problems_and_loses_none():
    stream = ProblemStream(make(12), 4, 0)
    first = stream.next_batch()
    more = stream.next_batch(3, apart_from={p.id for p in first})
    rest = [p for _ in range(2) for p in stream.next_batch()]
    assert len(more) == 3
    assert not {p.id for p in first} & {p.id for p in more}
    assert {p.id for p in (*first, *more, *rest)} == {f"s/{i}" for i in range(12)}


def test_a_refill_gives_what_there_is_when_too_few_are_allowed():
    stream = ProblemStream(make(5), 4, 0)
    first = stream.next_batch()
    assert len(stream.next_batch(4, apart_from={p.id for p in first})) == 1
    assert stream.next_batch(2, apart_from={f"s/{i}" for i in range(5)}) == []
    assert len(stream.next_batch()) == 4
