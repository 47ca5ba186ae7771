"""Rollout speed of vLLM and of the embedded engine, as ratios within one run.

    OMP_NUM_THREADS=2 .venv/vllm/bin/python -m benchmarks.engine_vllm [--episodes 8,64,256] [--model PATH] [--json FILE]

Both play the episodes of `benchmarks.engine` (two turns of uneven lengths, an observation between them, temperature 1,
the fence looked for in every turn), one after the other, a few times over. Speeds are sampled tokens a second, of wall
clock and of processor time; that of vLLM includes its processes.

`--fences` measures something else: how many tokens the shipped policy's vLLM engine sends behind the closing fence of a
turn before it hears that the turn has ended. They are dropped.

Run it in an environment that has vLLM; on a CPU that is its CPU build, which runs without compilation here.
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

from agent_rl.engines.base import GenerationRequest
from agent_rl.engines.loading import load_model, save_model
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.sources import resolve_model
from agent_rl.engines.transformers import TransformersEngine, default_eos_ids
from agent_rl.engines.vllm.engine import VllmEngine
from agent_rl.tir.fence import FenceScanner
from agent_rl.types import FinishReason
from benchmarks.engine import engine_run, tiny_model

QUICKSTART = "package://agent_rl/assets/quickstart"


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


async def fences(counts: list[int]) -> None:
    """Tokens sent behind closing fences, at several numbers of concurrent turns."""
    model, tokenizer = load_model(QUICKSTART, device="cpu")
    engine = VllmEngine(
        resolve_model(QUICKSTART).location,
        tokenizer,
        eos_ids=default_eos_ids(model, tokenizer),
        settings=EngineSettings(kind="vllm", max_rows=max(256, *counts)),
        scanner=FenceScanner,
    )
    await engine.start()
    core, sent = engine.llm.engine_core, 0
    receive = core.get_output_async

    async def counted() -> Any:
        nonlocal sent
        outputs = await receive()
        sent += sum(len(output.new_token_ids) for output in outputs.outputs)
        return outputs

    core.get_output_async = counted
    for count in counts:
        sent = 0
        chats = [[{"role": "user", "content": f"What is {n % 89 + 1} + {n % 97 + 2}?"}] for n in range(count)]
        texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
        prompts = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        requests = [GenerationRequest(f"{count}/{n}", prompt, 60, seed=n) for n, prompt in enumerate(prompts)]
        turns = await asyncio.gather(*(engine.generate(request) for request in requests))
        await asyncio.sleep(1.0)  # for what is still on its way
        closed = sum(turn.finish is FinishReason.FENCE for turn in turns)
        kept = sum(len(turn.ids) for turn in turns)
        print(f"{count} turns: {closed} fences, {kept} tokens kept, {(sent - kept) / closed:.2f} dropped a fence")
    await engine.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", default="8,64,256", help="numbers of concurrent episodes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", help="a model instead of the random one (see agent_rl.engines.sources)")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--fences", action="store_true", help="count tokens sent behind closing fences instead")
    options = parser.parse_args()
    counts = [int(count) for count in options.episodes.split(",")]
    if options.fences:
        await fences(counts)
        return
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
        for engine in engines.values():
            await engine.close()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    asyncio.run(main())
