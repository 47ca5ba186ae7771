"""Turns whose tokens arrive in pieces of any size: they end at the same token, and nothing behind it is kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.engines.arriving import ArrivingTurn
from agent_rl.engines.base import GenerationRequest
from agent_rl.engines.pieces import TokenPieces
from agent_rl.tir.fence import FenceScanner
from agent_rl.types import FinishReason, InfrastructureError
from tests.engine_models import EOS, byte_tokenizer

TOKENIZER = byte_tokenizer()
TEXT = TokenPieces(TOKENIZER).__getitem__


def turn(limit: int = 100, fence: bool = True) -> ArrivingTurn:
    request = GenerationRequest("t", (1,), limit, seed=0, stop_at_fence=fence)
    return ArrivingTurn(
        request, limit=limit, eos_ids=frozenset([EOS]), text=TEXT, scanner=FenceScanner if fence else None
    )


def token_by_token(ids: list[int], limit: int) -> tuple[list[int], FinishReason | None]:
    """The definition: the first of end of sequence, closing fence and cap."""
    scanner = FenceScanner()
    for count, token in enumerate(ids, start=1):
        if token == EOS:
            return ids[:count], FinishReason.EOS
        if scanner.feed(TEXT(token)):
            return ids[:count], FinishReason.FENCE
        if count == limit:
            return ids[:count], FinishReason.LENGTH
    return ids, None


PIECES = ["```", "`", "``", "\n", "\n\n", "py", "text", "x = 1", "`\n\n", "a`b"]


@settings(deadline=None, max_examples=200)
@given(
    texts=st.lists(st.sampled_from(PIECES), max_size=25),
    end=st.booleans(),
    limit=st.integers(1, 60),
    cuts=st.lists(st.integers(1, 9), min_size=1),
)
def test_the_end_does_not_depend_on_how_tokens_are_grouped(texts, end, limit, cuts):
    ids = [token for text in texts for token in TOKENIZER.encode(text, add_special_tokens=False)]
    ids += [EOS] * end + TOKENIZER.encode("behind", add_special_tokens=False) * end
    arriving, start, cut = turn(limit), 0, 0
    while start < len(ids) and arriving.finish is None:
        size = cuts[cut % len(cuts)]
        part = ids[start : start + size]
        arriving.take(part, [-float(start + place) for place in range(len(part))], cut)
        start, cut = start + size, cut + 1
    expected, finish = token_by_token(ids, limit)
    assert (arriving.ids, arriving.finish) == (expected, finish)
    result = arriving.result(FinishReason.ABORTED)
    assert result.logprobs == tuple(-float(place) for place in range(len(expected)))
    assert len(result.weight_versions) == len(expected)
    assert arriving.surplus == min(start, len(ids)) - len(expected)


def test_each_token_keeps_the_version_it_came_with():
    arriving = turn()
    arriving.take([70, 71], [-1.0, -2.0], 4)
    arriving.take([72], [-3.0], 5)
    assert arriving.result(FinishReason.ABORTED).weight_versions == (4, 4, 5)


def test_a_turn_that_begins_again_has_forgotten_its_tokens_and_its_open_block():
    arriving = turn()
    opening = TOKENIZER.encode("```py\nx\n", add_special_tokens=False)
    arriving.take(opening, [-1.0] * len(opening), 0)
    arriving.begin_again()
    closing = TOKENIZER.encode("```", add_special_tokens=False)
    arriving.take(closing, [-1.0] * len(closing), 0)
    assert (arriving.ids, arriving.finish) == (closing, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_log_prob_that_is_not_finite_says_that_the_weights_diverged(value):
    with pytest.raises(InfrastructureError, match=r"weight version 7.*diverged"):
        turn().take([70], [value], 7)


def test_ids_without_their_log_probs_are_refused():
    with pytest.raises(InfrastructureError, match="2 tokens came with 1 log-probs"):
        turn().take([70, 71], [-1.0], 0)
