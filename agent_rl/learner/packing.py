"""Rows laid out for one forward pass: side by side without padding, or as a right-padded rectangle.

Packed rows attend within themselves. On CUDA with the package flash-attn that is its variable-length kernel;
elsewhere it is causal SDPA over buckets of rows of similar length, which never builds a [tokens, tokens] mask.
Padding only ever stands to the right, so a causal model needs no attention mask either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from agent_rl.learner.batch import TrainRow

PACKED_ATTENTION = "agent_rl_packed"
"""Name under which the block-diagonal attention is registered with transformers."""
FLASH_ATTENTION = "flash_attention_2"


class CannotPack(ValueError):
    """The model's attention does more than the packed one knows."""


_SLACK = 1.25
"""Rows share a bucket while the longest is at most this many times the shortest."""
_in_packed_forward: ContextVar[bool] = ContextVar("in_packed_forward", default=False)


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Rows of similar length that stand side by side in the pack, after the rows of the buckets before."""

    tokens: int
    rows: int
    longest: int
    scatter: Tensor | None
    """int64 [tokens] place of each token in the [rows * longest] rectangle; None when it has no padding."""


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One forward pass over whole rows. N = all tokens of the rows, M = their model tokens."""

    rows: tuple[TrainRow, ...]
    input_ids: Tensor
    """int64 [1, N] packed or [rows, longest] padded."""
    position_ids: Tensor
    """int64, the same shape; restarts at 0 with each row."""
    buckets: tuple[Bucket, ...]
    """Of the packed layout; empty when padded."""
    sources: Tensor
    """int64 [M] index into the flattened inputs of the state that predicts each model token (the one before)."""
    targets: Tensor
    """int64 [M] ids of the model tokens."""
    positions: Tensor
    """int64 [M] index of each model token among the N."""
    mask: Tensor
    """bool [N]."""
    segments: Tensor
    """int64 [N] index of the row that a token belongs to."""
    logp_mu: Tensor
    """float32 [N]."""
    advantage: Tensor
    """float32 [N], the row's advantage at each of its tokens."""

    @property
    def packed(self) -> bool:
        return bool(self.buckets)

    @property
    def tokens(self) -> int:
        """Tokens that are computed, padding included."""
        return self.input_ids.numel()

    def spread(self, values: Tensor) -> Tensor:
        """[M] -> [N], zero at tokens that nobody sampled."""
        return values.new_zeros(self.mask.numel()).index_copy(0, self.positions, values)


def lay_out(rows: Sequence[TrainRow], device: torch.device, *, packed: bool) -> Pass:
    """The pass over `rows` (at least one), in their order."""
    lengths = [row.length for row in rows]
    ids = torch.cat([row.ids for row in rows])
    mask = torch.cat([row.loss_mask for row in rows])
    places = torch.cat([torch.arange(length) for length in lengths])
    segments = torch.arange(len(rows)).repeat_interleave(torch.tensor(lengths))
    positions = mask.nonzero().squeeze(1)
    if packed:
        input_ids, position_ids, sources = ids[None], places[None], positions - 1
        buckets = _buckets(lengths)
    else:
        longest = max(lengths)
        seat = segments * longest + places
        input_ids = ids.new_zeros(len(rows) * longest).index_copy(0, seat, ids).view(len(rows), longest)
        position_ids = torch.arange(longest).expand(len(rows), longest)
        sources = seat[positions] - 1
        buckets = ()
    return Pass(
        rows=tuple(rows),
        input_ids=input_ids.to(device),
        position_ids=position_ids.to(device),
        buckets=tuple(
            Bucket(b.tokens, b.rows, b.longest, None if b.scatter is None else b.scatter.to(device)) for b in buckets
        ),
        sources=sources.to(device),
        targets=ids[positions].to(device),
        positions=positions.to(device),
        mask=mask.to(device),
        segments=segments.to(device),
        logp_mu=torch.cat([row.logp_mu for row in rows]).to(device),
        advantage=torch.tensor([row.advantage for row in rows])[segments].to(device),
    )


def _buckets(lengths: Sequence[int]) -> tuple[Bucket, ...]:
    """Cut consecutive rows where their lengths differ by more than the slack."""
    groups: list[list[int]] = []
    for length in lengths:
        if groups and max(*groups[-1], length) <= _SLACK * min(*groups[-1], length):
            groups[-1].append(length)
        else:
            groups.append([length])
    buckets = []
    for group in groups:
        longest = max(group)
        uneven = min(group) < longest
        scatter = torch.cat([torch.arange(n) + row * longest for row, n in enumerate(group)]) if uneven else None
        buckets.append(Bucket(sum(group), len(group), longest, scatter))
    return tuple(buckets)


def hidden_states(backbone: nn.Module, layout: Pass) -> Tensor:
    """[inputs, hidden size]: the last layer's output of a transformers backbone, flattened as `Pass.sources` counts."""
    extra: dict[str, Any] = {}
    if layout.packed:
        implementation = backbone.config._attn_implementation
        if implementation == PACKED_ATTENTION:
            extra["buckets"] = layout.buckets
        else:
            extra.update(_variable_length(layout))
    token = _in_packed_forward.set(layout.packed)
    try:
        output = backbone(
            input_ids=layout.input_ids, position_ids=layout.position_ids, use_cache=False, **extra
        ).last_hidden_state
    finally:
        _in_packed_forward.reset(token)
    return output.flatten(0, 1)


def _variable_length(layout: Pass) -> dict[str, Any]:
    """What transformers' flash attention wants to know of a pack (its `FlashAttentionKwargs`)."""
    lengths = torch.bincount(layout.segments)
    edges = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    longest = int(lengths.max())
    return {"cu_seq_lens_q": edges, "cu_seq_lens_k": edges, "max_length_q": longest, "max_length_k": longest}


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    buckets: Sequence[Bucket] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each row of a pack; [1, heads, N, d] -> [1, N, heads, d].

    Without `buckets` (generation, or a padded pass) it is transformers' own SDPA attention.
    Raises CannotPack for attention that has more to it than a causal window.
    """
    if buckets is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if unknown:
        raise CannotPack(f"{type(module).__name__} needs {', '.join(unknown)}, which packing does not do")
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    sizes = [bucket.tokens for bucket in buckets]
    # One split, whose gradient is one concatenation; a slice per bucket would fill a whole tensor each.
    states = zip(*(part[0].transpose(0, 1).split(sizes) for part in (query, key, value)), buckets, strict=True)
    parts = [_bucket_attention(*found, scaling, sliding_window) for found in states]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


def _bucket_attention(
    query: Tensor, key: Tensor, value: Tensor, bucket: Bucket, scaling: float | None, window: int | None
) -> Tensor:
    """[tokens of the bucket, heads, d] each -> the same."""

    def rectangle(tokens: Tensor) -> Tensor:
        if bucket.scatter is not None:
            empty = tokens.new_zeros(bucket.rows * bucket.longest, *tokens.shape[1:])
            tokens = empty.index_copy(0, bucket.scatter, tokens)
        return tokens.reshape(bucket.rows, bucket.longest, *tokens.shape[1:]).transpose(1, 2)

    band = None
    if window is not None and window < bucket.longest:
        at = torch.arange(bucket.longest, device=query.device)
        behind = at[:, None] - at[None, :]
        band = (behind >= 0) & (behind < window)
    mixed = F.scaled_dot_product_attention(
        rectangle(query), rectangle(key), rectangle(value), attn_mask=band, is_causal=band is None, scale=scaling
    )
    flat = mixed.transpose(1, 2).flatten(0, 1)
    return flat if bucket.scatter is None else flat.index_select(0, bucket.scatter)


def _packed_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """No mask in a packed forward (the buckets say who sees whom), else the one of SDPA."""
    return None if _in_packed_forward.get() else sdpa_mask(*args, **kwargs)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, _packed_mask)
