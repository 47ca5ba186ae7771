"""Learning from recorded trajectories alone: no engine, no sandbox, so that methods meet identical data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agent_rl.algorithms.choices import Recipe
from agent_rl.algorithms.settings import resolve
from agent_rl.config import ConfigError
from agent_rl.engines.loading import load_model, save_model
from agent_rl.learner.batch import batch_from
from agent_rl.records.replay.compare import advantages_of
from agent_rl.records.replay.learning import Batch, batch_seed, in_loss, learner_at
from agent_rl.training.metrics import learner_metrics
from agent_rl.training.settings import RunConfig

_SHOWN = ("learner/loss", "learner/grad_norm", "policy/clip_rate", "policy/mask_rate", "policy/mismatch_mean")


def train_on_recordings(
    run: Path,
    config: RunConfig,
    batches: Sequence[Batch],
    methods: Mapping[str, Recipe],
    output: Path | None,
    console: Console,
) -> int:
    """Train once a method (the recorded one if none is named) over the recorded batches in order.

    From the second step on the policy is another than the one that sampled, so that the data is off-policy by what
    the method did before; `policy/mismatch_mean` says how far.
    """
    if batches[0].step != 1:
        raise ConfigError("--train begins with the policy of the start, so that it needs the recording of step 1")
    methods = methods or {resolve(config.method).name: resolve(config.method)}
    for name, recipe in methods.items():
        folder = (output or run / "replayed") / name
        rows = train(run, config, batches, recipe, folder)
        table = Table("step", *_SHOWN, title=f"{name}, on the recorded trajectories alone: {folder}", box=None)
        for row in rows:
            table.add_row(str(row["step"]), *(f"{row.get(key, float('nan')):.5g}" for key in _SHOWN))
        console.print(table)
    return 0


def train(run: Path, config: RunConfig, batches: Sequence[Batch], recipe: Recipe, folder: Path) -> list[dict[str, Any]]:
    """The rows of `folder/metrics.jsonl`; the policy at the end is in `folder/model`."""
    found = learner_at(config, run, 1, recipe)
    if isinstance(found, str):
        raise ConfigError(found)
    learner = found[0]
    rows = []
    for batch in batches:
        own = advantages_of(batch, recipe, config)
        pairs = [(r.trajectory(), own[r.key]) for r in batch.records if in_loss(r)]
        reports = learner.train_on(batch_from(pairs), batch_seed(config, batch.step))
        rows.append({"step": batch.step, "learner/trajectories": float(len(pairs)), **learner_metrics(reports)})
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    _, tokenizer = load_model(config.model.path, dtype="float32", device="cpu")
    learner.model.load_state_dict({**learner.model.state_dict(), **dict(learner.full_state())})
    save_model(learner.model, tokenizer, folder / "model")
    return rows
