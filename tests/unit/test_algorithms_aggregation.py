"""Three ways to one number, with global counts and denominators of at least one."""

from __future__ import annotations

import pytest
import torch

from agent_rl.algorithms.aggregation import Counts, aggregate, count

LOSS = torch.tensor([1.0, 2.0, float("nan"), 3.0, 4.0, float("inf")])
MASK = torch.tensor([1, 1, 0, 1, 1, 0])
SEGMENTS = torch.tensor([0, 0, 0, 0, 1, 1])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("token_mean", 10 / 4), ("seq_mean_token_mean", (6 / 3 + 4) / 2), ("seq_mean_token_sum_norm", 10 / 8 / 2)],
)
def test_modes(mode, expected) -> None:
    counts = count(MASK, SEGMENTS, horizon=8)
    assert counts == Counts(4, 2, 8)
    assert float(aggregate(LOSS, MASK, SEGMENTS, mode, counts)) == pytest.approx(expected)


def test_global_counts_make_the_share_of_a_micro_batch() -> None:
    counts = Counts(4, 2, 8) + Counts(6, 1, 8)
    assert counts == Counts(10, 3, 8)
    assert float(aggregate(LOSS, MASK, SEGMENTS, "token_mean", counts)) == pytest.approx(1.0)
    assert float(aggregate(LOSS, MASK, SEGMENTS, "seq_mean_token_mean", counts)) == pytest.approx(2.0)


def test_a_trajectory_without_model_tokens_is_not_counted() -> None:
    assert count(torch.tensor([1, 0, 1, 0]), torch.tensor([0, 1, 2, 2])) == Counts(2, 2)


@pytest.mark.parametrize("mode", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"])
def test_no_model_token_gives_zero(mode) -> None:
    assert float(aggregate(LOSS, torch.zeros(6), SEGMENTS, mode, Counts(0, 0, 8))) == 0.0


def test_bad_modes_and_horizons_are_refused() -> None:
    with pytest.raises(ValueError, match="mode='mean'"):
        aggregate(LOSS, MASK, SEGMENTS, "mean", Counts(1, 1))
    with pytest.raises(ValueError, match="horizon"):
        aggregate(LOSS, MASK, SEGMENTS, "seq_mean_token_sum_norm", Counts(1, 1))
