"""Drawing tokens: the distribution, its log-probs, and the random stream."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from agent_rl.engines.base import Sampling
from agent_rl.engines.sampling import draw, draw_mixed, truncate
from agent_rl.engines.uniform import stream_start, uniform


def _draws(count: int, seed: int = 0) -> torch.Tensor:
    starts = np.full(count, stream_start(seed), dtype=np.uint64)
    return torch.from_numpy(uniform(starts, np.arange(count, dtype=np.uint64))[:, None])


def test_draws_of_one_stream_and_across_streams_are_uniform() -> None:
    index = np.arange(20_000, dtype=np.uint64)
    along = uniform(np.full(20_000, stream_start(3), dtype=np.uint64), index)
    seeds = np.array([stream_start(seed) for seed in range(20_000)], dtype=np.uint64)
    across = uniform(seeds, np.zeros(20_000, dtype=np.uint64))
    for numbers in (along, across):
        assert numbers.min() > 0 and numbers.max() < 1
        assert stats.kstest(numbers, "uniform").pvalue > 1e-4
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-(2**80), 2**80), st.integers(0, 10**6)), min_size=1, max_size=20))
def test_a_draw_depends_on_its_seed_and_index_alone(pairs: list[tuple[int, int]]) -> None:
    starts = np.array([stream_start(seed) for seed, _ in pairs], dtype=np.uint64)
    index = np.array([position for _, position in pairs], dtype=np.uint64)
    together = uniform(starts, index)
    alone = [uniform(starts[i : i + 1], index[i : i + 1])[0] for i in range(len(pairs))]
    assert together.tolist() == alone


def test_different_seeds_name_different_streams() -> None:
    seeds = [*range(-500, 500), 2**63, 2**64, 2**64 + 1, 2**100, -(2**64)]
    assert len({stream_start(seed) for seed in seeds}) == len(seeds)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -torch.inf, 0.5])
    count = 40_000
    ids, logprobs = draw(logits.expand(count, -1), Sampling(temperature), _draws(count))
    expected = (logits / temperature).softmax(-1).double().numpy()
    seen = np.bincount(ids.numpy(), minlength=6)
    assert seen[4] == 0
    kept = expected > 0
    assert stats.chisquare(seen[kept], expected[kept] / expected[kept].sum() * count).pvalue > 1e-4
    assert torch.allclose(logprobs, (logits / temperature).log_softmax(-1)[ids])


def test_tokens_too_rare_for_a_sum_in_float32_are_drawn() -> None:
    tail, share = 1_000_000, 0.01
    # Behind a token of 0.99 stand a million of 1e-8 each: added to 0.99 in float32, each is lost.
    logits = torch.zeros(tail + 1)
    logits[0] = math.log(tail * (1 - share) / share)
    places = torch.linspace(0.05, 0.95, 8, dtype=torch.float64)
    ids, logprobs = draw(logits.expand(8, -1), Sampling(1.0), (1 - share + share * places)[:, None])
    assert torch.allclose(ids.double() / tail, places, atol=0.01)
    assert torch.allclose(logprobs, torch.tensor(math.log(share / tail)), atol=1e-2)


def test_temperature_zero_is_greedy_with_the_logprobs_of_the_plain_softmax() -> None:
    logits = torch.randn(7, 33, generator=torch.Generator().manual_seed(0))
    ids, logprobs = draw(logits, Sampling(0.0), _draws(7))
    assert ids.tolist() == logits.argmax(-1).tolist()
    assert torch.equal(logprobs, logits.log_softmax(-1).max(-1).values)


def test_top_k_keeps_the_largest_and_renormalises() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    assert truncate(logits, 1.0, 2)[0].isfinite().tolist() == [False, True, False, True]
    ids, logprobs = draw(logits.expand(500, -1), Sampling(1.0, top_k=2), _draws(500))
    assert set(ids.tolist()) == {1, 3}
    expected = torch.tensor([3.0, 2.0]).log_softmax(-1)
    assert torch.allclose(logprobs[ids == 1], expected[0])
    assert torch.allclose(logprobs[ids == 3], expected[1])


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.0, [False, True, False, False]), (0.5, [False, True, False, False]), (0.7, [False, True, False, True])],
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(top_p: float, kept: list[bool]) -> None:
    logits = torch.tensor([[0.05, 0.6, 0.1, 0.25]]).log()
    assert truncate(logits, top_p, 0)[0].isfinite().tolist() == kept


def test_rows_of_different_settings_are_drawn_as_if_alone() -> None:
    logits = torch.randn(9, 20, generator=torch.Generator().manual_seed(1))
    kinds = [Sampling(0.0), Sampling(1.0), Sampling(0.7, top_p=0.8)]
    draws = _draws(9)
    ids, logprobs = draw_mixed(logits, [kinds[row % 3] for row in range(9)], draws)
    for row in range(9):
        alone = draw(logits[row : row + 1], kinds[row % 3], draws[row : row + 1])
        assert (ids[row], logprobs[row]) == (alone[0][0], alone[1][0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_show_in_the_logprob(bad: float, temperature: float) -> None:
    logits = torch.zeros(2, 5)
    logits[1, 3] = bad
    _, logprobs = draw(logits, Sampling(temperature), _draws(2))
    assert logprobs[0].isfinite() and not logprobs[1].isfinite()


@pytest.mark.parametrize("vocabulary", [1, 2, 640])
def test_the_largest_draw_still_names_a_token_of_the_vocabulary(vocabulary: int) -> None:
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(2))
    largest = torch.tensor([[(2**48 - 1 + 0.5) / 2**48]], dtype=torch.float64)
    ids, logprobs = draw(logits, Sampling(1.0), largest)
    assert ids.item() < vocabulary
    assert logprobs.isfinite().all()
