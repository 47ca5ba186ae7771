"""Rollout speed of vLLM and of the embedded engine, as ratios within one run.

    OMP_NUM_THREADS=2 .venv/vllm/bin/python -m benchmarks.engine_vllm [--episodes 8,64,256] [--model PATH] [--json FILE]

Both play the episodes of `benchmarks.engine` (two turns of uneven lengths, an observation between them, temperature 1,
the fence looked for in every turn), one after the other, a few times over. Speeds are sampled tokens a second, of wall
clock and of processor time; that of vLLM includes its processes. `surplus` is the share of tokens that reached us
behind the end of their turn and were dropped: those that vLLM samples before it hears of the end are in its own count
alone. Run it in an environment that has vLLM; on a CPU that is its CPU build, which runs without compilation here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from agent_rl.engines.loading import load_model, save_model
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.transformers import TransformersEngine
from agent_rl.engines.vllm.engine import VllmEngine
from agent_rl.tir.fence import FenceScanner
from benchmarks.engine import engine_run, tiny_model


@dataclass(frozen=True)
class Instant:
    """Wall clock, and processor time of this process and those below it."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Instant:
        this = psutil.Process()
        times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
        return cls(time.perf_counter(), sum(t.user + t.system for t in times))


async def speed(engine: Any, episodes: int) -> tuple[float, float]:
    """Sampled tokens a second of wall clock and of processor time."""
    began = Instant.now()
    run, _ = await engine_run(engine, episodes, 0.0)
    ended = Instant.now()
    return run.tokens / (ended.wall - began.wall), run.tokens / (ended.cpu - began.cpu)


async def compare(engines: dict[str, Any], episodes: int, repeats: int) -> dict[str, float]:
    """Medians over interleaved repeats."""
    rows: list[dict[str, float]] = []
    for engine in engines.values():
        await engine_run(engine, min(episodes, 16), 0.0)
    for _ in range(repeats):
        row: dict[str, float] = {}
        for name, engine in engines.items():
            row[name], row[f"{name}, cpu"] = await speed(engine, episodes)
        row["vllm over transformers, wall"] = row["vllm"] / row["transformers"]
        row["vllm over transformers, cpu"] = row["vllm, cpu"] / row["transformers, cpu"]
        rows.append(row)
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", default="8,64,256", help="numbers of concurrent episodes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", help="a model instead of the random one (see agent_rl.engines.sources)")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    counts = [int(count) for count in options.episodes.split(",")]
    model, tokenizer = load_model(options.model, device="cpu") if options.model else tiny_model()
    settings = EngineSettings(max_rows=max(256, *counts))
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, tokenizer, folder)
        vllm = VllmEngine(
            folder,
            tokenizer,
            eos_ids=(),
            settings=settings.model_copy(update={"kind": "vllm"}),
            scanner=FenceScanner,
        )
        await vllm.start()
        engines = {
            "transformers": TransformersEngine(model, tokenizer, settings=settings, scanner=FenceScanner, eos_ids=()),
            "vllm": vllm,
        }
        print(f"{torch.get_num_threads()} threads, {sum(p.numel() for p in model.parameters()):,} parameters")
        for episodes in counts:
            found[str(episodes)] = figures = await compare(engines, episodes, options.repeats)
            print(f"\n{episodes} episodes")
            for key, value in figures.items():
                print(f"  {key:32} {value:10,.2f}" if "over" in key else f"  {key:32} {value:10,.0f} tokens/s")
        counted = vllm.counters
        print(f"\nsurplus {counted['surplus_tokens'] / counted['sampled_tokens']:.2%}")
        for engine in engines.values():
            await engine.close()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    asyncio.run(main())
