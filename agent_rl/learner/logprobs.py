"""Log-probabilities and entropies of given tokens, without ever holding [tokens, vocabulary] in float32.

The head is evaluated in float32, a chunk of tokens at a time, and again in the backward pass: memory is one
chunk of logits (plus one for its gradient) whatever the number of tokens, for one extra matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, slots=True)
class HeadMath:
    """What a model does to `hidden @ weight.T` before the softmax, in this order: scale, softcap, temperature."""

    scale: float = 1.0
    """Factor on the logits (Cohere's `logit_scale`, the inverse of Granite's `logits_scaling`)."""
    softcap: float | None = None
    """Gemma 2's c * tanh(logits / c)."""
    temperature: float = 1.0
    """Of the sampler; logits are divided by it."""

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
        """[n, d], [v, d], [v] -> [n, v] float32, written into the first n rows of `out`."""
        raw = torch.mm(hidden, weight.t(), out=out[: hidden.shape[0]])
        if bias is not None:
            raw.add_(bias)
        if self.scale != 1.0:
            raw.mul_(self.scale)
        if self.softcap is not None:
            raw.div_(self.softcap).tanh_().mul_(self.softcap)
        return raw.div_(self.temperature) if self.temperature != 1.0 else raw

    def backward(self, grad: Tensor, logits: Tensor) -> Tensor:
        """Gradient at `hidden @ weight.T` from the gradient at `logits` (both overwritten)."""
        if self.softcap is not None:
            tanh = logits.mul_(self.temperature / self.softcap)
            grad.mul_(tanh.square_().neg_().add_(1.0))
        factor = self.scale / self.temperature
        return grad.mul_(factor) if factor != 1.0 else grad


class _Logprobs(torch.autograd.Function):
    """(hidden [n, d], weight [v, d], bias [v] or None, targets [n]) -> (log-probs [n], entropies [n] or None)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, head: HeadMath,
        rows: int, entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        logp = torch.empty(targets.shape, dtype=torch.float32, device=hidden.device)
        uncertainty = torch.empty_like(logp) if entropy else None
        normaliser = torch.empty_like(logp)
        # Buffers are made once: fresh ones for each chunk would cost page faults, and twice the memory.
        buffer = logp.new_empty(min(rows, targets.numel()), weight.shape[0])
        other = torch.empty_like(buffer) if entropy else None
        with torch.autocast(hidden.device.type, enabled=False):
            wide, offset = weight.float(), None if bias is None else bias.float()
            for at in range(0, targets.numel(), rows):
                part = slice(at, at + rows)
                logits = head.logits(hidden[part].float(), wide, offset, buffer)
                chosen = logits.gather(1, targets[part, None]).squeeze(1)
                top = logits.amax(-1, keepdim=True)
                probs = torch.sub(logits, top, out=logits if other is None else other[: logits.shape[0]]).exp_()
                total = probs.sum(-1)
                normaliser[part] = total.log() + top.squeeze(1)
                logp[part] = chosen - normaliser[part]
                if uncertainty is not None:
                    uncertainty[part] = normaliser[part] - probs.mul_(logits).sum(-1) / total
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser, uncertainty)
        ctx.head, ctx.rows = head, rows
        ctx.set_materialize_grads(False)
        return logp, uncertainty

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normaliser, uncertainty = ctx.saved_tensors
        if grad_logp is None:
            grad_logp = torch.zeros_like(normaliser)
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if need_weight else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and need_bias else None
        buffer = normaliser.new_empty(min(ctx.rows, targets.numel()), weight.shape[0])
        other = torch.empty_like(buffer)
        with torch.autocast(hidden.device.type, enabled=False):
            wide, offset = weight.float(), None if bias is None else bias.float()
            for at in range(0, targets.numel(), ctx.rows):
                part = slice(at, at + ctx.rows)
                states = hidden[part].float()
                logits = ctx.head.logits(states, wide, offset, buffer)
                centre = normaliser[part, None]
                grad = torch.sub(logits, centre, out=other[: logits.shape[0]]).exp_()
                if uncertainty is None or grad_entropy is None:
                    grad.mul_(-grad_logp[part, None])
                else:
                    # dH/dz = -p (log p + H); d log p[y] / dz = onehot[y] - p.
                    lean = (logits - centre).add_(uncertainty[part, None]).mul_(grad_entropy[part, None])
                    grad.mul_(lean.add_(grad_logp[part, None]).neg_())
                grad.scatter_add_(1, targets[part, None], grad_logp[part, None])
                grad = ctx.head.backward(grad, logits)
                if grad_hidden is not None:
                    grad_hidden[part] = grad @ wide
                if grad_weight is not None:
                    grad_weight.addmm_(grad.t(), states)
                if grad_bias is not None:
                    grad_bias.add_(grad.sum(0))
        cast = None if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_hidden, cast, grad_bias, None, None, None, None


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    head: HeadMath | None = None,
    entropy: bool = False,
    chunk_bytes: int = 64 * 2**20,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability (natural logarithm) of each target, and the entropy of its distribution.

    Args:
        hidden: [n, d] states that predict the targets (any float type; computed in float32).
        weight: [v, d] of the output head.
        targets: [n] int64.
        entropy: whether entropies are wanted; both outputs are differentiable.
        chunk_bytes: float32 logits held at a time; at least one token's.

    Returns:
        [n] float32 and, if asked for, [n] float32.
    """
    if hidden.shape[0] != targets.shape[0]:
        raise ValueError(f"hidden has {hidden.shape[0]} rows and targets {targets.shape[0]}; one state a target")
    rows = max(1, chunk_bytes // (4 * weight.shape[0]))
    return _Logprobs.apply(hidden, weight, bias, targets, head or HeadMath(), rows, entropy)
