"""Settings of placement: one process, or actors on Ray."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rl.settings import Settings


class ClusterSettings(Settings):
    """Where rollouts and learner ranks run."""

    kind: Literal["none", "ray"] = "none"
    """`none`: all in one process. `ray`: actors on a Ray cluster (extra `ray`)."""
    address: str = "local"
    """`local` starts Ray on this machine, `auto` joins the cluster that this machine belongs to; else HOST:PORT of the
    head node."""
    rollout_actors: int = Field(1, ge=1)
    """Processes that play episodes, each with an engine, verifiers and a sandbox of its own."""
    learner_ranks: int = Field(1, ge=1)
    """Data-parallel ranks with fully sharded weights (FSDP2)."""
    placement: Literal["split", "colocated"] = "split"
    """`split`: rollout actors and ranks have resources of their own. `colocated`: rollout actor i shares
    the bundle (and its GPUs) of rank i modulo `learner_ranks`."""
    spread: Literal["pack", "spread", "strict_spread"] = "pack"
    """Whether rollout actors are kept on few nodes, on different nodes if possible, or on different nodes only."""
    rollout_cpus: float = Field(1.0, gt=0)
    """CPUs of a rollout actor."""
    rollout_gpus: float = Field(0.0, ge=0)
    """GPUs of a rollout actor."""
    learner_cpus: float = Field(1.0, gt=0)
    """CPUs of a learner rank."""
    learner_gpus: float = Field(0.0, ge=0)
    """GPUs of a learner rank."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Collectives between ranks; `auto` takes NCCL where ranks have GPUs, else gloo."""
    sandbox_urls: list[str] = Field(default_factory=list)
    """Sandbox services that are dealt to the rollout actors in turn; empty = `sandbox.url`, or one of its own each."""
    placement_timeout_s: float = Field(300.0, gt=0)
    """Longest wait for the cluster to make room."""
    start_timeout_s: float = Field(600.0, gt=0)
    """Longest wait for actors to load the model and for ranks to find each other."""
    call_timeout_s: float = Field(3600.0, gt=0)
    """Longest wait for the ranks to finish one batch, one checkpoint or one hand-over of weights."""
    max_restarts: int = Field(5, ge=0)
    """How often one rollout actor is restarted before the run goes on without it."""
