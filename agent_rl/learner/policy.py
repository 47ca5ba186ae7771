"""The policy as the loss sees it: rows in, log-probs of their model tokens out."""

from __future__ import annotations

import importlib.util
import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agent_rl.learner.batch import TrainRow
from agent_rl.learner.logprobs import HeadMath, token_logprobs
from agent_rl.learner.packing import FLASH_ATTENTION, PACKED_ATTENTION, CannotPack, Pass, hidden_states, lay_out

log = logging.getLogger(__name__)


class Policy(nn.Module):
    """A causal language model whose forward gives log-probs at model tokens only.

    The layers run in `autocast` (None = as the weights are), the head in float32. Layers stay in evaluation
    mode: dropout would make the first ratios differ from 1.

    Args:
        model: any transformers causal LM with a linear output head.
        temperature: of the sampler that the log-probs are compared with.
        packing: `auto`, `padded` or `packed`; the choice is in `packed`, its reason in `packing_reason`.

    Raises ValueError, naming the model, if its head is not understood or `packed` is asked for and not possible.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float = 1.0,
        packing: str = "auto",
        autocast: torch.dtype | None = None,
        chunk_bytes: int = 64 * 2**20,
        gradient_checkpointing: bool = False,
    ):
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"temperature={temperature}; training needs log-probs of a sampler above 0")
        self.model = model
        self.autocast = autocast
        self.chunk_bytes = chunk_bytes
        self.head = head_math(model, temperature)
        model.eval()
        self._recomputed = _recomputed_layers(model) if gradient_checkpointing else []
        self._check_head()
        self.packed, self.packing_reason = self._choose_packing(packing)

    @property
    def device(self) -> torch.device:
        return self.model.get_output_embeddings().weight.device

    def forward(self, layout: Pass, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        """Log-probs [M] float32 of the pass's model tokens, and entropies [M] or None."""
        device = self.device.type
        low = torch.autocast(device, dtype=self.autocast or torch.bfloat16, enabled=self.autocast is not None)
        with low, self._recomputing():
            states = hidden_states(self.model.base_model, layout)
        head = self.model.get_output_embeddings()
        return token_logprobs(
            states.index_select(0, layout.sources), head.weight, layout.targets,
            bias=head.bias, head=self.head, entropy=entropy, chunk_bytes=self.chunk_bytes,
        )  # fmt: skip

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        """Transformers recomputes layers only in training mode; dropout must not come with it, nor last longer."""
        layers = self._recomputed if torch.is_grad_enabled() else []
        for layer in layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False

    def lay_out(self, rows: tuple[TrainRow, ...]) -> Pass:
        """The pass over `rows` in this policy's layout and on its device."""
        return lay_out(rows, self.device, packed=self.packed)

    @torch.no_grad()
    def _check_head(self) -> None:
        """Compare with the model's own logits, so that a head with more to it cannot pass unnoticed."""
        layout = lay_out(_probe_rows(self.model), self.device, packed=False)
        ours, _ = self(layout)
        with torch.autocast(self.device.type, dtype=self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            logits = self.model(input_ids=layout.input_ids, use_cache=False).logits.float()
        logits = logits.flatten(0, 1)[layout.sources] / self.head.temperature
        theirs = logits.log_softmax(-1).gather(1, layout.targets[:, None]).squeeze(1)
        gap = float((ours - theirs).abs().max())
        if gap > self._tolerance():
            raise ValueError(
                f"{type(self.model).__name__}: log-probs from its hidden states differ from its own logits "
                f"by {gap:.3g}; its head does something that this learner does not know"
            )

    def _tolerance(self) -> float:
        low = self.autocast is not None or self.model.get_output_embeddings().weight.dtype != torch.float32
        return 0.1 if low else 1e-3

    def _choose_packing(self, packing: str) -> tuple[bool, str]:
        if packing == "padded":
            return False, "learner.packing=padded"
        before = self.model.config._attn_implementation
        reason = self._why_not_packed()
        if reason is None:
            self.model.set_attn_implementation(self._packed_implementation())
            try:
                gap = self._packing_gap()
            except CannotPack as error:
                reason = str(error)
            else:
                if gap <= self._tolerance():
                    return True, f"{self.model.config._attn_implementation}, gap to padded {gap:.1e}"
                reason = f"its packed log-probs differ from its padded ones by {gap:.3g}"
            self.model.set_attn_implementation(before)
        if packing == "packed":
            raise ValueError(f"learner.packing=packed, but {type(self.model).__name__} cannot be packed: {reason}")
        log.info("%s is trained padded: %s", type(self.model).__name__, reason)
        return False, reason

    def _why_not_packed(self) -> str | None:
        """What of the model's code rules packing out, as far as its code says."""
        backbone = self.model.base_model
        if not getattr(self.model, "_supports_attention_backend", False):
            return "its attention cannot be exchanged"
        parameters = inspect.signature(backbone.forward).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()) or "position_ids" not in parameters:
            return "its forward takes no position ids or no attention arguments"
        if getattr(self.model, "_is_stateful", False):
            return "it keeps a state along the sequence"
        return None

    def _packed_implementation(self) -> str:
        flash = importlib.util.find_spec("flash_attn") is not None and self.model._supports_flash_attn
        half = self.autocast is not None or self.model.dtype in (torch.bfloat16, torch.float16)
        return FLASH_ATTENTION if flash and half and self.device.type == "cuda" else PACKED_ATTENTION

    @torch.no_grad()
    def _packing_gap(self) -> float:
        rows = _probe_rows(self.model)
        packed = self(lay_out(rows, self.device, packed=True))[0]
        alone = [self(lay_out((row,), self.device, packed=False))[0] for row in rows]
        return float((packed - torch.cat(alone)).abs().max())


def head_math(model: PreTrainedModel, temperature: float) -> HeadMath:
    """What the model's configuration says about its head. Raises ValueError if the head is not linear."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise ValueError(f"{type(model).__name__}'s output head is a {type(head).__name__}; a linear layer is needed")
    config = model.config.get_text_config()
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    softcap = getattr(config, "final_logit_softcapping", None)
    return HeadMath(scale=scale, softcap=float(softcap) if softcap else None, temperature=temperature)


def _recomputed_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Switch on transformers' recomputation; returns the layers that ask whether they are in training mode."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]


def _probe_rows(model: PreTrainedModel) -> tuple[TrainRow, ...]:
    """Three short rows of fixed ids, of lengths that differ."""
    vocabulary = model.get_output_embeddings().weight.shape[0]
    rows = []
    for length in (11, 7, 7):
        ids = (torch.arange(length) * 7919 + length * 104729) % vocabulary
        mask = torch.arange(length) % 3 > 0
        zeros = torch.zeros(length)
        rows.append(TrainRow(f"probe-{len(rows)}", "probe", ids, mask, zeros, zeros.long(), 0.0))
    return tuple(rows)
