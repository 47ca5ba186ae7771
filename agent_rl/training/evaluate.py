"""Held-out accuracy during a run, with the episode code of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent_rl.engines.base import Sampling
from agent_rl.rollout.run import Player
from agent_rl.training.metrics import accuracy, trajectory_rates
from agent_rl.training.settings import EvalSettings
from agent_rl.types import Problem, Trajectory

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class HeldOut:
    """One held-out set, ready to be measured."""

    name: str
    settings: EvalSettings
    problems: Sequence[Problem]

    def is_due(self, step: int, last: int) -> bool:
        """Measured before training, every so many steps, and after it."""
        every = self.settings.every
        return step in (0, last) or (every > 0 and step % every == 0)

    @property
    def attempts(self) -> int:
        return len(self.problems) * (self.settings.samples + int(self.settings.greedy))

    def kept(self, trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """Those of a measurement that are recorded: all, or as many as the settings say, evenly spread."""
        wanted = self.settings.record
        if wanted is None:
            return trajectories
        return trajectories[:: max(len(trajectories) // max(wanted, 1), 1)][:wanted]


async def measure(
    held_out: HeldOut, rollout: Player, *, temperature: float, seed: int, on_finish: Callable[[Trajectory], None]
) -> tuple[dict[str, float], list[Trajectory]]:
    """Metrics under the set's name, and the sampled trajectories (greedy ones if none were sampled).

    Random streams depend on seed and set, not on the step, so that two measurements differ by the policy.
    """
    values: dict[str, float] = {}
    kept: list[Trajectory] = []
    plans = [
        ("sampled", held_out.settings.samples, Sampling(temperature=temperature)),
        ("greedy", int(held_out.settings.greedy), GREEDY),
    ]
    for label, samples, sampling in plans:
        if samples == 0:
            continue
        groups = await rollout.groups(
            held_out.problems, samples, sampling=sampling, stream=f"{seed}/{held_out.name}", on_finish=on_finish
        )
        trajectories = [t for group in groups for t in group]
        values[f"{held_out.name}/accuracy_{label}"] = accuracy(trajectories)
        if not kept:
            kept = trajectories
            rates = trajectory_rates([t for t in trajectories if not t.failed])
            for rate in ("tool_call_rate", "tool_ok_rate", "void", "truncated", "undecided", "turns"):
                values[f"{held_out.name}/{rate}"] = rates[f"rollout/{rate}"]
    return values, kept
