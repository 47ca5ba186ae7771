"""What other methods would have done with a recorded batch: same tokens, same weights, same mini-batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from agent_rl.algorithms.aggregation import Counts
from agent_rl.algorithms.choices import Recipe
from agent_rl.algorithms.settings import resolve
from agent_rl.config import ConfigError
from agent_rl.learner.batch import TrainBatch
from agent_rl.learner.objective import Objective, RowValues
from agent_rl.learner.update import Learner
from agent_rl.records.inspect.command import run_page
from agent_rl.records.inspect.page import Comparison
from agent_rl.records.reader import summaries
from agent_rl.records.replay.episode import groups_of
from agent_rl.records.replay.learning import Batch, batch_seed, learner_at
from agent_rl.training.batch import assign_advantages
from agent_rl.training.settings import RunConfig

CLIPPED, GATED = range(2, 5), range(5, 10)
COLUMNS = (
    "method", "updates", "tokens", "clipped", "gated", "stopped otherwise", "ratio furthest from 1", "gradient norm",
    "cosine with recorded",
)  # fmt: skip


@dataclass(slots=True)
class Tally:
    """What a method did over the updates that were compared."""

    tokens: int = 0
    clipped: int = 0
    gated: int = 0
    otherwise: int = 0
    """Tokens that it stops and the recorded method does not, or the other way about."""
    furthest: float = 0.0
    """Largest |log-ratio|."""
    norms: list[float] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    """NaN where this or the recorded method has no gradient at all."""

    @property
    def cosine(self) -> float:
        """Mean over the updates where both have a gradient."""
        known = [c for c in self.cosines if not math.isnan(c)]
        return float(np.mean(known)) if known else math.nan

    def cells(self, name: str) -> list[str]:
        share = max(self.tokens, 1)
        return [
            name, str(len(self.norms)), str(self.tokens), f"{self.clipped / share:.2%}", f"{self.gated / share:.2%}",
            f"{self.otherwise / share:.2%}", f"{np.exp(self.furthest):.4f}", f"{np.mean(self.norms):.4g}",
            f"{self.cosine:.4f}",
        ]  # fmt: skip


@dataclass(frozen=True)
class Gradient:
    """One method's gradient on one mini-batch, and what it did to each token."""

    flat: Tensor
    details: dict[str, RowValues]


def compare(
    run: Path,
    config: RunConfig,
    batches: Sequence[Batch],
    methods: Mapping[str, Recipe],
    html: Path | None,
    console: Console,
) -> int:
    """Hold methods against the recorded one over the batches whose weights are kept; writes the page."""
    recorded = resolve(config.method)
    for recipe in methods.values():
        _refuse_unknown(recipe)
    all_methods = {f"{recorded.name} (recorded)": recorded, **methods}
    tallies = {name: Tally() for name in all_methods}
    first = {name: Tally() for name in all_methods}
    tokens: dict[tuple[int, str], dict[str, dict[str, np.ndarray]]] = {}
    steps, notes = [], []
    for batch in batches:
        found = learner_at(config, run, batch.step) if batch.trained().rows else f"step {batch.step}: nothing to learn"
        if isinstance(found, str):
            notes.append(found)
            continue
        steps.append(batch.step)
        _compare_step(batch, found[0], config, all_methods, tallies, first, tokens)
    if not steps:
        raise ConfigError("no step can be compared: " + "; ".join(notes))
    for note in notes:
        console.print(note, style="yellow")
    rows = [tally.cells(name) for name, tally in tallies.items() if tally.norms]
    _tell(console, rows, steps, first)
    page = html or run / "methods.html"
    chosen = [s for s in summaries(run) if s.split == "train" and s.step in steps]
    run_page(page, run, chosen, comparison=Comparison(COLUMNS, rows, tokens))
    console.print(f"side by side, token by token: {page}")
    return 0


def _tell(console: Console, rows: list[list[str]], steps: list[int], first: Mapping[str, Tally]) -> None:
    table = Table(box=None, title=f"steps {', '.join(map(str, steps))}: updates after the first of each step")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    cosines = ", ".join(f"{name} {tally.cosine:.4f}" for name, tally in first.items())
    console.print(f"first updates, where no weight has changed yet, cosine with recorded: {cosines}", highlight=False)


def _refuse_unknown(recipe: Recipe) -> None:
    if recipe.function is not None:
        raise ConfigError(f"--with {recipe.name}: a loss function of one's own explains no tokens; name a preset")
    if recipe.reference_kl.beta > 0:
        raise ConfigError(f"--with {recipe.name}: its KL penalty needs a reference model, which recordings do not hold")
    if recipe.needs_topk():
        raise ConfigError(f"--with {recipe.name}: it needs the sampler's top-K log-probs, which are not recorded")


def _compare_step(
    batch: Batch,
    learner: Learner,
    config: RunConfig,
    methods: Mapping[str, Recipe],
    tallies: Mapping[str, Tally],
    first: Mapping[str, Tally],
    tokens: dict[tuple[int, str], dict[str, dict[str, np.ndarray]]],
) -> None:
    trained = batch.trained()
    masks = {row.key: row.loss_mask.numpy() for row in trained.rows}
    advantages = {name: advantages_of(batch, recipe, config) for name, recipe in methods.items()}
    plans = learner.plan_updates(trained, batch_seed(config, batch.step))
    old: RowValues = {}
    for part in plans[: len(plans) // learner.settings.epochs]:
        old |= learner.old_logprobs(part)
    for number, part in enumerate(plans):
        found = gradients(learner, part, old, methods, advantages, config.tir.max_total_tokens)
        _count(found, masks, tallies if number else first)
        for name in list(methods)[1:]:
            for key, values in found[name].details.items():
                shown = {n: v.numpy()[masks[key]] for n, v in values.items()}
                tokens.setdefault((batch.step, key), {})[name] = shown
        learner.update(part, old)


def advantages_of(batch: Batch, recipe: Recipe, config: RunConfig) -> dict[str, float]:
    """The advantages that a method's own estimator gives the recorded rewards."""
    groups = groups_of(batch.records)
    assign_advantages(groups, recipe.advantage, void_filter=config.void_filter)
    return {t.key: a for group in groups for t, a in zip(group, group.advantages or [], strict=True)}


def gradients(
    learner: Learner,
    part: TrainBatch,
    old: RowValues,
    methods: Mapping[str, Recipe],
    advantages: Mapping[str, Mapping[str, float]],
    horizon: float,
) -> dict[str, Gradient]:
    """Each method's gradient on one mini-batch, from one forward pass a micro-batch. Weights are not changed.

    Args:
        old: log pi_old by row.
        advantages: method -> trajectory -> advantage.
        horizon: tokens, for the aggregation `seq_mean_token_sum_norm`, when a recipe names none.
    """
    parameters = [p for p in learner.policy.parameters() if p.requires_grad]
    sums = {name: [torch.zeros_like(p) for p in parameters] for name in methods}
    details: dict[str, dict[str, RowValues]] = {name: {} for name in methods}
    places = {row.key: place for place, row in enumerate(part.rows)}
    for rows in learner.plan_passes(part)[0]:
        logp, entropy = learner.policy(
            learner.policy.lay_out(rows), any(m.entropy.coefficient for m in methods.values())
        )
        for name, recipe in methods.items():
            own = tuple(replace(row, advantage=advantages[name].get(row.key, 0.0)) for row in rows)
            layout, objective = learner.policy.lay_out(own), Objective(recipe)
            length = float(recipe.aggregation.horizon or horizon)
            counts = Counts(float(part.model_tokens), float(part.sequences), length)
            loss, _ = objective.loss(layout, logp, entropy, old, None, counts, places)
            found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
            for total, gradient in zip(sums[name], found, strict=True):
                if gradient is not None:
                    total += gradient
            details[name] |= objective.details(layout, logp, entropy, old, None)
    return {name: Gradient(torch.cat([g.flatten() for g in sums[name]]), details[name]) for name in methods}


def _count(found: Mapping[str, Gradient], masks: Mapping[str, np.ndarray], tallies: Mapping[str, Tally]) -> None:
    reference = next(iter(found.values()))
    for name, gradient in found.items():
        tally = tallies[name]
        for key, values in gradient.details.items():
            mask = masks[key]
            reason = values["reason"].numpy()[mask]
            other = reference.details[key]["reason"].numpy()[mask]
            tally.tokens += len(reason)
            tally.clipped += int(np.isin(reason, CLIPPED).sum())
            tally.gated += int(np.isin(reason, GATED).sum())
            tally.otherwise += int(((reason > 1) != (other > 1)).sum())
            tally.furthest = max(tally.furthest, float(values["log_ratio"].abs().max()))
        tally.norms.append(float(gradient.flat.double().norm()))
        tally.cosines.append(cosine(gradient.flat, reference.flat))


def cosine(a: Tensor, b: Tensor) -> float:
    """Of the angle between two gradients, in float64; NaN if one of them is 0."""
    a, b = a.double(), b.double()
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size > 0 else math.nan
