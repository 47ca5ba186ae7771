"""Settings of the `docker` backend. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class DockerSettings(BaseModel):
    """Which engine, image and runtime, and what a slot's container may use at most."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    host: str = ""
    """The engine's socket (`unix:///run/user/1000/docker.sock`); empty takes DOCKER_HOST, else /var/run/docker.sock."""
    image: str = "agent-rl-runner:latest"
    """What slots run in, made by deploy/runner/build.sh; name a digest to pin it. Never pulled."""
    runtime: str = ""
    """The engine's runtime: empty for its default (runc), `runsc` (gVisor) or a Kata runtime for tier T4."""
    seccomp: Path | None = None
    """A seccomp profile in place of the engine's default; the programs' own filter stands on top of either."""
    memory_mb: int = Field(2048, ge=64)
    """Most memory a run may have; the container's hard limit is this and `warm_mb`. Swap: none."""
    warm_mb: int = Field(512, ge=32)
    """Memory for the warm interpreter."""
    processes: int = Field(512, ge=4)
    """Most processes and threads a run may have; the container's hard limit is a few more."""
    disk_mb: int = Field(64, ge=1)
    """Size of each writable file system (work directory, /tmp, /dev/shm); fixed when the container is made."""
    inodes: int = Field(4096, ge=16)
    """Files in each of them."""
    cgroup_parent: str | None = None
    """Control group above the containers. None: the topmost one where the engine manages groups itself, so that slots
    share the processors as so many processes and not all together as one; the engine's choice under systemd."""
    first_uid: int = Field(1_000_000_000, ge=1)
    """Every slot runs as a user of its own, so that process limits and signals never meet another slot's: this ..."""
    uids: int = Field(1_000_000_000, ge=1, le=1_100_000_000)
    """... and so many beyond it, drawn at random. An engine that remaps users needs a range it maps."""
    parallel_starts: int = Field(4, ge=1)
    """Containers started at the same time by this service, whatever its pools ask for."""
    call_s: float = Field(20.0, gt=0)
    """Longest call to the engine."""
    life_s: int = Field(7800, ge=60)
    """Age at which a container ends by itself and any service may remove it; more than `recycle_s` and
    `session_life_s` together."""
