"""The checksum of a tensor sees every change, and adds up over shards."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.weights import checksum as module
from agent_rl.weights.checksum import checksum

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8]


def _random(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=random).to(dtype)
    return torch.randint(0, 100, shape, generator=random).to(dtype)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(DTYPES), st.data())
def test_one_changed_element_always_changes_the_sum(rows: int, columns: int, dtype: torch.dtype, data) -> None:
    tensor = _random((rows, columns), dtype, data.draw(st.integers(0, 99)))
    other = tensor.clone()
    place = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    other[place] += 1
    assert (checksum(tensor) != checksum(other)) == (not torch.equal(tensor, other))


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 60), st.integers(2, 60), st.data())
def test_rows_and_columns_that_change_places_are_seen(rows: int, columns: int, data) -> None:
    tensor = _random((rows, columns), torch.float32, data.draw(st.integers(0, 99)))
    first, second = data.draw(st.lists(st.integers(0, rows - 1), min_size=2, max_size=2, unique=True))
    order = torch.arange(rows)
    order[[first, second]] = order[[second, first]]
    assert checksum(tensor[order]) != checksum(tensor)
    assert checksum(tensor.T.contiguous()) != checksum(tensor) or torch.equal(tensor.T, tensor)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 50), st.integers(1, 50), st.sampled_from(DTYPES), st.data())
def test_shards_by_rows_and_by_columns_add_up(rows: int, columns: int, dtype: torch.dtype, data) -> None:
    tensor = _random((rows, columns), dtype, data.draw(st.integers(0, 99)))
    row, column = data.draw(st.integers(0, rows)), data.draw(st.integers(0, columns))
    parts = [(0, row, 0, column), (0, row, column, columns), (row, rows, 0, column), (row, rows, column, columns)]
    total = sum(checksum(tensor[a:b, c:d], row=a, column=c) for a, b, c, d in parts)
    assert total % 2**64 == checksum(tensor)


def test_blocks_and_layout_in_memory_make_no_difference(monkeypatch) -> None:
    tensor = _random((67, 129), torch.bfloat16, 0)
    whole = checksum(tensor)
    monkeypatch.setattr(module, "_BLOCK", 130)
    assert checksum(tensor) == whole
    assert checksum(tensor.T.contiguous().T) == whole


def test_negative_zero_counts_as_zero_and_three_axes_as_two() -> None:
    assert checksum(torch.tensor([0.0, 1.0])) == checksum(torch.tensor([-0.0, 1.0]))
    tensor = _random((4, 5, 6), torch.float32, 1)
    assert checksum(tensor) == checksum(tensor.reshape(4, 30))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (1,), ()])
def test_small_shapes_have_a_sum(shape: tuple[int, ...]) -> None:
    assert 0 <= checksum(torch.ones(shape)) < 2**64


def test_the_sum_equals_a_plain_loop_over_integers() -> None:
    def mixed(seed: int, index: int) -> int:
        x = (index * 0x9E3779B97F4A7C15 + seed) % 2**64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> shift)) * factor % 2**64
        return (x ^ (x >> 31)) | 1

    tensor = _random((5, 7), torch.float32, 3)
    bits = tensor.view(torch.int32).tolist()
    total = sum(
        bits[row][column] * mixed(0x243F6A8885A308D3, row) * mixed(0x13198A2E03707344, column)
        for row in range(5)
        for column in range(7)
    )
    assert checksum(tensor) == total % 2**64
