"""On-policy, the learner's log-probs are the sampler's: turn starts, tools and temperature included."""

from __future__ import annotations

import asyncio

import pytest
import torch

import agent_rl
from agent_rl.algorithms.settings import MethodSettings, resolve
from agent_rl.engines.base import GenerationRequest, Sampling
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.transformers import TransformersEngine
from agent_rl.learner.batch import TrainBatch, row_from
from agent_rl.learner.settings import LearnerSettings
from agent_rl.learner.update import Learner
from agent_rl.types import Origin, Problem, Segment, Trajectory
from tests.engine_models import byte_tokenizer, tiny_model

TOLERANCE = 1e-4
"""Of a token's log-prob in float32: the sampler decodes with a KV cache, the learner in one forward pass."""


async def sample(
    engine: TransformersEngine, number: int, prompts: list[list[int]], turns: int, temperature: float, cap: int
):
    """One trajectory: turns of the model with a few tool tokens between them."""
    problem = Problem(f"p{number}", "question", "0")
    segments = [Segment(Origin.PROMPT, tuple(prompts[number % len(prompts)]))]
    for turn in range(turns):
        ids = tuple(i for segment in segments for i in segment.ids)
        request = GenerationRequest(
            f"t{number}", ids, cap, seed=number * 100 + turn, sampling=Sampling(temperature), stop_at_fence=False
        )
        found = await engine.generate(request)
        segments.append(Segment(Origin.MODEL, found.ids, found.logprobs, found.weight_versions))
        if turn < turns - 1:
            segments.append(Segment(Origin.TOOL, tuple(range(5, 8 + number % 3))))
    engine.release(f"t{number}")
    return Trajectory(problem, 0, segments)


def compare(model, tokenizer, prompts, *, samples=8, turns=3, cap=12, temperature=1.0, tolerance=TOLERANCE, **changes):
    async def all_samples():
        engine = TransformersEngine(model, tokenizer, settings=EngineSettings(), eos_ids=[])
        await engine.start()
        try:
            return await asyncio.gather(
                *(sample(engine, number, prompts, turns, temperature, cap) for number in range(samples))
            )
        finally:
            await engine.close()

    trajectories = asyncio.run(all_samples())
    batch = TrainBatch(tuple(row_from(t, (-1.0) ** i) for i, t in enumerate(trajectories)))
    learner = Learner(
        model,
        resolve(MethodSettings(preset="cppo")),
        LearnerSettings(optimizer={"lr": 1e-6}, **changes),
        temperature=temperature,
    )
    found = learner.old_logprobs(batch)
    for row in batch.rows:
        assert row.model_tokens == turns * cap
        torch.testing.assert_close(found[row.key], row.logp_mu, atol=tolerance, rtol=0)
    report = learner.train_on(batch, seed=0)[0]
    assert report.diagnostics["ratio_mean"] == pytest.approx(1.0, abs=tolerance)
    assert report.diagnostics["mask_rate"] == 0.0
    assert abs(report.diagnostics["mismatch_mean"]) < tolerance and report.diagnostics["mismatch_std"] < tolerance
    return batch, found


@pytest.mark.parametrize("packing", ["packed", "padded"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_random_model(packing, temperature):
    compare(tiny_model(), byte_tokenizer(), [[65, 66, 67], [70] * 9], packing=packing, temperature=temperature)


def test_the_comparison_notices_a_shift_by_one():
    """The tolerance is tight enough: log-probs of the neighbouring token are far away."""
    batch, found = compare(tiny_model(), byte_tokenizer(), [[65, 66, 67]])
    row = batch.rows[0]
    assert float((found[row.key].roll(1) - row.logp_mu).abs().max()) > 100 * TOLERANCE


def test_the_comparison_notices_another_temperature():
    batch, found = compare(tiny_model(), byte_tokenizer(), [[65, 66, 67]])
    other = Learner(tiny_model(), resolve(MethodSettings(preset="cppo")), LearnerSettings(), temperature=0.9)
    assert float((other.old_logprobs(batch)["p0#0"] - found["p0#0"]).abs().max()) > 100 * TOLERANCE


def test_the_shipped_model():
    from pathlib import Path

    from agent_rl.engines.loading import load_model

    folder = Path(agent_rl.__file__).parent / "assets" / "quickstart"
    if not (folder / "model.safetensors").is_file():
        pytest.skip("the package ships no model yet")
    model, tokenizer = load_model(str(folder), dtype="float32", device="cpu")
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in ("What is 12 * 3?", "Add 4 and 99.")]
    compare(model, tokenizer, prompts, samples=16, cap=24)


def test_smollm2(smollm2_dir):
    pytest.importorskip("gguf", reason="the package gguf is not installed (extra `gguf`)")
    from agent_rl.engines.loading import load_model

    model, tokenizer = load_model(str(next(smollm2_dir.glob("*.gguf"))), dtype="float32", device="cpu")
    model.requires_grad_(False)
    model.model.layers[-1].requires_grad_(True)  # ratios need no more than one trained layer, and memory less
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 17 * 23? Write a program."}],
        add_generation_prompt=True,
        return_dict=False,
    )
    compare(model, tokenizer, [list(prompt)], samples=2, turns=2, cap=8, tolerance=1e-3)
