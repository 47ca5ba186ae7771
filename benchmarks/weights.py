"""Cost of a hand-over of weights and of its proof, for the embedded engine and for vLLM.

    python -m benchmarks.weights                      the embedded engine
    .venv/vllm/bin/python -m benchmarks.weights vllm  vLLM's CPU build

Prints medians over hand-overs of the shipped model: the whole, the transfer (checksums of what is sent are computed on
its way), reading back, and the canary on both sides; all in one run, so that shares compare.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import torch

from agent_rl.algorithms.settings import MethodSettings, resolve
from agent_rl.engines.loading import load_model
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.sources import resolve_model
from agent_rl.engines.transformers import TransformersEngine, default_eos_ids
from agent_rl.learner.settings import LearnerSettings
from agent_rl.learner.update import Learner
from agent_rl.weights.build import weight_sync
from agent_rl.weights.settings import SyncSettings

MODEL = "package://agent_rl/assets/quickstart"
ROUNDS = 15


async def main(kind: str) -> None:
    model, tokenizer = load_model(MODEL, dtype="float32", device="cpu")
    engine = await _engine(kind, tokenizer)
    learner = Learner(model, resolve(MethodSettings(preset="ctpo_cppo")), LearnerSettings())
    variants = {
        "bare": SyncSettings(checksums=False, canary_prompts=0),
        "checksums": SyncSettings(canary_prompts=0),
        "canary": SyncSettings(checksums=False),
        "whole proof": SyncSettings(),
    }
    syncs = {name: weight_sync(learner, engine, given, vocabulary=len(tokenizer)) for name, given in variants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    gaps = []
    version = engine.weight_version
    for round_number in range(ROUNDS + 2):
        for name, sync in syncs.items():
            with torch.no_grad():
                for parameter in learner.model.parameters():
                    parameter.mul_(1.001)
            version += 1
            started = time.perf_counter()
            proof = await sync.hand_over(version)
            if round_number >= 2:
                seconds[name].append(time.perf_counter() - started)
            if proof is not None and proof.engines[0].canary is not None:
                gaps.append(proof.engines[0].canary.mean)
    await engine.close()
    print(f"{kind}: {ROUNDS} hand-overs each of {proof.bytes / 2**20:.1f} MiB, in ms")
    for name, found in seconds.items():
        print(f"  {name:12} {median(found) * 1e3:8.1f}   ({median(found) / median(seconds['bare']):.1f} x bare)")
    print(f"  largest mean gap of the canary: {max(gaps):.1e} nats")


async def _engine(kind: str, tokenizer: Any) -> Any:
    model, _ = load_model(MODEL, dtype="float32", device="cpu")
    makers: dict[str, Callable[[], Awaitable[Any]]] = {
        "transformers": lambda: _embedded(model, tokenizer),
        "vllm": lambda: _vllm(model, tokenizer),
    }
    return await makers[kind]()


async def _embedded(model: Any, tokenizer: Any) -> Any:
    engine = TransformersEngine(model, tokenizer)
    await engine.start()
    return engine


async def _vllm(model: Any, tokenizer: Any) -> Any:
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    from agent_rl.engines.vllm.engine import VllmEngine

    settings = EngineSettings(kind="vllm", max_rows=64, kv_budget_mb=256, prefill_tokens=2048)
    eos_ids = default_eos_ids(model, tokenizer)
    engine = VllmEngine(resolve_model(MODEL).location, tokenizer, eos_ids=eos_ids, settings=settings)
    await engine.start()
    return engine


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "transformers"))
