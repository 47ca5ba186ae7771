"""Data-parallel ranks with fully sharded weights (FSDP2); one process is the case of one rank."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from agent_rl.learner.policy import Policy


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def shard(policy: Policy) -> None:
    """Shard each decoder layer, then the rest with the policy at the root. Nothing to do on one rank."""
    if ranks() == 1:
        return
    mesh = init_device_mesh(policy.device.type, (ranks(),))
    layers = set(policy.model._no_split_modules or ())
    for module in policy.model.modules():
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh)
    fully_shard(policy, mesh=mesh)


def reshard(policy: Policy) -> None:
    """Have the policy's parameters be shards again. FSDP keeps the root's whole after a forward that no backward
    follows, and those are neither what the optimiser steps on nor what it keeps moments of."""
    if isinstance(policy, FSDPModule):
        policy.reshard()


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of a shard (a collective call), detached; anything else as it is."""
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def like(full: Tensor, parameter: Tensor) -> Tensor:
    """`full` placed and sharded as `parameter` is."""
    if isinstance(parameter, DTensor):
        return distribute_tensor(full.to(parameter.device), parameter.device_mesh, parameter.placements)
    return full.to(parameter.device)


def gather(value: Any) -> list[Any]:
    """Each rank's picklable `value`, in rank order (a collective call)."""
    if ranks() == 1:
        return [value]
    found: list[Any] = [None] * ranks()
    dist.all_gather_object(found, value)
    return found
