"""Builds what a run is made of on a Ray cluster, and takes it down again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import torch

from agent_rl.cluster.rank_actor import Joined, RankActor
from agent_rl.cluster.ranks import Ranks
from agent_rl.cluster.remote_learner import RemoteLearning
from agent_rl.cluster.remote_rollout import RemoteRollout
from agent_rl.cluster.resources import Placement
from agent_rl.cluster.rollout_actor import Place, RolloutActor
from agent_rl.cluster.session import reserved, session
from agent_rl.config import ConfigError
from agent_rl.engines.loading import resolve_model
from agent_rl.engines.pieces import TokenPieces
from agent_rl.tir.formats import prompt_format
from agent_rl.training.parts import Parts, usable_data
from agent_rl.training.plan import why_untrainable
from agent_rl.training.recovery import PartLost
from agent_rl.training.settings import RunConfig

GRACE_S = 120.0
"""For the verdict, and for answers to travel."""


@asynccontextmanager
async def build_on_ray(config: RunConfig, say: Callable[[str], None]) -> AsyncIterator[Parts]:
    """Rollout actors and learner ranks where the configuration wants them.

    Raises:
        ConfigError: the configuration asks for what is not there, or what a cluster cannot do.
        PartLost: an actor died while it was starting.
    """
    if reason := why_untrainable(config):
        raise ConfigError(reason)
    async with AsyncExitStack() as stack:
        ray = stack.enter_context(session(config.cluster, say))
        wanted, groups = stack.enter_context(reserved(ray, config.cluster, say))
        plain = json.loads(config.model_dump_json())
        ranks = Ranks(ray, _ranks(ray, plain, config, wanted, groups), config.cluster)
        stack.callback(ranks.end)
        actors = _rollouts(ray, plain, config, wanted, groups)
        stack.callback(lambda: [ray.kill(actor, no_restart=True) for actor in actors.values()])
        places, joined = await asyncio.gather(_started(ray, actors, config), asyncio.to_thread(_joined, ranks, config))
        tokenizer, model = _tokenizer_and_shape(config)
        form = prompt_format(tokenizer, config.tir, joined.eos_ids)
        data = usable_data(config, tokenizer, form)
        fingerprints = {"data": data.train.fingerprint, "base model": joined.fingerprint}
        rollout = RemoteRollout(
            ray, actors, places, form, config.rollout, config.cluster, _longest_episode(config), say
        )
        stack.push_async_callback(rollout.close)
        sandbox = places[0].about.sandbox
        say(f"{len(places)} rollout actors and {len(ranks.actors)} learner ranks; sandbox: {sandbox}")
        yield Parts(
            tokenizer=tokenizer,
            piece=TokenPieces(tokenizer).__getitem__,
            learning=RemoteLearning(ranks, rollout, config, model, len(tokenizer), fingerprints),
            engine=rollout,
            rollout=rollout,
            data=data,
            sandbox=sandbox,
            fingerprints=fingerprints,
        )


def _ranks(ray: Any, plain: Any, config: RunConfig, wanted: Placement, groups: list[Any]) -> list[Any]:
    kind = ray.remote(RankActor)
    share = config.cluster.learner_gpus / (2 if _shared(config) else 1)
    return [
        kind.options(
            num_cpus=config.cluster.learner_cpus,
            num_gpus=share,
            max_restarts=0,
            scheduling_strategy=_at(groups, where),
        ).remote(plain, rank)
        for rank, where in enumerate(wanted.ranks)
    ]


def _rollouts(ray: Any, plain: Any, config: RunConfig, wanted: Placement, groups: list[Any]) -> dict[int, Any]:
    kind = ray.remote(RolloutActor)
    share = config.cluster.rollout_gpus / (2 if _shared(config) else 1)
    return {
        number: kind.options(
            num_cpus=config.cluster.rollout_cpus,
            num_gpus=share,
            max_restarts=config.cluster.max_restarts,
            max_concurrency=config.rollout.max_concurrent + 64,
            scheduling_strategy=_at(groups, where),
        ).remote(plain, number)
        for number, where in enumerate(wanted.rollouts)
    }


def _longest_episode(config: RunConfig) -> float:
    """Seconds after which an attempt cannot still be under way: every retry has its deadline, and some are added."""
    return (config.rollout.episode_retries + 1) * config.tir.deadline_s + GRACE_S


def _shared(config: RunConfig) -> bool:
    """Whether a rank and a rollout actor hold the same GPU, half of it each in Ray's books."""
    return config.cluster.placement == "colocated"


def _at(groups: list[Any], where: tuple[int, int]) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(groups[where[0]], placement_group_bundle_index=where[1])


async def _started(ray: Any, actors: dict[int, Any], config: RunConfig) -> dict[int, Place]:
    """Every actor, once it is ready."""
    limit = config.cluster.start_timeout_s

    async def one(number: int, actor: Any) -> Place:
        return Place(number, actor, await actor.start.remote())

    try:
        found = await asyncio.wait_for(asyncio.gather(*(one(n, a) for n, a in actors.items())), limit)
    except TimeoutError:
        raise PartLost(f"rollout actors were not ready within cluster.start_timeout_s = {limit:g} s") from None
    except ray.exceptions.RayActorError as error:
        raise PartLost(f"a rollout actor died while it was starting: {error}") from error
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from error
    return {place.number: place for place in found}


def _joined(ranks: Ranks, config: RunConfig) -> Joined:
    """Bring the ranks together."""
    limit = config.cluster.start_timeout_s
    host, port, _ = ranks.call("address", timeout=limit)[0]
    return ranks.call("join", host, port, timeout=limit)[0]


def _tokenizer_and_shape(config: RunConfig) -> tuple[Any, Any]:
    """The tokenizer, and the model without memory."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source = resolve_model(config.model.path)
    options: dict[str, Any] = {} if source.gguf_file is None else {"gguf_file": source.gguf_file}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source.location, **options))
    return AutoTokenizer.from_pretrained(source.location, **options), model
