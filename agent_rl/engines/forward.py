"""Forward passes over slots: one token in many rows, or several tokens in a few."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import CacheLayerMixin, DynamicCache

from agent_rl.engines.kv import DecodePlan, KVBlock, LayerShape, PrefillPlan, SlotCache

_ATTENTION = ("sdpa", "eager")


def text_config(model: Any) -> Any:
    """The configuration of the language part."""
    return model.config.get_text_config(decoder=True)


def probe_layers(model: Any) -> list[LayerShape]:
    """Shapes of each layer's keys and values, found by running the model on one token.

    Raises:
        ValueError: the model keeps a state that is no attention cache (state-space and hybrid models), or its
            attention implementation takes no mask.
    """
    config = text_config(model)
    implementation = getattr(config, "_attn_implementation", "eager")
    if implementation not in _ATTENTION:
        raise ValueError(
            f"the embedded engine needs attention implementation {' or '.join(_ATTENTION)}, the model has "
            f"{implementation!r}: call model.set_attn_implementation('sdpa')"
        )
    cache = DynamicCache(config=config)
    device = next(model.parameters()).device
    with torch.no_grad():
        model(
            input_ids=torch.zeros((1, 1), dtype=torch.long, device=device),
            position_ids=torch.zeros((1, 1), dtype=torch.long, device=device),
            use_cache=True,
            **{cache_keyword(model): cache},
        )
    shapes = []
    types = getattr(config, "layer_types", None)
    for index, layer in enumerate(cache.layers):
        if not isinstance(layer, CacheLayerMixin) or getattr(layer, "keys", None) is None:
            raise ValueError(
                f"{type(model).__name__} keeps a {type(layer).__name__} in layer {index}; the embedded engine "
                "serves models whose layers are all attention"
            )
        window = getattr(layer, "sliding_window", None)
        if types and types[index] not in ("full_attention", "sliding_attention"):
            raise ValueError(f"layer {index} of {type(model).__name__} has type {types[index]!r}, which is not served")
        shapes.append(LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3], window))
    if len({shape.window for shape in shapes if shape.window is not None}) > 1:
        raise ValueError(f"{type(model).__name__} has sliding windows of several sizes, which is not served")
    if not shapes:
        raise ValueError(f"{type(model).__name__} filled no cache; the embedded engine needs a causal language model")
    return shapes


def cache_keyword(model: Any) -> str:
    """The name of the cache argument, which transformers renames from `past_key_values` to `cache`."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class Runner:
    """Runs a model over the slots of a block.

    Args:
        model: a Hugging Face causal language model.
        block: the slots, for the layers that `probe_layers` found.
        shared: the module is trained by someone else, too: no tensor that it keeps (such as a rotary table) may
            be created in inference mode, since autograd refuses those.
    """

    def __init__(self, model: nn.Module, block: KVBlock, *, shared: bool = False):
        self.model, self.block = model, block
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self._cache = SlotCache(block)
        self._cache_keyword = cache_keyword(model)
        self._last_only = (
            {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        )
        self._guard = torch.no_grad if shared else torch.inference_mode
        self._lowest = torch.finfo(self.dtype).min
        self._windows = sorted({layer.window for layer in block.layers}, key=lambda w: (w is not None, w or 0))

    def decode(self, tokens: Sequence[int], positions: Sequence[int], length: int) -> Tensor:
        """Logits [rows, vocabulary] after one token in each of the leading rows.

        Args:
            tokens: the id that each row is fed.
            positions: its position, which is also where its keys go.
            length: positions that attention reads, more than the largest position of interest.
        """
        with self._guard():
            inputs = torch.tensor((tokens, positions), dtype=torch.long).to(self.device)
            at = inputs[1]
            self._cache.plan = DecodePlan(torch.arange(len(tokens), device=self.device), at, length)
            query = at[:, None]
            return self._run(inputs[0][:, None], query, self._masks(query, length, None))

    def prefill(self, rows: Sequence[int], starts: Sequence[int], suffixes: Sequence[Sequence[int]]) -> Tensor:
        """Logits [rows, vocabulary] after the last token of each suffix.

        Args:
            rows: the slots.
            starts: how many tokens each slot holds already.
            suffixes: the ids to add to each, at least one.
        """
        sizes = [len(suffix) for suffix in suffixes]
        width, device = max(sizes), self.device
        ids = torch.zeros((len(rows), width), dtype=torch.long)
        for row, suffix in enumerate(suffixes):
            ids[row, width - len(suffix) :] = torch.tensor(suffix, dtype=torch.long)
        with self._guard():
            size, start = torch.tensor((sizes, starts), dtype=torch.long).to(device)
            column = torch.arange(width, device=device)
            # Right-aligned, so that the last column is every row's last token; padding has negative offsets.
            offset = column[None] - (width - size)[:, None]
            real = offset >= 0
            positions = (start[:, None] + offset).clamp_min(0)
            batch_index, step_index = real.nonzero(as_tuple=True)
            fresh = not any(starts)
            length = 0 if fresh else max(a + b for a, b in zip(starts, sizes, strict=True))
            self._cache.plan = PrefillPlan(
                torch.tensor(rows, dtype=torch.long).to(device),
                batch_index,
                step_index,
                positions[batch_index, step_index],
                length,
            )
            if fresh and min(sizes) == width:
                masks = None
            elif fresh:
                masks = self._masks(column[None].expand(len(rows), -1), width, (width - size)[:, None])
            else:
                masks = self._masks(positions, length, None)
            return self._run(ids.to(device), positions, masks)

    def _run(self, ids: Tensor, positions: Tensor, masks: Any) -> Tensor:
        if self.model.training:
            self.model.eval()
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=masks,
            use_cache=True,
            **{self._cache_keyword: self._cache},
            **self._last_only,
        )
        self._cache.plan = None
        return output.logits[:, -1]

    def _masks(self, query: Tensor, length: int, first: Tensor | None) -> Any:
        """Additive masks [rows, 1, queries, length]: one, or one for each kind of layer if they differ."""
        key = torch.arange(length, device=self.device)
        hidden = key > query[..., None]
        if first is not None:
            hidden = hidden | (key < first[..., None])
        masks = []
        for window in self._windows:
            unseen = hidden if window is None else hidden | (key <= query[..., None] - window)
            mask = torch.zeros(unseen.shape, dtype=self.dtype, device=self.device)
            masks.append(mask.masked_fill_(unseen, self._lowest)[:, None])
        if len(masks) == 1:
            return masks[0]
        return {"full_attention": masks[0], "sliding_attention": masks[1]}
