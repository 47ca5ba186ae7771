"""Chunked log-probs and entropies equal the plain log-softmax, in value and gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from agent_rl.learner.logprobs import HeadMath, token_logprobs


def plain(hidden, weight, bias, targets, head):
    """The definition, in float64."""
    logits = hidden.double() @ weight.double().t()
    if bias is not None:
        logits = logits + bias.double()
    logits = logits * head.scale
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    logp = (logits / head.temperature).log_softmax(-1)
    return logp.gather(1, targets[:, None]).squeeze(1), -(logp.exp() * logp).sum(-1)


@hypothesis_settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(0, 23),
    chunk=st.integers(1, 30),
    temperature=st.sampled_from([1.0, 0.6, 1.7]),
    scale=st.sampled_from([1.0, 0.0625]),
    softcap=st.sampled_from([None, 5.0]),
    biased=st.booleans(),
    entropy=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_values_and_gradients_equal_the_definition(tokens, chunk, temperature, scale, softcap, biased, entropy, seed):
    random = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, 8, generator=random).requires_grad_()
    weight = torch.randn(31, 8, generator=random).requires_grad_()
    bias = torch.randn(31, generator=random).requires_grad_() if biased else None
    targets = torch.randint(0, 31, (tokens,), generator=random)
    up, up_entropy = torch.randn(2, tokens, generator=random)
    head = HeadMath(scale=scale, softcap=softcap, temperature=temperature)
    inputs = [hidden, weight] + ([bias] if biased else [])

    ours, uncertainty = token_logprobs(
        hidden, weight, targets, bias=bias, head=head, entropy=entropy, chunk_bytes=4 * 31 * chunk
    )
    theirs, their_uncertainty = plain(hidden, weight, bias, targets, head)
    ours_total = (ours * up).sum() + ((uncertainty * up_entropy).sum() if entropy else 0.0)
    theirs_total = (theirs * up).sum() + ((their_uncertainty * up_entropy).sum() if entropy else 0.0)

    torch.testing.assert_close(ours.double(), theirs, atol=1e-5, rtol=1e-6)
    if entropy:
        torch.testing.assert_close(uncertainty.double(), their_uncertainty, atol=1e-5, rtol=1e-6)
    for mine, reference in zip(
        torch.autograd.grad(ours_total, inputs), torch.autograd.grad(theirs_total, inputs), strict=True
    ):
        torch.testing.assert_close(mine, reference.float(), atol=2e-5, rtol=1e-5)


def test_entropy_without_a_gradient_leaves_the_logprob_gradient_alone():
    hidden = torch.randn(9, 8, requires_grad=True)
    weight, targets = torch.randn(31, 8), torch.arange(9)
    (with_entropy,) = torch.autograd.grad(token_logprobs(hidden, weight, targets, entropy=True)[0].sum(), hidden)
    (without,) = torch.autograd.grad(token_logprobs(hidden, weight, targets)[0].sum(), hidden)
    assert torch.equal(with_entropy, without)


def test_entropy_alone_has_a_gradient():
    hidden = torch.randn(5, 8, requires_grad=True)
    weight, targets = torch.randn(31, 8), torch.arange(5)
    (ours,) = torch.autograd.grad(token_logprobs(hidden, weight, targets, entropy=True)[1].sum(), hidden)
    (theirs,) = torch.autograd.grad(plain(hidden, weight, None, targets, HeadMath())[1].sum(), hidden)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_half_precision_states_get_a_float32_head():
    hidden = torch.randn(64, 16).bfloat16()
    weight, targets = torch.randn(31, 16), torch.arange(64) % 31
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, _ = token_logprobs(hidden, weight, targets)
    theirs, _ = plain(hidden, weight, None, targets, HeadMath())
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), theirs, atol=1e-5, rtol=1e-6)


def test_a_target_for_each_state_is_asked_for():
    with pytest.raises(ValueError, match="hidden has 3 rows and targets 2"):
        token_logprobs(torch.randn(3, 4), torch.randn(5, 4), torch.tensor([0, 1]))


def test_no_tensor_of_tokens_by_vocabulary_is_allocated():
    """The largest tensor that forward and backward create is one chunk of logits."""
    from torch.utils._python_dispatch import TorchDispatchMode

    tokens, vocabulary, width, rows = 512, 1024, 8, 16
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.numel())
            return result

    hidden = torch.randn(tokens, width, requires_grad=True)
    weight = torch.randn(vocabulary, width, requires_grad=True)
    with Watch():
        logp, entropy = token_logprobs(
            hidden, weight, torch.arange(tokens), entropy=True, chunk_bytes=4 * vocabulary * rows
        )
        (logp.sum() + entropy.sum()).backward()
    assert largest == rows * vocabulary
