"""Batches of problems without end, whose position can be saved and restored exactly."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from agent_rl.tasks.problems import Problems, shares
from agent_rl.types import Problem


class ProblemStream:
    """Draws batches of `batch` different problems, epoch after epoch.

    Batches always have `batch` problems: one that reaches the end of an epoch goes on with the next. No problem
    stands twice in a batch (attempts are named by problem and sample), so a problem that comes up again too soon
    waits for the next batch.

    Args:
        problems: the problems.
        batch: problems a batch; at most as many as there are different ones.
        seed: seed of the orders.
    """

    def __init__(self, problems: Problems, batch: int, seed: int):
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        self._check_supply(problems, batch)
        self.problems = problems
        self.batch = batch
        self.seed = seed
        self.epoch = 0
        """Epoch that the next fresh problem belongs to."""
        self.position = 0
        """How many problems of that epoch were drawn; never a whole epoch."""
        self._waiting: list[int] = []
        self._order = problems.order(seed, 0)

    @staticmethod
    def _check_supply(problems: Problems, batch: int) -> None:
        draws = shares(problems.weights, batch) if problems.weights else {}
        short = {s: n for s, n in draws.items() if n > len(problems.by_source[s])}
        if short:
            source, needed = next(iter(short.items()))
            raise ValueError(
                f"mix: a batch of {batch} needs about {needed} problems of {source!r}, which has "
                f"{len(problems.by_source[source])}; lower its weight or the batch size"
            )
        if batch > len(problems):
            raise ValueError(f"a batch of {batch} needs {batch} different problems, there are {len(problems)}")

    def next_batch(self, count: int | None = None, *, apart_from: Collection[str] = ()) -> list[Problem]:
        """The next problems, all different: `count` of them (default `batch`), none with an id in `apart_from`.

        Fewer come back when there are not so many that are allowed; those passed over wait for the next batch.
        """
        wanted = self.batch if count is None else count
        chosen: dict[int, None] = {}
        still_waiting: list[int] = []

        def offer(index: int) -> None:
            allowed = index not in chosen and self.problems[index].id not in apart_from
            if allowed and len(chosen) < wanted:
                chosen[index] = None
            else:
                still_waiting.append(index)

        for index in self._waiting:
            offer(index)
        fruitless = 0  # a whole epoch without a problem that is allowed: there is none
        while len(chosen) < wanted and fruitless <= len(self._order):
            before = len(chosen)
            offer(self._draw())
            fruitless = 0 if len(chosen) > before else fruitless + 1
        self._waiting = still_waiting
        return [self.problems[i] for i in chosen]

    def _draw(self) -> int:
        index = self._order[self.position]
        self.position += 1
        if self.position == len(self._order):
            self.epoch, self.position = self.epoch + 1, 0
            self._order = self.problems.order(self.seed, self.epoch)
        return index

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON."""
        return {
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
            "waiting": [self.problems[i].id for i in self._waiting],
            "fingerprint": self.problems.fingerprint,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken. ValueError if data or seed are not those of the state."""
        if state["fingerprint"] != self.problems.fingerprint:
            raise ValueError(
                f"the data changed since the state was saved (fingerprint {state['fingerprint'][:12]}, now "
                f"{self.problems.fingerprint[:12]}): restore the data, or start a new run"
            )
        if state["seed"] != self.seed:
            raise ValueError(f"the state was saved with seed {state['seed']}, the stream has seed {self.seed}")
        order = self.problems.order(self.seed, state["epoch"])
        if not 0 <= state["position"] < len(order):
            raise ValueError(f"position {state['position']} lies outside an epoch of {len(order)} problems")
        index_of = {p.id: i for i, p in enumerate(self.problems)}
        self.epoch, self.position = state["epoch"], state["position"]
        self._waiting = [index_of[i] for i in state["waiting"]]
        self._order = order
