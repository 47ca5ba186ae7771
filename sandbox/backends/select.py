"""Choosing a tier: every candidate is tried, the strongest that holds is taken, and none below the floor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sandbox.backends.base import Backend, Probe, Tier
from sandbox.backends.bwrap import BwrapBackend
from sandbox.backends.docker import DockerBackend
from sandbox.backends.docker_settings import DockerSettings
from sandbox.backends.embedded import LandlockBackend, UnsafeBackend

BACKENDS: dict[str, Callable[..., Backend]] = {
    "bwrap": BwrapBackend,
    "docker": DockerBackend,
    "landlock": LandlockBackend,
    "unsafe": UnsafeBackend,
}
AUTO = ("bwrap", "docker", "landlock")
"""What `auto` tries, in this order: of the same tier the earlier is taken. `unsafe` is taken only when named."""


class SandboxUnavailable(RuntimeError):
    """No boundary of the strength asked for works on this machine; the message says why and what to do."""

    def __init__(self, message: str, probes: Sequence[Probe]) -> None:
        super().__init__(message)
        self.probes = list(probes)


async def choose_backend(
    name: str = "auto",
    min_tier: Tier = Tier.T1,
    *,
    packages: Sequence[str] = (),
    cpus: float | None = 1.0,
    cgroups: bool = True,
    docker: DockerSettings | None = None,
) -> tuple[Backend, list[Probe]]:
    """The strongest working backend (or the one named) and what every candidate did when it was tried.

    `packages` are imported into the warm interpreter beyond the default ones; `cpus` is each slot's share where
    a control group can be had; `cgroups=False` does without; `docker` says which engine and image the docker tier
    uses. Raises SandboxUnavailable if nothing reaches `min_tier`, ValueError for an unknown name. `auto` stops where no
    later candidate could be stronger.
    """
    if name != "auto" and name not in BACKENDS:
        raise ValueError(f"unknown sandbox backend {name!r}: it is auto, {', '.join(BACKENDS)}")
    if name == "unsafe" and min_tier > Tier.T0:
        raise SandboxUnavailable(
            f"the backend `unsafe` is tier T0 and the least allowed is {min_tier.name}: it does not isolate. "
            "Take `auto`, or lower the floor to T0 if every program is trusted.",
            [],
        )
    best: tuple[Tier, Backend] | None = None
    probes: list[Probe] = []
    names = AUTO if name == "auto" else (name,)
    candidates = [make_backend(n, packages=packages, cpus=cpus, cgroups=cgroups, docker=docker) for n in names]
    for number, backend in enumerate(candidates, start=1):
        probe = await backend.probe()
        probes.append(probe)
        if probe.tier is not None and (best is None or probe.tier > best[0]):
            best = probe.tier, backend
        if best is not None and all(later.tier <= best[0] for later in candidates[number:]):
            break
    if best is None or best[0] < min_tier:
        reached = f"the best is {best[1].name} at {best[0].name}" if best else "none works"
        reasons = "\n".join(f"- {probe.backend}: {probe.reason or _reached(probe)}" for probe in probes)
        raise SandboxUnavailable(
            f"no sandbox of tier {min_tier.name} or better can be had here ({reached}):\n{reasons}", probes
        )
    return best[1], probes


def make_backend(name: str, *, docker: DockerSettings | None = None, **options: Any) -> Backend:
    """The backend called `name`. `options`: packages, cpus, cgroups as for :func:`choose_backend`."""
    if name == DockerBackend.name and docker is not None:
        options["settings"] = docker
    return BACKENDS[name](**options)


def _reached(probe: Probe) -> str:
    return f"reaches {probe.tier.name}" if probe.tier is not None else "does not work here"
