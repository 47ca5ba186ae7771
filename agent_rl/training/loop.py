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
from agent_rl.engines.base import Sampling
from agent_rl.learner import checkpoint
from agent_rl.learner.batch import batch_from
from agent_rl.records import manifest
from agent_rl.records.inspect.command import run_page
from agent_rl.records.recorder import TrajectoryRecorder
from agent_rl.rollout.run import Clocks
from agent_rl.tasks.stream import ProblemStream
from agent_rl.tir.episode import stream_seed
from agent_rl.training.batch import assign_advantages, trained_pairs
from agent_rl.training.evaluate import measure
from agent_rl.training.metrics import learner_metrics, rollout_metrics
from agent_rl.training.parts import Parts
from agent_rl.training.plan import batch_sentence, recipe_sentence
from agent_rl.training.progress import Display
from agent_rl.training.recording import Recording
from agent_rl.training.run_dir import RunDir
from agent_rl.training.settings import RunConfig
from agent_rl.training.trackers import Tracker
from agent_rl.types import Group, Trajectory

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
        self._stream = ProblemStream(self.parts.data.train, config.problems_per_step, config.seed)
        self._position = self._stream.state()
        recorder = TrajectoryRecorder(self.run.trajectories, level=config.records.level, piece=self.parts.piece)
        self._recording = Recording(recorder, config.records, config.void_filter)
        self._saved_at: int | None = None
        self._score: float | None = None
        self._seconds: list[float] = []
        self._stopping = False
        self._learning = False
        self._cancellable: asyncio.Task[Any] | None = None

    async def resume(self, path: Path) -> None:
        """Go on where the checkpoint at `path` was taken; what came after it is dropped and made again."""
        restored = checkpoint.load(path, self.parts.learner, self.parts.fingerprints)
        self.step = self._saved_at = restored.step
        self._stream.restore(restored.progress["stream"])
        self._position = self._stream.state()
        self.run.truncate_metrics(self.step)
        self._recording.recorder.drop_after(self.step)
        await self._hand_over_weights()

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
        try:
            if self.step == 0:
                self._recording.recorder.drop_after(-1)
                await self._evaluate()
            self.display.header()
            while self.step < self.config.steps:
                await self._one_step()
        finally:
            if self.step > 0 and not self._learning:  # an update that failed half-way is no place to go on from
                self._checkpoint()
            self._report()

    async def _one_step(self) -> None:
        start, recorded = time.monotonic(), self._recording.seconds
        clocks = Clocks()
        groups = await self._until_interrupted(self._roll_out(clocks))
        rolled_out = time.monotonic()
        assign_advantages(groups, self._recipe.advantage, void_filter=self.config.void_filter)
        self._recording.batch(self.step + 1, groups)
        row = rollout_metrics(groups)
        self._learning = True
        row |= await self._learn(groups)
        learnt = time.monotonic()
        self.step += 1
        self._learning = False
        await self._hand_over_weights()
        self._position = self._stream.state()
        seconds = time.monotonic() - start
        sampled = sum(t.sampled_tokens for group in groups for t in group)
        row |= {
            "time/step": seconds,
            "time/rollout": rolled_out - start,
            "time/generation": clocks.generation.seconds,
            "time/tools": clocks.tools.seconds,
            "time/verdicts": clocks.verdicts.seconds,
            "time/update": learnt - rolled_out,
            "time/recording": self._recording.seconds - recorded,
            "time/tokens_per_second": sampled / max(clocks.generation.seconds, 1e-9),
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

    async def _roll_out(self, clocks: Clocks) -> list[Group]:
        """One batch of groups; dead ones are replaced by fresh problems as often as the settings allow."""
        live: list[Group] = []
        dead: list[Group] = []
        for attempt in range(self.config.refill_rounds + 1):
            used = {group.problem.id for group in (*live, *dead)}
            problems = self._stream.next_batch(self.config.problems_per_step - len(live), apart_from=used)
            if not problems:
                break
            fresh = await self._groups(problems, f"{self.config.seed}/{self.step + 1}/{attempt}", clocks)
            assign_advantages(fresh, self._recipe.advantage, void_filter=self.config.void_filter)
            live += [group for group in fresh if not group.dead]
            dead += [group for group in fresh if group.dead]
            if len(live) == self.config.problems_per_step:
                break
        return live + dead

    async def _groups(self, problems: list[Any], stream: str, clocks: Clocks) -> list[Group]:
        samples = self.config.samples_per_problem
        with self.display.bar(f"step {self.step + 1}", len(problems) * samples) as bar:
            return await self.parts.rollout.groups(
                problems,
                samples,
                sampling=Sampling(temperature=self.config.temperature),
                stream=stream,
                clocks=clocks,
                on_finish=lambda trajectory: bar.advance(),
            )

    async def _learn(self, groups: list[Group]) -> dict[str, float]:
        """The updates of one batch, in a thread so that the loop stays awake."""
        batch = batch_from(trained_pairs(groups, void_filter=self.config.void_filter))
        seed = stream_seed(str(self.config.seed), "minibatches", self.step + 1, 0)
        explain = self._recording.wants_details(self.step + 1)
        reports = await asyncio.to_thread(self.parts.learner.train_on, batch, seed, with_details=explain)
        self._recording.updates(self.step + 1, batch, reports)
        return {"learner/trajectories": float(len(batch)), **learner_metrics(reports)}

    async def _hand_over_weights(self) -> None:
        await self.parts.engine.load_weights(self.parts.learner.full_state(), self.step)

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
        if self._saved_at == self.step:
            return
        checkpoint.save(
            self.run.checkpoints,
            self.step,
            self.parts.learner,
            self.parts.tokenizer,
            {"step": self.step, "stream": self._position},
            fingerprints=self.parts.fingerprints,
            score=self._score,
            retention=self.config.learner.checkpoint,
        )
        self._saved_at = self.step
