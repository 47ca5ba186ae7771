"""pass@k, maj@k and intervals against slow references."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.evaluation.estimates import majority, majority_at_k, pass_at_k, ratio_estimate


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
@settings(deadline=None, max_examples=150)
def test_pass_at_k_is_the_mean_over_all_subsets(correct, data):
    k = data.draw(st.integers(1, len(correct)))
    subsets = list(itertools.combinations(correct, k))
    expected = sum(any(s) for s in subsets) / len(subsets)
    assert pass_at_k(len(correct), sum(correct), k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_does_not_overflow():
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 5, 1), (4, 1, 0), (4, -1, 1)])
def test_pass_at_k_refuses_what_does_not_exist(n, c, k):
    with pytest.raises(ValueError, match="does not exist"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize(
    ("votes", "correct", "value"),
    [
        (["a", "a", "b"], [False, False, True], 0.0),
        (["a", "b", "c"], [False, True, True], 1.0),  # two spellings of the right answer are one vote
        (["a", "b"], [False, True], 0.5),
        ([None, None, "b"], [False, False, True], 1.0),
        ([None, None], [False, False], 0.0),
        ([], [], 0.0),
    ],
)
def test_majority(votes, correct, value):
    assert majority(votes, correct) == value


@given(st.lists(st.sampled_from(["r", "x", "y", None]), min_size=1, max_size=7), st.data())
@settings(deadline=None, max_examples=80)
def test_majority_at_k_is_the_mean_over_all_subsets(votes, data):
    k = data.draw(st.integers(1, len(votes)))
    right = [v == "r" for v in votes]
    subsets = list(itertools.combinations(range(len(votes)), k))
    expected = sum(majority([votes[i] for i in s], [right[i] for i in s]) for s in subsets) / len(subsets)
    assert majority_at_k(votes, right, k) == pytest.approx(expected)


def test_majority_over_drawn_subsets_is_near_the_whole_mean():
    votes = ["r"] * 12 + ["x"] * 8
    right = [v == "r" for v in votes]
    value = majority_at_k(votes, right, 5, seed=1)
    assert value == majority_at_k(votes, right, 5, seed=1)
    assert abs(value - 0.71) < 0.12  # hypergeometric: P(at least 3 of 5 right) = 0.7038


def test_ratio_is_of_sums_and_not_a_mean_of_ratios():
    estimate = ratio_estimate([1, 0], [1, 9])
    assert estimate is not None and estimate.value == pytest.approx(0.1)


def test_ratio_without_a_denominator_or_with_one_problem():
    assert ratio_estimate([0, 0], [0, 0]) is None
    assert ratio_estimate([], []) is None
    one = ratio_estimate([1], [2])
    assert one is not None and (one.value, one.low, one.high) == (0.5, None, None)


def test_interval_agrees_with_the_normal_one_on_many_problems():
    scores = np.random.default_rng(0).random(800) < 0.3
    estimate = ratio_estimate(scores, np.ones(800), resamples=4000)
    assert estimate is not None and estimate.low is not None and estimate.high is not None
    error = 1.96 * np.sqrt(scores.mean() * (1 - scores.mean()) / 800)
    assert estimate.low == pytest.approx(scores.mean() - error, abs=0.004)
    assert estimate.high == pytest.approx(scores.mean() + error, abs=0.004)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        draws = rng.binomial(8, 0.4, size=60) / 8
        estimate = ratio_estimate(draws, np.ones(60), confidence=0.9, resamples=400, seed=trial)
        covered += estimate.low <= 0.4 <= estimate.high
    assert 0.83 <= covered / 200 <= 0.96


def test_estimates_repeat_by_seed():
    assert ratio_estimate([1, 0, 1], [1, 1, 1], seed=3) == ratio_estimate([1, 0, 1], [1, 1, 1], seed=3)
