"""What a run asks of a cluster, and whether the cluster has it: arithmetic on plain data, before anything is asked."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_rl.cluster.settings import ClusterSettings
from agent_rl.config import ConfigError


class ClusterShort(ConfigError):
    """The cluster lacks something that the run asks for; after the loss of a node it may be there again later."""


Resources = dict[str, float]
"""Amounts by Ray's names, such as `CPU` and `GPU`."""


@dataclass(frozen=True)
class Bundle:
    """Resources that must lie on one node, and who uses them."""

    resources: Resources
    users: tuple[str, ...]

    @property
    def label(self) -> str:
        return " + ".join(self.users)


@dataclass(frozen=True)
class GroupRequest:
    """One placement group."""

    bundles: tuple[Bundle, ...]
    strategy: str
    """`PACK`, `SPREAD` or `STRICT_SPREAD`."""


@dataclass(frozen=True)
class Placement:
    """All groups of a run, and where in them each actor goes: (group, bundle)."""

    groups: tuple[GroupRequest, ...]
    ranks: tuple[tuple[int, int], ...]
    rollouts: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Node:
    """A node of the cluster and what is free on it."""

    name: str
    free: Resources


def placement(settings: ClusterSettings) -> Placement:
    """The placement groups of a run."""
    rank = _amounts(settings.learner_cpus, settings.learner_gpus)
    rollout = _amounts(settings.rollout_cpus, settings.rollout_gpus)
    if settings.placement == "split":
        ranks = tuple(Bundle(rank, (f"learner rank {i}",)) for i in range(settings.learner_ranks))
        rollouts = tuple(Bundle(rollout, (f"rollout actor {i}",)) for i in range(settings.rollout_actors))
        return Placement(
            (GroupRequest(ranks, "PACK"), GroupRequest(rollouts, settings.spread.upper())),
            tuple((0, i) for i in range(len(ranks))),
            tuple((1, i) for i in range(len(rollouts))),
        )
    bundles = []
    for i in range(settings.learner_ranks):
        guests = range(i, settings.rollout_actors, settings.learner_ranks)
        # GPUs are shared in turn, each side sleeping while the other works; CPUs are not.
        gpus = max(settings.learner_gpus, settings.rollout_gpus)
        cpus = settings.learner_cpus + settings.rollout_cpus * len(guests)
        users = (f"learner rank {i}", *(f"rollout actor {g}" for g in guests))
        bundles.append(Bundle(_amounts(cpus, gpus), users))
    at = tuple((0, i % settings.learner_ranks) for i in range(settings.rollout_actors))
    group = GroupRequest(tuple(bundles), settings.spread.upper())
    return Placement((group,), tuple((0, i) for i in range(settings.learner_ranks)), at)


def shortages(wanted: Placement, nodes: Sequence[Node]) -> list[str]:
    """Why the request cannot be met now, a sentence each; empty if it can.

    Bundles are laid onto nodes largest first, each on the node with the most of its scarcest resource left. Ray's own
    choice may differ, but what fails here for lack of a resource fails there, too, in all but contrived cases.
    """
    if not nodes:
        return ["the cluster has no live node"]
    left = {node.name: dict(node.free) for node in nodes}
    found: list[str] = []
    for group in wanted.groups:
        used: set[str] = set()
        for bundle in sorted(group.bundles, key=lambda b: -sum(b.resources.values())):
            names = [name for name in left if not (group.strategy == "STRICT_SPREAD" and name in used)]
            fitting = [name for name in names if _fits(bundle.resources, left[name])]
            if not fitting:
                found.append(_complaint(bundle, {name: left[name] for name in names}, group.strategy))
                continue
            place = _choose(group.strategy, fitting, left, used)
            used.add(place)
            for kind, amount in bundle.resources.items():
                left[place][kind] -= amount
    return found


def available_cpus(root: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs that this process may use: affinity and the cgroup's quota (v2, v1), whichever is less; at least 1."""
    limits = [float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)]
    unified, quota, period = root / "cpu.max", root / "cpu/cpu.cfs_quota_us", root / "cpu/cpu.cfs_period_us"
    if unified.is_file():
        limit, _, per = unified.read_text().strip().partition(" ")
        if limit != "max":
            limits.append(float(limit) / float(per or 100_000))
    elif quota.is_file() and period.is_file() and int(quota.read_text()) > 0:
        limits.append(int(quota.read_text()) / int(period.read_text()))
    return max(math.floor(min(limits) + 1e-6), 1)


def _amounts(cpus: float, gpus: float) -> Resources:
    return {"CPU": cpus} | ({"GPU": gpus} if gpus else {})


def _fits(wanted: Resources, free: Resources) -> bool:
    return all(free.get(kind, 0.0) + 1e-9 >= amount for kind, amount in wanted.items())


def _choose(strategy: str, fitting: list[str], left: dict[str, Resources], used: set[str]) -> str:
    if strategy == "PACK":
        return min(fitting, key=lambda n: (n not in used, sum(left[n].values())))
    return min(fitting, key=lambda n: (n in used, -sum(left[n].values())))


def _complaint(bundle: Bundle, left: dict[str, Resources], strategy: str) -> str:
    """Which resource is short for a bundle, and what each node has left of it."""
    if not left:
        return f"{bundle.label} needs a node of its own (cluster.spread = strict_spread) and every node is taken"
    kinds = [k for k, n in bundle.resources.items() if not any(free.get(k, 0.0) + 1e-9 >= n for free in left.values())]
    parts = []
    for kind in kinds or list(bundle.resources):
        have = ", ".join(f"{name} has {free.get(kind, 0.0):g} left" for name, free in left.items())
        parts.append(f"{bundle.resources[kind]:g} {kind} ({have})")
    together = "" if kinds else " on one node"
    remedy = "lower cluster.rollout_actors, learner_ranks or the CPUs and GPUs of each, or add nodes"
    return f"{bundle.label} needs {' and '.join(parts)}{together}; {remedy}"
