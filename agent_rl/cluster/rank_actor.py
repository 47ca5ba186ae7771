"""One learner rank in a process of its own: FSDP2 over torch.distributed, weights out through Ray's object store."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agent_rl.cluster.rollout_actor import Weights
from agent_rl.learner.batch import TrainBatch
from agent_rl.learner.checkpoint import Restored
from agent_rl.learner.update import UpdateReport
from agent_rl.training.settings import RunConfig

PART_BYTES = 256 << 20
"""Weights that are put into the object store as one object, unless one tensor is larger."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What a rank knows once it has the model."""

    fingerprint: str
    eos_ids: frozenset[int]
    """Ids that end a turn."""


class RankActor:
    """Runs as a plain actor of Ray: one call after the other, each made on all ranks with equal arguments."""

    def __init__(self, config: dict[str, Any], rank: int):
        self._config = RunConfig.model_validate(config)
        self._rank = rank

    def address(self) -> tuple[str, int, int]:
        """(host, a free port, process id) of this rank."""
        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1], os.getpid()

    def join(self, host: str, port: int) -> Joined:
        """Find the other ranks at this address of the first, and make the learner."""
        import torch.distributed as dist

        from agent_rl.engines.loading import load_model, model_fingerprint
        from agent_rl.engines.transformers import default_eos_ids
        from agent_rl.training.parts import make_learner

        config, cluster = self._config, self._config.cluster
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        if cluster.learner_ranks > 1:
            backend = cluster.backend
            if backend == "auto":
                backend = "nccl" if cluster.learner_gpus > 0 else "gloo"
            # Gloo binds to the address that the host's name has, which in containers may be no way to other hosts.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _interface_of(host))
            dist.init_process_group(
                backend,
                init_method=f"tcp://{host}:{port}",
                rank=self._rank,
                world_size=cluster.learner_ranks,
                timeout=timedelta(seconds=cluster.start_timeout_s),
            )
        model, self._tokenizer = load_model(config.model.path, dtype="float32", device=config.engine.device)
        eos_ids = frozenset(config.model.eos_ids or default_eos_ids(model, self._tokenizer))
        found = Joined(model_fingerprint(model), eos_ids)
        self._learner = make_learner(config, model)
        return found

    def train_on(self, batch: TrainBatch, seed: int, with_details: bool) -> list[UpdateReport]:
        """See `Learner.train_on`."""
        return self._learner.train_on(batch, seed, with_details=with_details)

    def save(
        self,
        directory: Path,
        step: int,
        progress: Mapping[str, Any],
        fingerprints: Mapping[str, str],
        score: float | None,
    ) -> Path:
        """See `agent_rl.learner.checkpoint.save`."""
        from agent_rl.learner import checkpoint

        return checkpoint.save(
            directory,
            step,
            self._learner,
            self._tokenizer,
            progress,
            fingerprints=fingerprints,
            score=score,
            retention=self._config.learner.checkpoint,
        )

    def load(self, path: Path, fingerprints: Mapping[str, str]) -> Restored:
        """See `agent_rl.learner.checkpoint.load`."""
        from agent_rl.learner import checkpoint

        return checkpoint.load(path, self._learner, fingerprints)

    def weights(self, dtypes: Mapping[str, torch.dtype]) -> list[Any]:
        """References to the whole weights in parts, in the number formats given; none from ranks but the first."""
        import ray

        refs = []
        for part in _parts(self._learner.full_state(), dtypes):
            if self._rank == 0:
                refs.append(ray.put(part))
        return refs

    def old_logprobs(self, batch: TrainBatch) -> dict[str, Tensor]:
        """See `Learner.old_logprobs`."""
        return dict(self._learner.old_logprobs(batch))


def _parts(weights: Iterator[tuple[str, Tensor]], dtypes: Mapping[str, torch.dtype]) -> Iterator[Weights]:
    part: Weights = []
    size = 0
    for name, tensor in weights:
        dtype = dtypes.get(name, tensor.dtype) if tensor.is_floating_point() else tensor.dtype
        part.append((name, tensor.detach().to("cpu", dtype).contiguous()))
        size += tensor.nbytes
        if size >= PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _interface_of(host: str) -> str:
    """Name of this machine's network interface by which `host` is reached; the loopback one for this machine alone."""
    import psutil

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 1))
        own = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == own for address in addresses):
            return name
    return "lo"
