"""The learner: one rollout batch in, a few optimiser updates out."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agent_rl.algorithms.aggregation import Counts
from agent_rl.algorithms.choices import Recipe
from agent_rl.algorithms.diagnostics import Diagnostics
from agent_rl.learner import errors, sharding
from agent_rl.learner.adapters import add_adapters, merged_state
from agent_rl.learner.batch import TrainBatch, TrainRow, assign, microbatches, minibatches
from agent_rl.learner.objective import Objective, OwnSums, RowValues, by_row
from agent_rl.learner.optimizer import adamw, clip_gradients, learning_rate
from agent_rl.learner.packing import Pass
from agent_rl.learner.policy import Policy
from agent_rl.learner.settings import LearnerSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What one optimiser update did; numbers are over all ranks."""

    update: int
    """Optimiser updates applied before this one."""
    applied: bool
    """False when nothing could be learned: no model token, or a gradient that is not finite."""
    nonfinite: bool
    loss: float
    grad_norm: float
    """Before clipping."""
    lr: float
    tokens: int
    model_tokens: int
    sequences: int
    passes: int
    seconds: float
    diagnostics: dict[str, float] = field(default_factory=dict)
    """`agent_rl.algorithms.diagnostics.summarise`, or the sums of a loss of one's own; extremes name trajectories by
    their place in `keys`."""
    keys: tuple[str, ...] = ()
    """Names of the update's rows."""
    nonfinite_keys: tuple[str, ...] = ()
    """Rows of this rank's passes whose log-probs or loss were not finite."""
    details: dict[str, RowValues] = field(default_factory=dict)
    """If asked for: row name -> quantity -> [length], all ranks' rows (see `Objective.details`)."""


@dataclass(slots=True)
class _Update:
    """One update under way on this rank: what it is given, and what its passes add up to."""

    counts: Counts
    places: Mapping[str, int]
    old: Mapping[str, Tensor] | None
    reference: Mapping[str, Tensor] | None
    with_details: bool
    passes: int = 0
    loss: float = 0.0
    diagnostics: Diagnostics | OwnSums | None = None
    bad: list[TrainRow] = field(default_factory=list)
    details: dict[str, RowValues] = field(default_factory=dict)
    logp: RowValues = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """What other ranks need to know."""
        diagnostics = None if self.diagnostics is None else self.diagnostics.to_dict()
        return {"loss": self.loss, "bad": bool(self.bad), "diagnostics": diagnostics}


class Learner:
    """Policy, optimiser and counters. On several ranks each method is called on all of them with equal arguments.

    Args:
        model: a transformers causal LM in float32; it is changed in place.
        recipe: the method, as `agent_rl.algorithms.settings.resolve` returns it.
        temperature: of the sampler.
        horizon: tokens, for the aggregation `seq_mean_token_sum_norm`, when the recipe names none.
        total_updates: length of the schedule when the settings name none.
        reference: frozen model for the KL penalty; None = a copy of `model` as it is now, if the recipe has one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        recipe: Recipe,
        settings: LearnerSettings,
        *,
        temperature: float = 1.0,
        horizon: float = 0.0,
        total_updates: int | None = None,
        reference: PreTrainedModel | None = None,
    ):
        if model.dtype != torch.float32:
            raise ValueError(f"the model's weights are {model.dtype}; load them in float32 and use learner.autocast")
        self.settings = settings
        self.recipe = recipe
        self.model = model
        self.temperature = temperature
        self._objective = Objective(recipe)
        self._horizon = float(recipe.aggregation.horizon or horizon)
        self._total_updates = settings.optimizer.total_updates or total_updates
        learning_rate(settings.optimizer.warmup_updates, settings.optimizer, self._total_updates)
        self._entropy = settings.entropy or recipe.entropy.coefficient > 0
        self.reference: Policy | None = None
        if recipe.reference_kl.beta > 0:
            frozen = (copy.deepcopy(model) if reference is None else reference).requires_grad_(False)
            self.reference = self._sharded(frozen, checkpointing=False)
        if settings.lora is not None:
            add_adapters(model, settings.lora)
        self.policy = self._sharded(model, checkpointing=settings.gradient_checkpointing)
        self.optimizer = adamw(self.policy.parameters(), settings.optimizer)
        self.updates = 0
        """Optimiser updates applied so far."""
        self.skipped = 0
        """Updates skipped so far for a gradient that was not finite."""
        self.skipped_in_row = 0

    def _sharded(self, model: PreTrainedModel, *, checkpointing: bool) -> Policy:
        policy = Policy(
            model,
            temperature=self.temperature,
            packing=self.settings.packing,
            autocast=torch.bfloat16 if self.settings.autocast == "bfloat16" else None,
            chunk_bytes=self.settings.logprob_chunk_bytes,
            gradient_checkpointing=checkpointing,
        )
        sharding.shard(policy)
        return policy

    def train_on(
        self,
        batch: TrainBatch,
        seed: int,
        *,
        with_details: bool = False,
        on_update: Callable[[UpdateReport], None] | None = None,
    ) -> list[UpdateReport]:
        """All updates of one rollout batch; `seed` orders its groups.

        log pi_old is computed with the weights at entry, in the same passes as the update that first uses it.
        The first update's own log-probs are its pi_old, since no weight has changed before it.
        """
        plans = self.plan_updates(batch, seed)
        reference = self.reference_logprobs(batch) if self.reference is not None else None
        old: RowValues = {}
        for part in plans[1 : len(plans) // self.settings.epochs]:
            old |= self.old_logprobs(part)
        reports = []
        for number, part in enumerate(plans):
            report, logp = self._update(part, old if number else None, reference, with_details)
            if number == 0 and self.settings.epochs > 1:
                old |= _joined(logp)
            reports.append(report)
            if on_update is not None:
                on_update(report)
        return reports

    def plan_updates(self, batch: TrainBatch, seed: int) -> list[TrainBatch]:
        """The mini-batches of `train_on`, in order: `updates_per_batch` of each epoch, fewer for fewer rows."""
        epochs, updates = self.settings.epochs, self.settings.updates_per_batch
        return [part for epoch in range(epochs) for part in minibatches(batch, updates, seed * epochs + epoch)]

    def update(
        self,
        batch: TrainBatch,
        old: Mapping[str, Tensor] | None = None,
        reference: Mapping[str, Tensor] | None = None,
        *,
        with_details: bool = False,
    ) -> UpdateReport:
        """One optimiser update on all of `batch`.

        `old` and `reference` map row names to log-probs [length]; `old=None` says that the weights have not
        changed since the snapshot, so that pi_old is pi itself. Raises `LearnerOutOfMemory` and
        `TooManyNonfiniteUpdates` with the trajectories concerned.
        """
        return self._update(batch, old, reference, with_details)[0]

    def old_logprobs(self, batch: TrainBatch) -> RowValues:
        """Log-probs of all rows under the current weights, in the passes that `update(batch)` makes."""
        return self._logprobs(self.policy, batch)

    def reference_logprobs(self, batch: TrainBatch) -> RowValues:
        """Log-probs of all rows under the reference model. Raises ValueError if there is none."""
        if self.reference is None:
            raise ValueError("there is no reference model: the recipe's reference_kl.beta is 0")
        return self._logprobs(self.reference, batch)

    def full_state(self) -> Iterator[tuple[str, Tensor]]:
        """The policy's whole weights by Hugging Face name, one tensor at a time (adapters merged, ties once)."""
        return merged_state(self.model)

    def plan_passes(self, batch: TrainBatch) -> list[list[tuple[TrainRow, ...]]]:
        """Each rank's passes over `batch`."""
        budget = self.settings.micro_batch_tokens
        if sharding.ranks() > 1:
            budget = min(budget, max(1, -(-batch.tokens // sharding.ranks())))
        return assign(microbatches(batch.rows, budget, padded=not self.policy.packed), sharding.ranks())

    def _rounds(self, batch: TrainBatch) -> Iterator[tuple[tuple[TrainRow, ...], bool]]:
        """This rank's (rows, whether they count). Every rank makes as many passes, idle ones over the shortest row."""
        dealt = self.plan_passes(batch)
        mine = dealt[sharding.rank()]
        for number in range(max(len(passes) for passes in dealt)):
            if number < len(mine):
                yield mine[number], True
            else:
                yield (min(batch.rows, key=lambda row: row.length),), False

    @torch.no_grad()
    def _logprobs(self, policy: Policy, batch: TrainBatch) -> RowValues:
        mine: RowValues = {}
        for rows, counted in self._rounds(batch):
            layout = policy.lay_out(rows)
            with self._room_for(layout):
                logp, _ = policy(layout)
            if counted:
                mine |= by_row(layout, layout.spread(logp))
        sharding.reshard(policy)
        return _joined(mine)

    def _update(
        self,
        batch: TrainBatch,
        old: Mapping[str, Tensor] | None,
        reference: Mapping[str, Tensor] | None,
        with_details: bool,
    ) -> tuple[UpdateReport, RowValues]:
        started = time.perf_counter()
        number, lr = self.updates, learning_rate(self.updates, self.settings.optimizer, self._total_updates)
        counts = Counts(float(batch.model_tokens), float(batch.sequences), self._horizon)
        places = {row.key: place for place, row in enumerate(batch.rows)}
        work = _Update(counts, places, old, reference, with_details)
        finite, grad_norm, found = True, 0.0, [work.plain()]
        if batch.model_tokens:
            for rows, counted in self._rounds(batch):
                self._pass(rows, counted, work)
            grad_norm = clip_gradients(self.policy.parameters(), self.settings.optimizer.grad_clip)
            found = sharding.gather(work.plain())
            finite = grad_norm < float("inf") and not any(part["bad"] for part in found)
            self._step(finite, lr, work.bad or list(batch.rows))
        return UpdateReport(
            update=number,
            applied=finite and batch.model_tokens > 0,
            nonfinite=not finite,
            loss=sum(part["loss"] for part in found),
            grad_norm=grad_norm,
            lr=lr,
            tokens=batch.tokens,
            model_tokens=batch.model_tokens,
            sequences=batch.sequences,
            passes=work.passes,
            seconds=time.perf_counter() - started,
            diagnostics=self._objective.summary([part["diagnostics"] for part in found]),
            keys=tuple(places),
            nonfinite_keys=tuple(row.key for row in work.bad),
            details=_joined(work.details) if with_details else {},
        ), work.logp

    def _pass(self, rows: tuple[TrainRow, ...], counted: bool, work: _Update) -> None:
        """Forward and backward over `rows`; gradients add up. A pass that does not count adds zeros."""
        layout = self.policy.lay_out(rows)
        work.passes += 1
        with self._room_for(layout):
            logp, entropy = self.policy(layout, self._entropy)
            counted = counted and logp.numel() > 0
            if counted and not bool(logp.isfinite().all()):
                work.bad.extend(rows)
                counted = False
            if counted:
                loss, diagnostics = self._objective.loss(
                    layout, logp, entropy, work.old, work.reference, work.counts, work.places
                )
            else:
                loss, diagnostics = logp.sum() * 0.0, None
            # FSDP averages gradients over ranks; the update's counts already cover all of them.
            (loss * sharding.ranks()).backward()
        if diagnostics is None:
            return
        work.loss += float(loss.detach())
        work.diagnostics = diagnostics if work.diagnostics is None else work.diagnostics + diagnostics
        work.logp |= by_row(layout, layout.spread(logp.detach()))
        if work.with_details:
            work.details |= self._objective.details(layout, logp, entropy, work.old, work.reference)

    def _step(self, finite: bool, lr: float, suspects: list[TrainRow]) -> None:
        """Apply the gradient, or count that it was not finite; gradients are gone afterwards."""
        if finite:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
            self.updates += 1
            self.skipped_in_row = 0
        else:
            self.skipped += 1
            self.skipped_in_row += 1
        self.optimizer.zero_grad(set_to_none=True)
        if self.skipped_in_row > self.settings.max_nonfinite_updates:
            raise errors.nonfinite(self.skipped_in_row, self.settings.max_nonfinite_updates, suspects)

    @contextmanager
    def _room_for(self, layout: Pass) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not errors.is_out_of_memory(error):
                raise
            self.optimizer.zero_grad(set_to_none=True)
            raise errors.out_of_memory(layout.rows, layout.tokens, self.settings.micro_batch_tokens) from error


def _joined(mine: dict[str, T]) -> dict[str, T]:
    """What all ranks have of their rows, by row, together."""
    return {key: value for part in sharding.gather(mine) for key, value in part.items()}
