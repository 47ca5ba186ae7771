"""Rows, mini-batches and micro-batches: what goes where, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from agent_rl.learner.batch import TrainBatch, assign, batch_from, microbatches, minibatches, row_from
from agent_rl.types import Origin, Problem, Segment, Trajectory
from tests.learner_cases import uneven_batch

LENGTHS = st.lists(st.integers(5, 60), min_size=1, max_size=30)


def trajectory(*segments: Segment, sample: int = 0) -> Trajectory:
    return Trajectory(Problem("p", "1+1", "2"), sample, list(segments))


PROMPT = Segment(Origin.PROMPT, (1, 2, 3))
MODEL = Segment(Origin.MODEL, (4, 5), (-0.5, -0.25), (7, 8))
TOOL = Segment(Origin.TOOL, (6,))


def test_a_row_keeps_every_token_and_its_origin():
    row = row_from(trajectory(PROMPT, MODEL, TOOL, MODEL), 1.5)
    assert row.key == "p#0" and row.group == "p" and row.advantage == 1.5
    assert row.ids.tolist() == [1, 2, 3, 4, 5, 6, 4, 5]
    assert row.loss_mask.tolist() == [False, False, False, True, True, False, True, True]
    assert row.logp_mu.tolist() == [0, 0, 0, -0.5, -0.25, 0, -0.5, -0.25]
    assert row.weight_versions.tolist() == [-1, -1, -1, 7, 8, -1, 7, 8]
    assert row.length == 8 and row.model_tokens == 4


@pytest.mark.parametrize(
    ("segments", "advantage", "message"),
    [
        ((), 1.0, "p#0.* has no tokens"),
        ((MODEL,), 1.0, "p#0.* starts with a sampled token"),
        ((PROMPT, Segment(Origin.MODEL, (4,), (float("nan"),), (0,))), 1.0, "log-prob of token 3 is nan"),
        ((PROMPT, MODEL), float("inf"), "advantage=inf"),
    ],
)
def test_a_row_that_cannot_be_trained_on_is_refused_by_name(segments, advantage, message):
    with pytest.raises(ValueError, match=message):
        row_from(trajectory(*segments), advantage)


def test_counts_of_a_batch():
    batch = batch_from([(trajectory(PROMPT, MODEL), 1.0), (trajectory(PROMPT, TOOL, sample=1), -1.0)])
    assert (len(batch), batch.tokens, batch.model_tokens, batch.sequences) == (2, 9, 2, 1)


def test_two_rows_of_one_name_are_refused():
    row = row_from(trajectory(PROMPT, MODEL), 1.0)
    with pytest.raises(ValueError, match="two rows are named 'p#0'"):
        TrainBatch((row, replace(row, advantage=2.0)))


@hypothesis_settings(deadline=None, max_examples=60)
@given(lengths=LENGTHS, updates=st.integers(1, 8), seed=st.integers(0, 100))
def test_minibatches_share_out_all_rows_evenly(lengths, updates, seed):
    batch = uneven_batch(lengths)
    parts = minibatches(batch, updates, seed)
    assert sorted(row.key for part in parts for row in part.rows) == sorted(row.key for row in batch.rows)
    assert len(parts) == min(updates, len(lengths))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    again = minibatches(batch, updates, seed)
    assert [[row.key for row in part.rows] for part in parts] == [[row.key for row in part.rows] for part in again]


def test_the_seed_orders_groups_and_keeps_each_together():
    batch = uneven_batch([9] * 32)
    orders = {tuple(row.group for part in minibatches(batch, 2, seed) for row in part.rows) for seed in range(5)}
    assert len(orders) > 1
    for order in orders:
        assert all(order[i : i + 4] == (order[i],) * 4 for i in range(0, 32, 4))


@hypothesis_settings(deadline=None, max_examples=60)
@given(lengths=LENGTHS, budget=st.integers(1, 200), padded=st.booleans())
def test_microbatches_hold_whole_rows_within_the_budget(lengths, budget, padded):
    batch = uneven_batch(lengths)
    passes = microbatches(batch.rows, budget, padded=padded)
    assert sorted(row.key for rows in passes for row in rows) == sorted(row.key for row in batch.rows)
    for rows in passes:
        cost = len(rows) * max(r.length for r in rows) if padded else sum(r.length for r in rows)
        assert cost <= budget or len(rows) == 1


def test_microbatches_are_evened_out():
    batch = uneven_batch([10] * 11)
    assert [len(rows) for rows in microbatches(batch.rows, 100, padded=False)] == [6, 5]


@hypothesis_settings(deadline=None, max_examples=40)
@given(lengths=LENGTHS, ranks=st.integers(1, 5), budget=st.integers(5, 100))
def test_each_pass_is_dealt_to_one_rank(lengths, ranks, budget):
    passes = microbatches(uneven_batch(lengths).rows, budget, padded=False)
    dealt = assign(passes, ranks)
    assert len(dealt) == ranks
    assert sorted(rows[0].key for mine in dealt for rows in mine) == sorted(rows[0].key for rows in passes)
    loads = [sum(row.length for rows in mine for row in rows) for mine in dealt]
    assert max(loads) - min(loads) <= max(sum(row.length for row in rows) for rows in passes)


def test_no_rows_give_no_minibatches():
    assert minibatches(TrainBatch(()), 4, 0) == []
    assert microbatches((), 100, padded=True) == []
    assert torch.tensor([len(mine) for mine in assign([], 3)]).sum() == 0
