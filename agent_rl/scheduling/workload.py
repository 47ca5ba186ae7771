"""What episodes cost: tokens a turn and seconds a tool call, by group. From a recording, or stretched from one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

Turns = tuple[tuple[int, float], ...]
"""(tokens sampled, seconds of the tool after it; 0.0 without a call) of each turn of one episode."""


@dataclass(frozen=True)
class Workload:
    """Groups of episodes to draw from.

    Args:
        groups: attempts of each recorded problem.
        source: where they are from, in words.
        tokens: every number of tokens is multiplied by this: a recorded policy may be terse.
        spread: standard deviation of the logarithm of a further factor, drawn for each attempt, of mean 1; 0 leaves
            lengths as they were recorded. Lengths of reasoning policies are about log-normal.
    """

    groups: tuple[tuple[Turns, ...], ...]
    source: str
    tokens: float = 1.0
    spread: float = 0.0

    def draw(self, rng: random.Random, samples: int) -> list[Turns]:
        """Episodes of one group: attempts at one recorded problem, drawn with replacement."""
        recorded = rng.choice(self.groups)
        return [self._stretched(rng.choice(recorded), rng) for _ in range(samples)]

    def _stretched(self, turns: Turns, rng: random.Random) -> Turns:
        factor = self.tokens * rng.lognormvariate(-(self.spread**2) / 2, self.spread) if self.spread else self.tokens
        return tuple((max(round(tokens * factor), 1), seconds) for tokens, seconds in turns)

    def describe(self) -> str:
        """Source and stretching, in a sentence."""
        episodes = [turns for group in self.groups for turns in group]
        mean = fmean(sum(t for t, _ in turns) for turns in episodes) * self.tokens
        tool = fmean(sum(s for _, s in turns) for turns in episodes)
        spread = f", lengths spread by a log-normal factor of sigma {self.spread:g}" if self.spread else ""
        return (
            f"{self.source}: {len(episodes)} episodes of {len(self.groups)} problems, tokens x {self.tokens:g}"
            f"{spread}; mean {mean:.0f} tokens and {tool:.2f} s of tools an episode"
        )


def groups_of(records: Iterable[Mapping[str, Any]]) -> tuple[tuple[Turns, ...], ...]:
    """Costs of recorded trajectories by problem (see `agent_rl.records.schema.Record`); failed ones are left out."""
    found: dict[str, list[Turns]] = {}
    for record in records:
        if record["stop"] in ("failed", "deadline"):
            continue
        sampled = [len(s["ids"]) for s in record["segments"] if s["origin"] == "model"]
        tools = [turn["tool_seconds"] if turn["outcome"] else 0.0 for turn in record["turns"]]
        if sampled and len(sampled) == len(tools):
            turns = tuple((n, round(s, 3)) for n, s in zip(sampled, tools, strict=True))
            found.setdefault(record["problem"]["id"], []).append(turns)
    return tuple(tuple(turns) for turns in found.values())


def groups_from(plain: Sequence[Sequence[Sequence[Sequence[float]]]]) -> tuple[tuple[Turns, ...], ...]:
    """From plain JSON: problem -> attempt -> turn -> [tokens, seconds]."""
    return tuple(tuple(tuple((int(n), float(s)) for n, s in turns) for turns in group) for group in plain)
