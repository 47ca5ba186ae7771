"""The updates of a recorded batch, made again: from the recorded log-probs alone, and from the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent_rl.algorithms.choices import Recipe
from agent_rl.algorithms.method import explain
from agent_rl.algorithms.settings import resolve
from agent_rl.engines.loading import load_model, model_fingerprint
from agent_rl.learner import checkpoint
from agent_rl.learner.batch import TrainBatch, batch_from
from agent_rl.learner.update import Learner, UpdateReport
from agent_rl.records.replay.stages import Difference, Stage
from agent_rl.records.schema import Record
from agent_rl.records.token_updates import Update
from agent_rl.tir.episode import stream_seed
from agent_rl.training.settings import RunConfig

SOURCES = ("logp", "logp_old")
CLOSE = 1e-5
"""Largest difference of a quantity that is recomputed in another batch layout than the learner's."""


@dataclass(frozen=True)
class Batch:
    """One recorded rollout batch."""

    step: int
    records: Sequence[Record]
    updates: Sequence[Update]

    def trained(self) -> TrainBatch:
        """What the learner was given, with the recorded advantages."""
        return batch_from([(r.trajectory(), r.advantage) for r in self.records if in_loss(r)])


def in_loss(record: Record) -> bool:
    """Whether the record was trained on."""
    return record.advantage is not None and not record.filters and bool(record.segments)


def batch_seed(config: RunConfig, step: int) -> int:
    """The seed that ordered the mini-batches of a step."""
    return stream_seed(str(config.seed), "minibatches", step, 0)


def learner_at(config: RunConfig, run: Path, step: int, recipe: Recipe | None = None) -> tuple[Learner, str] | str:
    """The learner as it was before `step`, and its base model's fingerprint; or why it cannot be had."""
    place = run / "checkpoints" / f"step-{step - 1:08d}"
    if step > 1 and not place.is_dir():
        return (
            f"step {step} cannot be recomputed from weights: the checkpoint of step {step - 1} was not kept "
            "(learner.checkpoint.every: 1 and a large keep_last keep all)"
        )
    torch.manual_seed(config.seed)  # adapters begin at random
    model, _ = load_model(config.model.path, dtype="float32", device=config.engine.device)
    base = model_fingerprint(model)
    learner = Learner(
        model,
        recipe or resolve(config.method),
        config.learner,
        temperature=config.temperature,
        horizon=config.tir.max_total_tokens,
        total_updates=config.steps * config.learner.updates_per_batch * config.learner.epochs,
    )
    if step > 1:
        made_with = json.loads((place / "state.json").read_text(encoding="utf-8"))["fingerprints"]
        checkpoint.load(place, learner, made_with)
    return learner, base


def replay_sampler(batch: Batch) -> Stage:
    """The sampler's log-probs of the trajectories against those that the learner was given."""
    stage = Stage("sampler log-probs")
    by_key = {r.key: r for r in batch.records}
    for update in batch.updates:
        for key, tokens in update.tokens.items():
            sampled = [p for s in by_key[key].segments for p in s.logprobs]
            _compare(stage, f"step {batch.step}, {key}", tokens["logp_mu"], np.asarray(sampled, np.float32))
    return stage


def replay_quantities(batch: Batch, recipe: Recipe) -> Stage:
    """Ratios, windows, budgets, gates and losses from the recorded log-probs: no weights are needed."""
    stage = Stage("token quantities")
    if recipe.function is not None:
        stage.notes.append(f"{recipe.name} is a function of its own; it explains no tokens")
        return stage
    if recipe.reference_kl.beta > 0:
        stage.notes.append("the KL penalty needs the reference model; its tokens are checked from weights alone")
        return stage
    for update in batch.updates:
        for key, tokens in update.tokens.items():
            found = _explained(tokens, update.advantages[key], recipe)
            where = f"step {batch.step}, update {update.number + 1}, {key}"
            _compare_all(stage, where, tokens, found, close=CLOSE)
    return stage


def _explained(tokens: Mapping[str, np.ndarray], advantage: float, recipe: Recipe) -> dict[str, np.ndarray]:
    n = len(tokens["logp"])
    logp, old, mu = (torch.from_numpy(tokens[name].copy()) for name in ("logp", "logp_old", "logp_mu"))
    entropy = torch.from_numpy(tokens["entropy"].copy()) if "entropy" in tokens else None
    found = explain(
        logp, old, mu, torch.full((n,), advantage), torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.int64),
        recipe, entropy=entropy,
    )  # fmt: skip
    return {name: value.numpy() for name, value in found.items()}


def replay_updates(batch: Batch, learner: Learner, config: RunConfig) -> list[Stage]:
    """Log-probs, ratios and gates, loss and gradient norm from the weights before the step."""
    reports = learner.train_on(batch.trained(), batch_seed(config, batch.step), with_details=True)
    names = ("policy log-probs", "ratios and gates", "loss", "gradient norm")
    logps, quantities, loss, norm = stages = [Stage(name) for name in names]
    masks = {row.key: row.loss_mask.numpy() for row in batch.trained().rows}
    for update, report in zip(batch.updates, reports, strict=False):
        where = f"step {batch.step}, update {update.number + 1}"
        loss.check(where, update.loss, report.loss)
        norm.check(where, update.grad_norm, report.grad_norm)
        for key, tokens in update.tokens.items():
            found = _masked(report, key, masks)
            if found is None:
                logps.check(f"{where}, {key}", "in this update", "in another")
                continue
            sources = {name: value for name, value in tokens.items() if name in SOURCES}
            _compare_all(logps, f"{where}, {key}", sources, found)
            rest = {name: value for name, value in tokens.items() if name not in (*SOURCES, "logp_mu")}
            _compare_all(quantities, f"{where}, {key}", rest, found)
    loss.check(f"step {batch.step}, number of updates", len(batch.updates), len(reports))
    return stages


def _masked(report: UpdateReport, key: str, masks: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    details = report.details.get(key)
    return None if details is None else {name: value.numpy()[masks[key]] for name, value in details.items()}


def _compare_all(
    stage: Stage, where: str, recorded: Mapping[str, Any], found: Mapping[str, np.ndarray], *, close: float = 0.0
) -> None:
    for name, values in recorded.items():
        if name in found:
            _compare(stage, f"{where}, {name}", values, found[name], close=close)


def _compare(stage: Stage, where: str, recorded: np.ndarray, found: np.ndarray, *, close: float = 0.0) -> None:
    """Count one comparison of arrays; bit for bit unless `close` is given."""
    stage.checked += 1
    if recorded.shape != found.shape:
        stage.differences.append(Difference(where, f"{recorded.shape[0]} tokens", f"{found.shape[0]} tokens"))
        return
    found = found.astype(recorded.dtype)
    unequal = ~((recorded == found) | (np.isnan(recorded) & np.isnan(found)))
    if close:
        unequal &= ~np.isclose(recorded, found, rtol=close, atol=close)
    if unequal.any():
        at = int(unequal.argmax())
        place = f"{where}, model token {at + 1} ({int(unequal.sum())} of {len(recorded)} tokens differ)"
        stage.differences.append(Difference(place, f"{recorded[at]:.9g}", f"{found[at]:.9g}"))
