"""Where the training loop gets its batches from: played to the end one after the other, or ahead of the learner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent_rl.algorithms.settings import resolve
from agent_rl.engines.base import Sampling, rest
from agent_rl.rollout.run import Clocks
from agent_rl.tasks.stream import ProblemStream
from agent_rl.training.batch import assign_advantages
from agent_rl.training.parts import Parts
from agent_rl.training.progress import Display
from agent_rl.training.settings import RunConfig
from agent_rl.types import Group


class BatchSource(Protocol):
    """Judged groups for one step after the other."""

    clocks: Clocks
    """Of all rollouts for training since the start."""

    async def batch(self, step: int) -> list[Group]:
        """The groups that step `step` (from 1) learns from, and dead ones that were replaced, if any."""
        ...

    def learnt(self) -> None:
        """The weights hold what the last batch taught: it is no part of `progress` any more."""
        ...

    def weights_served(self) -> None:
        """The engine has new weights."""
        ...

    def metrics(self) -> dict[str, float]:
        """Of the last batch, besides what its trajectories tell."""
        ...

    def progress(self, step: int) -> dict[str, Any]:
        """Plain JSON for a checkpoint after `step` steps, from which `restore` goes on."""
        ...

    def saved(self, progress: dict[str, Any], checkpoints: Path) -> None:
        """The checkpoint with `progress` is written; `checkpoints` is the folder of those that are kept."""
        ...

    def moved_on(self) -> bool:
        """Whether there is work that a checkpoint of the same step, written earlier, would not have."""
        ...

    def restore(self, progress: dict[str, Any], step: int) -> None:
        """Go on where `progress` was made, after `step` steps. Called before the first batch, with weights served."""
        ...

    async def close(self) -> None:
        """End what is still played."""
        ...


def give_back(stream: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """The saved state of a problem stream that draws `problems` first."""
    return {**stream, "waiting": [*problems, *stream["waiting"]]}


@dataclass
class SynchronousSource:
    """Plays each batch to its end before the learner sees it."""

    config: RunConfig
    parts: Parts
    display: Display

    def __post_init__(self) -> None:
        self.clocks = Clocks()
        self._advantage = resolve(self.config.method).advantage
        self._stream = ProblemStream(self.parts.data.train, self.config.problems_per_step, self.config.seed)
        self._position = self._stream.state()

    async def batch(self, step: int) -> list[Group]:
        """One batch of groups; dead ones are replaced by fresh problems as often as the settings allow."""
        live: list[Group] = []
        dead: list[Group] = []
        for attempt in range(self.config.refill_rounds + 1):
            used = {group.problem.id for group in (*live, *dead)}
            problems = self._stream.next_batch(self.config.problems_per_step - len(live), apart_from=used)
            if not problems:
                break
            fresh = await self._groups(problems, step, attempt)
            assign_advantages(fresh, self._advantage, void_filter=self.config.void_filter)
            live += [group for group in fresh if not group.dead]
            dead += [group for group in fresh if group.dead]
            if len(live) == self.config.problems_per_step:
                break
        await rest(self.parts.engine)
        return live + dead

    async def _groups(self, problems: list[Any], step: int, attempt: int) -> list[Group]:
        samples = self.config.samples_per_problem
        with self.display.bar(f"step {step}", len(problems) * samples) as bar:
            return await self.parts.rollout.groups(
                problems,
                samples,
                sampling=Sampling(temperature=self.config.temperature),
                stream=f"{self.config.seed}/{step}/{attempt}",
                clocks=self.clocks,
                on_finish=lambda trajectory: bar.advance(),
            )

    def learnt(self) -> None:
        self._position = self._stream.state()

    def weights_served(self) -> None:
        """Nothing waits for them."""

    def metrics(self) -> dict[str, float]:
        return {}

    def progress(self, step: int) -> dict[str, Any]:
        return {"stream": self._position}

    def saved(self, progress: dict[str, Any], checkpoints: Path) -> None:
        """The checkpoint holds everything."""

    def moved_on(self) -> bool:
        return False

    def restore(self, progress: dict[str, Any], step: int) -> None:
        stream = progress["stream"]
        if unfinished := progress.get("unfinished"):
            problems = [group["problem"] for group in unfinished["groups"]]
            stream = give_back(stream, problems)
            self.display.say(
                f"{len(problems)} groups of the asynchronous run were not trained on yet; "
                "they are played anew, since this run is synchronous"
            )
        self._stream.restore(stream)
        self._position = self._stream.state()

    async def close(self) -> None:
        """Nothing is played between two batches."""
