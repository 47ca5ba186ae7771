"""What `agent-rl train` does: set up, run, end well, whatever happens."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_rl.cluster.resources import ClusterShort
from agent_rl.config import ConfigError
from agent_rl.engines.loading import ModelError
from agent_rl.learner.checkpoint import CheckpointError, newest_complete
from agent_rl.rollout.run import TooManyFailures
from agent_rl.tir.formats import TemplateError
from agent_rl.training.elsewhere import plan_elsewhere
from agent_rl.training.loop import Interrupted, Trainer
from agent_rl.training.parts import Parts, build
from agent_rl.training.plan import batch_sentence, make_plan, recipe_sentence
from agent_rl.training.preview import isolation_of, shape_and_data
from agent_rl.training.progress import Display
from agent_rl.training.recovery import Breaker, PartLost
from agent_rl.training.run_dir import RunDir
from agent_rl.training.settings import RunConfig
from agent_rl.training.summary import closing_lines
from agent_rl.training.trackers import trackers
from agent_rl.types import InfrastructureError
from agent_rl.weights.errors import SyncError
from sandbox.client import SandboxClientError

DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
PLAIN = (
    ConfigError,
    TemplateError,
    ModelError,
    CheckpointError,
    TooManyFailures,
    InfrastructureError,
    SandboxClientError,
    SyncError,
    PartLost,
)
"""Errors whose message says all that a user needs; others keep their traceback."""
RECOVERABLE = (PartLost, ClusterShort, TooManyFailures, InfrastructureError, SandboxClientError)
"""Losses after which the last checkpoint is a place to go on from."""


def dry_run(config: RunConfig, display: Display | None = None) -> int:
    """Print the plan; exit status 2 if the run cannot work."""
    display = display or Display()
    try:
        if config.hardware.gpu_memory_gib is not None:
            plan = plan_elsewhere(config)
        else:
            shape, problems = shape_and_data(config)
            plan = make_plan(config, shape, problems, asyncio.run(isolation_of(config.sandbox)))
    except PLAIN as error:
        display.error(str(error))
        return REFUSED
    for line in plan.lines:
        display.say(line)
    for reason in plan.refusals:
        display.error(reason)
    return REFUSED if plan.refusals else DONE


def train(config: RunConfig, run: RunDir | None = None, display: Display | None = None) -> int:
    """Train, or go on with `run`; the exit status."""
    display = display or Display()
    display.say(batch_sentence(config))
    display.say(recipe_sentence(config))
    breaker, progress = Breaker(config.recovery), Progress()
    while True:
        try:
            return asyncio.run(_train(config, run, display, progress))
        except PLAIN as error:
            run = run or progress.run
            wait = breaker.wait(progress.step, progress.first) if isinstance(error, RECOVERABLE) else None
            if wait is None or run is None:
                display.error(breaker.sentence(str(error)))
                return FAILED
            display.say(f"lost a part of the run: {error}")
            display.say(f"going on from the last checkpoint in {wait:g} s")
            try:
                time.sleep(wait)
            except KeyboardInterrupt:
                display.say(f"stopped; go on with: agent-rl train --resume {run.path}")
                return INTERRUPTED


@dataclass
class Progress:
    """How far a run came in this process, also when it was cut off."""

    run: RunDir | None = None
    first: int = 0
    """Finished steps when this process began."""
    step: int = 0
    began: bool = False


def _checkpoint_to_resume(run: RunDir, display: Display) -> Path | None:
    """The newest whole checkpoint; None to begin at the beginning. Says what it passed over and why."""
    found, ignored = newest_complete(run.checkpoints)
    for passed in ignored:
        display.say(f"checkpoint {passed.path.name} is passed over: {passed.reason}")
    if found is None:
        display.say(f"{run.path} has no whole checkpoint; the run starts at step 0")
        run.truncate_metrics(-1)
    return found


@asynccontextmanager
async def _parts(config: RunConfig, display: Display) -> AsyncIterator[Parts]:
    """What the run is made of, in one process or on a cluster."""
    if config.cluster.kind == "ray":
        from agent_rl.cluster.parts import build_on_ray

        async with build_on_ray(config, display.say) as parts:
            yield parts
    else:
        async with build(config, display.say) as parts:
            yield parts


async def _train(config: RunConfig, run: RunDir | None, display: Display, progress: Progress) -> int:
    started = time.monotonic()
    async with _parts(config, display) as parts:
        found = None if run is None else _checkpoint_to_resume(run, display)
        resumed_after = None if found is None else int(found.name.removeprefix("step-"))
        run = progress.run = run or RunDir.create(config)
        tracked = trackers(config.trackers, run.path, resumed_after=resumed_after)
        trainer = Trainer(config, run, parts, display, tracked)
        display.say(f"run: {run.path}")
        if found is not None:
            await trainer.resume(found)
            display.say(f"going on after step {trainer.step}")
        if not progress.began:
            progress.began, progress.first = True, trainer.step
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, trainer.interrupt)
        try:
            await trainer.train()
        except Interrupted:
            display.say(f"stopped after step {trainer.step}; go on with: agent-rl train --resume {run.path}")
            return INTERRUPTED
        finally:
            progress.step = trainer.step
            for name in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(name)
            for tracker in trainer.trackers:
                tracker.close()
        report = str(run.path / "report.html")
        seconds = time.monotonic() - started
        for line in closing_lines(run.metrics(), seconds=seconds, report=report, run=str(run.path)):
            display.say(line)
    return DONE
