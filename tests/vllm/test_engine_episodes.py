"""Episodes of several turns with vLLM and a real sandbox: what was sampled is what is trained on, id by id."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
import torch

from agent_rl.algorithms.settings import MethodSettings, resolve
from agent_rl.engines.base import Generation, GenerationRequest, Sampling
from agent_rl.learner.batch import TrainBatch, batch_from
from agent_rl.learner.settings import LearnerSettings
from agent_rl.learner.update import Learner
from agent_rl.play.policy import find_policy
from agent_rl.rewards.settings import RewardSettings
from agent_rl.rewards.verifier import Verifier
from agent_rl.rollout.answers import ExtractionRules
from agent_rl.rollout.run import Rollout
from agent_rl.rollout.serve import open_sandbox
from agent_rl.rollout.settings import RolloutSettings, SandboxSettings
from agent_rl.tasks.load import load_problems
from agent_rl.tasks.settings import DataSettings
from agent_rl.tir.formats import prompt_format
from agent_rl.tir.settings import TirSettings
from agent_rl.tir.tool import SandboxTool
from agent_rl.training.batch import assign_advantages, trained_pairs
from agent_rl.types import FinishReason, Group, Origin, Trajectory
from tests.engine_models import plain_logprobs
from tests.vllm.conftest import QUICKSTART
from tests.vllm.test_engine_log_probs import TOLERANCE

TEMPERATURE = 1.0


@dataclass
class Listening:
    """The engine, with what it was asked and what it answered."""

    engine: Any
    heard: dict[str, list[tuple[GenerationRequest, Generation]]] = field(default_factory=dict)

    def expect(self, trajectories: Any) -> None:
        self.engine.expect(trajectories)

    def release(self, trajectory: str) -> None:
        self.engine.release(trajectory)

    async def generate(self, request: GenerationRequest) -> Generation:
        turn = await self.engine.generate(request)
        self.heard.setdefault(request.trajectory, []).append((request, turn))
        return turn


@dataclass
class Played:
    groups: list[Group]
    heard: dict[str, list[tuple[GenerationRequest, Generation]]]

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for group in self.groups for trajectory in group]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def played(engine, shipped) -> AsyncIterator[Played]:
    """Twelve problems, four attempts each, with the settings that the shipped policy was made for."""
    tokenizer, rewards = shipped[1], RewardSettings()
    tir = TirSettings(**find_policy(QUICKSTART).settings["tir"])
    problems = load_problems(DataSettings(families=[], count=12, seed=11), split="train")
    listening = Listening(engine)
    async with AsyncExitStack() as stack:
        client, _ = await open_sandbox(stack, SandboxSettings(slots=1))
        verifier = await stack.enter_async_context(Verifier(rewards.verifier))
        rollout = Rollout(
            engine=listening,
            format=prompt_format(tokenizer, tir, engine.eos_ids),
            answers=ExtractionRules(rewards),
            verifier=verifier,
            open_tool=lambda problem, sample: SandboxTool(client, tir.tool, seed=0),
            tir=tir,
            rewards=rewards,
            settings=RolloutSettings(),
        )
        groups = await rollout.groups(list(problems), 4, sampling=Sampling(TEMPERATURE), stream="test")
    assign_advantages(groups, resolve(MethodSettings(preset="ctpo_cppo")).advantage, void_filter=False)
    yield Played(groups, listening.heard)


def test_every_prefix_that_was_sampled_from_is_the_trajectory_so_far(played):
    several = 0
    for trajectory in played.trajectories:
        ids, turns = tuple(trajectory.ids), played.heard[trajectory.key]
        several += len(turns) > 1
        for request, turn in turns:
            end = len(request.ids)
            assert ids[:end] == request.ids
            assert ids[end : end + len(turn.ids)] == turn.ids
    assert several >= 12


def test_the_learner_is_given_exactly_the_ids_that_were_sampled(played):
    by_key = {trajectory.key: trajectory for trajectory in played.trajectories}
    batch = batch_from(trained_pairs(played.groups, void_filter=False))
    assert len(batch)
    for row in batch.rows:
        ids = by_key[row.key].ids
        sampled = [token for _, turn in played.heard[row.key] for token in turn.ids]
        assert row.ids.tolist() == list(ids)
        assert row.ids[row.loss_mask].tolist() == sampled
        assert row.logp_mu[row.loss_mask].tolist() == pytest.approx(
            [value for _, turn in played.heard[row.key] for value in turn.logprobs]
        )


def test_the_end_of_sequence_and_the_closing_fence_are_kept_and_trained(played, engine):
    ends = {FinishReason.EOS: 0, FinishReason.FENCE: 0}
    for trajectory in played.trajectories:
        models = [segment for segment in trajectory.segments if segment.origin is Origin.MODEL]
        for segment, (_, turn) in zip(models, played.heard[trajectory.key], strict=True):
            assert segment.ids == turn.ids
            if turn.finish in ends:
                ends[turn.finish] += 1
                assert (turn.ids[-1] in engine.eos_ids) == (turn.finish is FinishReason.EOS)
    assert min(ends.values()) >= 12
    batch = batch_from(trained_pairs(played.groups, void_filter=False))
    trained_ends = sum(int(row.ids[row.loss_mask][-1]) in engine.eos_ids for row in batch.rows)
    assert trained_ends >= 6


def test_log_probs_of_all_turns_are_those_of_one_pass_over_the_whole_trajectory(played, shipped):
    for trajectory in played.trajectories[::3]:
        ids = list(trajectory.ids)
        expected = plain_logprobs(shipped[0], ids[:1], ids[1:], TEMPERATURE)
        for mask, found, value in zip(trajectory.loss_mask[1:], trajectory.logprobs[1:], expected, strict=True):
            if mask:
                assert found == pytest.approx(value, abs=TOLERANCE)


def test_the_first_update_is_that_of_the_transformers_engine(played, shipped):
    """On the same trajectories, with the sampler's log-probs from vLLM and from transformers."""
    from_vllm = batch_from(trained_pairs(played.groups, void_filter=False))
    model = shipped[0]
    from_transformers = TrainBatch(
        tuple(
            _with_logprobs(row, plain_logprobs(model, row.ids[:1].tolist(), row.ids[1:].tolist(), TEMPERATURE))
            for row in from_vllm.rows
        )
    )
    first, second = (_first_update(model, batch) for batch in (from_vllm, from_transformers))
    assert first["grad_norm"] > 0
    assert first["loss"] == pytest.approx(second["loss"], abs=1e-5)
    assert first["grad_norm"] == pytest.approx(second["grad_norm"], rel=1e-3)
    apart = (first["step"] - second["step"]).norm() / second["step"].norm()
    assert apart < 1e-2


def _with_logprobs(row: Any, values: list[float]) -> Any:
    from dataclasses import replace

    return replace(row, logp_mu=torch.where(row.loss_mask, torch.tensor([0.0, *values]), row.logp_mu))


def _first_update(model: Any, batch: TrainBatch) -> dict[str, Any]:
    policy = copy.deepcopy(model)
    before = torch.cat([p.detach().reshape(-1).clone() for p in policy.parameters()])
    learner = Learner(
        policy,
        resolve(MethodSettings(preset="ctpo_cppo")),
        LearnerSettings(updates_per_batch=1, optimizer={"lr": 3e-4}),
        temperature=TEMPERATURE,
    )
    report = learner.train_on(batch, seed=0)[0]
    after = torch.cat([p.detach().reshape(-1) for p in policy.parameters()])
    return {"loss": report.loss, "grad_norm": report.grad_norm, "step": after - before}
