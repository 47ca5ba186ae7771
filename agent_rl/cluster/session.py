"""The Ray cluster of a run: joined or started, asked what it has, and given back."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agent_rl.cluster.resources import ClusterShort, Node, Placement, available_cpus, placement, shortages
from agent_rl.cluster.settings import ClusterSettings
from agent_rl.config import ConfigError

CONNECT_S = 10.0
"""Seconds to wait for a head node to answer."""


def import_ray() -> Any:
    """The package; ConfigError naming the extra if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"cluster.kind = ray needs the package ray ({error}): pip install 'agent-rl[ray]', or set it to none"
        ) from None
    return ray


@contextmanager
def session(settings: ClusterSettings, say: Callable[[str], None]) -> Iterator[Any]:
    """Ray, connected for the length of the block; a connection that was there before is left as it is.

    Raises:
        ConfigError: the cluster cannot be reached.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING, "include_dashboard": False}
    if settings.address == "local":
        cpus = available_cpus()
        say(f"Ray: started on this machine with {cpus} CPUs (affinity and cgroup counted)")
        options |= {"address": "local", "num_cpus": cpus}
        # Ray's default of 15 starves the actors beside any other process of the machine.
        os.environ.setdefault("RAY_worker_niceness", "0")
    else:
        _reach(settings.address)
        options["address"] = settings.address
        options.pop("include_dashboard")
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"no Ray cluster at cluster.address = {settings.address}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """See whether anybody listens there, since Ray itself tries for minutes before it says so."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise ConfigError(
            f"cluster.address = {address} is neither local, auto nor HOST:PORT of a head node; with Ray's client "
            "(ray://) this process would be no part of the cluster: start it on a node, with cluster.address = auto"
        )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise ConfigError(f"no Ray cluster at cluster.address = {address}: {error}") from error


def nodes_of(ray: Any) -> list[Node]:
    """Live nodes, with what is free on each."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return [
        Node(f"{node['NodeManagerAddress']}/{node['NodeID'][:6]}", dict(free.get(node["NodeID"], {})))
        for node in ray.nodes()
        if node["Alive"]
    ]


@contextmanager
def reserved(ray: Any, settings: ClusterSettings, say: Callable[[str], None]) -> Iterator[tuple[Placement, list[Any]]]:
    """The placement and its Ray placement groups, for the length of the block.

    Raises:
        ClusterShort: the cluster lacks something; the message says what, and where.
    """
    from ray.util import placement_group, remove_placement_group

    wanted, nodes = placement(settings), nodes_of(ray)
    for node in nodes:
        free = ", ".join(f"{node.free.get(kind, 0.0):g} {kind}" for kind in ("CPU", "GPU"))
        say(f"Ray node {node.name}: {free} free")
    if missing := shortages(wanted, nodes):
        raise ClusterShort("the Ray cluster cannot place this run: " + "; ".join(missing))
    groups = []
    try:
        for request in wanted.groups:
            group = placement_group([bundle.resources for bundle in request.bundles], strategy=request.strategy)
            groups.append(group)
            if not group.wait(settings.placement_timeout_s):
                labels = ", ".join(bundle.label for bundle in request.bundles)
                raise ClusterShort(
                    f"Ray did not place {labels} within cluster.placement_timeout_s = "
                    f"{settings.placement_timeout_s:g} s although the resources seemed free; see `ray status`"
                )
        yield wanted, groups
    finally:
        for group in groups:
            remove_placement_group(group)
