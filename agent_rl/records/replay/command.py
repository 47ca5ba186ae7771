"""What `agent-rl replay` does: everything again, in the order in which data flows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from agent_rl.algorithms.settings import MethodSettings, resolve
from agent_rl.config import ConfigError, dump, load
from agent_rl.engines.loading import ModelError, load_model, model_fingerprint
from agent_rl.evaluation.command import EvalConfig
from agent_rl.evaluation.run import CONFIG, IDENTITY
from agent_rl.learner.checkpoint import CheckpointError
from agent_rl.records import manifest
from agent_rl.records.reader import folders, trajectories, updates
from agent_rl.records.replay import episode, learning
from agent_rl.records.replay.stages import Outcome, Stage, ordered
from agent_rl.records.replay.tools import replay_tools
from agent_rl.records.schema import Record
from agent_rl.records.shards import RecordError
from agent_rl.rewards.verifier import Verifier
from agent_rl.rollout.answers import ExtractionRules
from agent_rl.rollout.serve import format_of, open_sandbox
from agent_rl.tir.formats import PromptFormat, TemplateError
from agent_rl.tir.tool import SandboxTool
from agent_rl.training.run_dir import RunDir
from agent_rl.training.settings import RunConfig
from agent_rl.types import InfrastructureError
from sandbox.client import SandboxClientError

EQUAL, DIFFERS, REFUSED = 0, 1, 2
PLAIN = (ConfigError, RecordError, ModelError, CheckpointError, TemplateError, SandboxClientError, InfrastructureError)
"""Errors whose message says all that a user needs."""


@dataclass(frozen=True)
class Asked:
    """What to replay."""

    step: int | None = None
    """None = all recorded training steps."""
    tools: bool = True
    """Whether to run the programs again."""
    weights: bool = True
    """Whether to recompute from checkpoints, where they are kept."""
    methods: tuple[str, ...] = ()
    """`--with`: other methods to hold against the recorded one."""
    train: bool = False
    """`--train`: learn from the recorded trajectories alone."""
    as_json: bool = False
    html: Path | None = None
    output: Path | None = None


def replay(run: Path, asked: Asked) -> int:
    """Replay and report; 0 if all that was checked is equal, 1 if something differs, 2 if it cannot be done."""
    console = Console(stderr=asked.as_json)
    try:
        if (run / IDENTITY).is_file():
            return _report(asyncio.run(replay_evaluation(run, asked)), asked, console)
        opened, config = RunDir.open(run)
        _set_threads(config, opened)
        methods = {name: resolve(MethodSettings(preset=name)) for name in asked.methods}
        batches = batches_of(run, asked.step)
        if asked.train:
            from agent_rl.records.replay.train import train_on_recordings

            return train_on_recordings(run, config, batches, methods, asked.output, console)
        if methods:
            from agent_rl.records.replay.compare import compare

            return compare(run, config, batches, methods, asked.html, console)
        return _report(asyncio.run(replay_run(run, config, batches, asked)), asked, console)
    except (*PLAIN, ValueError) as error:
        Console(stderr=True).print(f"error: {error}", highlight=False)
        return REFUSED


def _report(outcome: Outcome, asked: Asked, console: Console) -> int:
    if asked.as_json:
        print(json.dumps(outcome.as_json(), indent=1))
    else:
        tell(console, outcome)
    return EQUAL if outcome.first is None else DIFFERS


async def replay_run(run: Path, config: RunConfig, batches: Sequence[learning.Batch], asked: Asked) -> Outcome:
    """All stages over the batches."""
    recipe = resolve(config.method)
    records = [record for batch in batches for record in batch.records]
    model, tokenizer = load_model(config.model.path, dtype="float32", device=config.engine.device)
    form = format_of(model, tokenizer, config.tir, config.model)
    found = await _episodes(records, config, form, asked, seed=config.seed)
    for batch in batches:
        found.append(episode.replay_advantages(batch.records, recipe, void_filter=config.void_filter))
        found += [learning.replay_sampler(batch), learning.replay_quantities(batch, recipe)]
        found += _from_weights(batch, run, config) if asked.weights else []
    return Outcome(ordered(found), _context(run, config, config.records.level, tokenizer, model_fingerprint(model)))


async def replay_evaluation(folder: Path, asked: Asked) -> Outcome:
    """The stages that an evaluation has: everything before advantages.

    Raises:
        ConfigError: another kind of replay is asked for than an evaluation allows, or its settings are not there.
    """
    if asked.methods or asked.train or asked.step is not None:
        raise ConfigError(f"{folder} is an evaluation: --with, --train and --step need a training run")
    if not (folder / CONFIG).is_file():
        raise ConfigError(f"{folder} was recorded without its settings ({CONFIG}), which a replay needs")
    config = load(folder / CONFIG, model=EvalConfig)
    records = list(trajectories(folder))
    model, tokenizer = load_model(config.model.path, dtype=config.engine.dtype, device="cpu")
    form = format_of(model, tokenizer, config.tir, config.model)
    stages = await _episodes(records, config, form, asked, seed=config.evaluation.seed)
    return Outcome(ordered(stages), _context(folder, config, "full", tokenizer, model_fingerprint(model)))


async def _episodes(
    records: Sequence[Record], config: RunConfig | EvalConfig, form: PromptFormat, asked: Asked, *, seed: int
) -> list[Stage]:
    """Everything up to the rewards."""
    found: list[Stage] = []
    if asked.tools:
        found.append(await _tools(records, config, seed))
    else:
        found.append(Stage("tools", notes=["not run again (--no-tools)"]))
    found.append(episode.replay_tokens(records, form, config.tir))
    found.append(episode.replay_answers(records, ExtractionRules(config.rewards), config.tir))
    async with Verifier(config.rewards.verifier) as verifier:
        found.append(await episode.replay_verdicts(records, verifier))
    found.append(episode.replay_rewards(records, config.rewards))
    return found


async def _tools(records: Sequence[Record], config: RunConfig | EvalConfig, seed: int) -> Stage:
    async with AsyncExitStack() as stack:
        client, isolation = await open_sandbox(stack, config.sandbox)

        def open_tool() -> SandboxTool:
            return SandboxTool(client, config.tir.tool, seed=seed)

        stage = await replay_tools(records, open_tool, deadline_s=config.tir.deadline_s)
        stage.notes.append(isolation)
        return stage


def _from_weights(batch: learning.Batch, run: Path, config: RunConfig) -> list[Stage]:
    weights = Stage("weights")
    if not batch.updates:
        reason = "its batch had nothing to learn from" if not any(map(learning.in_loss, batch.records)) else (
            "its updates were not recorded token by token (records.level: full, records.every)"
        )  # fmt: skip
        weights.notes.append(f"step {batch.step}: {reason}")
        return [weights]
    found = learning.learner_at(config, run, batch.step)
    if isinstance(found, str):
        weights.notes.append(found)
        return [weights]
    learner, base = found
    recorded = (manifest.read(folders(run)[0]) or {}).get("hashes", {}).get("base model")
    if recorded is not None:
        weights.check(f"base model {config.model.path}", recorded, base)
    return [weights, *learning.replay_updates(batch, learner, config)]


def batches_of(run: Path, step: int | None = None) -> list[learning.Batch]:
    """The recorded rollout batches of a run, or one of them; RecordError if there is none."""
    by_step: dict[int, list[Record]] = {}
    for record in trajectories(run, split="train", step=step):
        by_step.setdefault(record.step or 0, []).append(record)
    if not by_step:
        raise RecordError(f"{run} has no recorded training step" + ("" if step is None else f" {step}"))
    return [learning.Batch(s, records, updates(run, s)) for s, records in sorted(by_step.items())]


def _set_threads(config: RunConfig, run: RunDir) -> None:
    """As many threads as the run had: sums over tensors depend on it."""
    recorded = (manifest.read(run.trajectories) or {}).get("threads")
    if config.threads or recorded:
        torch.set_num_threads(config.threads or recorded)


def _context(run: Path, config: RunConfig | EvalConfig, level: str, tokenizer: Any, base: str) -> list[str]:
    then = manifest.read(folders(run)[0])
    if then is None:
        return ["there is no manifest: nothing is known of the code and tokenizer that the recording was made with"]
    now = manifest.describe(
        tokenizer=tokenizer,
        config=dump(config),
        level=level,
        model=config.model.path,
        fingerprints={"base model": base},
    )
    pairs = [(name, then["hashes"].get(name), value) for name, value in now["hashes"].items()]
    pairs += [(name, then["versions"].get(name), value) for name, value in now["versions"].items()]
    pairs += [(name, then.get(name), now[name]) for name in ("agent_rl", "verifier")]
    return [f"{name} was {a}, is {b}" for name, a, b in pairs if a is not None and a != b]


def tell(console: Console, outcome: Outcome) -> None:
    """The report, for people."""
    for line in outcome.context:
        console.print(f"another now: {line}", style="yellow", highlight=False)
    table = Table("stage", "result", "checked", "differing", "", box=None)
    colours = {"equal": "green", "differs": "bold red", "not checked": "dim"}
    for stage in outcome.stages:
        result = f"[{colours[stage.status]}]{stage.status}[/]"
        table.add_row(stage.name, result, str(stage.checked), str(len(stage.differences)), "; ".join(stage.notes[:3]))
    console.print(table)
    first = outcome.first
    if first is None:
        console.print("everything that was checked is equal", style="green")
        return
    console.print(f"the first stage that differs: [bold]{first.name}[/bold]")
    for difference in first.differences[:10]:
        console.print(f"  {difference}", highlight=False, markup=False)
    if len(first.differences) > 10:
        console.print(f"  ... and {len(first.differences) - 10} more")
