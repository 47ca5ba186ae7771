"""The training loop: roll out, judge, learn, hand the weights over; one step at a time, resumable after each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from agent_rl.algorithms.settings import resolve
from agent_rl.config import dump
from agent_rl.learner.batch import batch_from
from agent_rl.records import manifest
from agent_rl.records.inspect.command import run_page
from agent_rl.records.recorder import TrajectoryRecorder
from agent_rl.tir.episode import stream_seed
from agent_rl.training.asynchronous import AsynchronousSource
from agent_rl.training.batch import assign_advantages, trained_pairs
from agent_rl.training.evaluate import measure
from agent_rl.training.loop_lag import LoopLag
from agent_rl.training.metrics import learner_metrics, rollout_metrics, staleness_metrics
from agent_rl.training.parts import Parts
from agent_rl.training.plan import batch_sentence, recipe_sentence
from agent_rl.training.progress import Display
from agent_rl.training.recording import Recording
from agent_rl.training.recovery import PartLost
from agent_rl.training.run_dir import RunDir
from agent_rl.training.settings import RunConfig
from agent_rl.training.source import BatchSource, SynchronousSource
from agent_rl.training.trackers import Tracker
from agent_rl.training.unfinished import Unfinished
from agent_rl.types import Group, Trajectory
from agent_rl.weights.proof import SyncLog

REPORTED = 1000
"""Most trajectories in a run's `report.html`; `agent-rl inspect` makes a page of as many as wanted."""


class Interrupted(Exception):
    """The run was asked to stop; everything up to the last finished step is saved."""


@dataclass
class Trainer:
    """The state of a run: how far it is, and the parts it works with."""

    config: RunConfig
    run: RunDir
    parts: Parts
    display: Display
    trackers: list[Tracker] = field(default_factory=list)
    step: int = 0
    """Finished steps; also the version of the weights."""

    def __post_init__(self) -> None:
        config = self.config
        self._recipe = resolve(config.method)
        self._source = self._make_source()
        self._lag = LoopLag()
        recorder = TrajectoryRecorder(self.run.trajectories, level=config.records.level, piece=self.parts.piece)
        self._recording = Recording(recorder, config.records, config.void_filter)
        self._sync = self.parts.learning.sync(SyncLog(self.run.path))
        self._saved_at: int | None = None
        self._score: float | None = None
        self._seconds: list[float] = []
        self._stopping = False
        self._learning = False
        self._whole = True
        self._cancellable: asyncio.Task[Any] | None = None

    def _make_source(self) -> BatchSource:
        if self.config.mode == "sync":
            return SynchronousSource(self.config, self.parts, self.display)
        return AsynchronousSource(self.config, self.parts, self.display, Unfinished(self.run.path / "unfinished"))

    async def resume(self, path: Path) -> None:
        """Go on where the checkpoint at `path` was taken; what came after it is dropped and made again."""
        restored = self.parts.learning.load(path)
        self.step = self._saved_at = restored.step
        self.run.truncate_metrics(self.step)
        self._recording.recorder.drop_after(self.step)
        self._sync.drop_after(self.step)
        await self._hand_over_weights()
        self._source.restore(restored.progress, self.step)

    def interrupt(self) -> None:
        """Stop at the next safe place: rollouts are cancelled, an update is finished. Called on Ctrl-C."""
        self._stopping = True
        if self._cancellable is not None:
            self._cancellable.cancel()

    async def train(self) -> None:
        """Run all steps that are left.

        Raises:
            Interrupted: `interrupt` was called; a checkpoint of the last finished step is there.
        """
        manifest.write(self.run.trajectories, self._manifest())
        self._lag.start()
        try:
            if self.step == 0:
                self._recording.recorder.drop_after(-1)
                self._sync.drop_after(-1)
                await self._hand_over_weights()
                await self._evaluate()
            self.display.header()
            while self.step < self.config.steps:
                await self._one_step()
        except PartLost:
            self._whole = False
            raise
        finally:
            try:
                # Neither an update that failed half-way nor ranks that are gone are a place to go on from.
                if self.step > 0 and self._whole and not self._learning:
                    self._checkpoint()
            finally:
                await self._source.close()
                await self._lag.stop()
                await self._sync.close()
            self._report()

    async def _one_step(self) -> None:
        start, recorded, clocks = time.monotonic(), self._recording.seconds, self._source.clocks
        before, sampled = clocks.read(), clocks.sampled_tokens
        groups = await self._until_interrupted(self._source.batch(self.step + 1))
        rolled_out = time.monotonic()
        assign_advantages(groups, self._recipe.advantage, void_filter=self.config.void_filter)
        self._recording.batch(self.step + 1, groups)
        row = rollout_metrics(groups) | self._source.metrics() | self.parts.rollout.metrics()
        self._learning = True
        row |= await self._learn(groups)
        learnt = time.monotonic()
        self.step += 1
        self._source.learnt()
        self._learning = False
        row |= await self._hand_over_weights()
        self._source.weights_served()
        seconds = time.monotonic() - start
        busy = {name: now - before[name] for name, now in clocks.read().items()}
        row |= {
            "time/step": seconds,
            "time/rollout": rolled_out - start,
            **{f"time/{name}": value for name, value in busy.items()},
            "time/update": learnt - rolled_out,
            "time/recording": self._recording.seconds - recorded,
            "time/tokens_per_second": (clocks.sampled_tokens - sampled) / max(busy["generation"], 1e-9),
            "time/learner_idle_share": 1 - (learnt - rolled_out) / seconds,
            "time/engine_idle_share": max(1 - busy["generation"] / seconds, 0.0),
            **self._lag.read(),
        }
        self._log(row)
        self._seconds.append(seconds)
        left = (self.config.steps - self.step) * median(self._seconds)
        self.display.step(self.step, self.config.steps, row, left)
        await self._evaluate()
        every = self.config.learner.checkpoint.every
        if every and self.step % every == 0:
            self._checkpoint()
        if self._stopping:
            raise Interrupted

    async def _learn(self, groups: list[Group]) -> dict[str, float]:
        """The updates of one batch, in a thread so that the loop stays awake."""
        pairs = trained_pairs(groups, void_filter=self.config.void_filter)
        batch, staleness = batch_from(pairs), staleness_metrics([t for t, _ in pairs], self.step)
        seed = stream_seed(str(self.config.seed), "minibatches", self.step + 1, 0)
        explain = self._recording.wants_details(self.step + 1)
        reports = await asyncio.to_thread(self.parts.learning.train_on, batch, seed, with_details=explain)
        self._recording.updates(self.step + 1, batch, reports)
        return {"learner/trajectories": float(len(batch)), **learner_metrics(reports), **staleness}

    async def _hand_over_weights(self) -> dict[str, float]:
        """Give the engine the learner's weights as version `step`, with proof; numbers of the proof.

        Raises:
            SyncError: the engine does not serve what was sent.
        """
        proof = await self._sync.hand_over(self.step)
        return {} if proof is None else proof.metrics()

    async def _evaluate(self) -> None:
        """Measure every held-out set that is due, and log one row."""
        row: dict[str, float] = {}
        start = time.monotonic()
        for held_out in self.parts.data.held_out:
            if not held_out.is_due(self.step, self.config.steps):
                continue
            with self.display.bar(f"measuring {held_out.name}", held_out.attempts) as bar:

                def advance(trajectory: Trajectory, bar: Any = bar) -> None:
                    bar.advance()

                values, trajectories = await self._until_interrupted(
                    measure(
                        held_out,
                        self.parts.rollout,
                        temperature=self.config.temperature,
                        seed=self.config.seed,
                        on_finish=advance,
                    )
                )
            row |= values
            self._score = values.get(f"{self.parts.data.held_out[0].name}/accuracy_sampled", self._score)
            self._recording.measurement(held_out.name, self.step, held_out.kept(trajectories))
        if row:
            row["time/evaluation"] = time.monotonic() - start
            self._log(row)
            self.display.evaluation(self.step, row)

    async def _until_interrupted(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run cancellable work; Interrupted if it was cancelled because the run is to stop."""
        if self._stopping:
            work.close()
            raise Interrupted
        self._cancellable = asyncio.create_task(work)
        try:
            return await self._cancellable
        except asyncio.CancelledError:
            if self._stopping:
                raise Interrupted from None
            raise
        finally:
            self._cancellable.cancel()
            self._cancellable = None

    def _log(self, row: dict[str, float]) -> None:
        self.run.append_metrics({"step": self.step, **row})
        for tracker in self.trackers:
            tracker.log(self.step, row)

    def _manifest(self) -> dict[str, Any]:
        return manifest.describe(
            tokenizer=self.parts.tokenizer,
            config=dump(self.config),
            level=self.config.records.level,
            model=self.config.model.path,
            fingerprints=self.parts.fingerprints,
        )

    def _report(self) -> None:
        """Write `report.html`, the page of `agent-rl inspect`, of what there is so far."""
        if rows := self._recording.rows():
            subtitle = f"{batch_sentence(self.config)}; {recipe_sentence(self.config)}; {self.parts.sandbox}"
            run_page(self.run.path / "report.html", self.run.path, rows, subtitle=subtitle, limit=REPORTED)

    def _checkpoint(self) -> None:
        if self._saved_at == self.step and not self._source.moved_on():
            return
        progress = {"step": self.step, **self._source.progress(self.step)}
        self.parts.learning.save(self.run.checkpoints, self.step, progress, score=self._score)
        self._source.saved(progress, self.run.checkpoints)
        self._saved_at = self.step
