"""Asynchronous against synchronous training: the same task, seed and budget, with tools that take their time.

    OMP_NUM_THREADS=1 python -m benchmarks.async_training [--seeds 3] [--steps 20]

The quickstart's policy and problems. Each tool call is the real sandbox's and then waits as long as a call of
`scheduling_recorded.json` did, times `--slower` (drawn by problem, sample and turn, so that both sides wait alike).
Both runs of a seed follow each other in this process. Printed: wall time of all steps, and its ratio; share of the
time in which the learner and the engine were idle; largest staleness; mean reward of the last third of the steps, and
accuracy on held-out questions afterwards. By default short: one seed, eight steps of 64 trajectories.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from agent_rl.config import load
from agent_rl.tir.tool import PythonTool
from agent_rl.training.loop import Trainer
from agent_rl.training.parts import build
from agent_rl.training.progress import Display
from agent_rl.training.run_dir import RunDir
from agent_rl.training.settings import RunConfig
from agent_rl.types import Problem, ToolOutcome

ROOT = Path(__file__).resolve().parents[1]
RECORDED = Path(__file__).with_name("scheduling_recorded.json")
MODES = {"sync": ("mode=sync",), "async": ("mode=async", "asynchronous.max_staleness=2")}


@dataclass
class SlowTool:
    """A tool whose answers come later."""

    tool: PythonTool
    waits: list[float]

    async def run(self, code: str, *, deadline: float) -> ToolOutcome:
        outcome = await self.tool.run(code, deadline=deadline)
        await asyncio.sleep(self.waits.pop())
        return outcome

    async def close(self) -> None:
        await self.tool.close()


@dataclass(frozen=True)
class Result:
    """One run."""

    seconds: float
    learner_idle: float
    engine_idle: float
    staleness: float
    reward: float
    accuracy: float


class Quiet(Display):
    """Says nothing."""

    def say(self, text: str) -> None:
        pass


async def run(config: RunConfig, slower: float) -> Result:
    """One training run in a folder of its own."""
    recorded = [s for g in json.loads(RECORDED.read_text()) for turns in g for _, s in turns if s > 0]
    display = Quiet()
    async with build(config, display.say) as parts:
        plain = parts.rollout.open_tool

        def open_tool(problem: Problem, sample: int) -> SlowTool:
            rng = random.Random(f"{config.seed}/{problem.id}/{sample}")
            waits = [slower * rng.choice(recorded) for _ in range(config.tir.max_turns)]
            return SlowTool(plain(problem, sample), waits)

        parts.rollout = replace(parts.rollout, open_tool=open_tool)
        folder = RunDir.create(config)
        await Trainer(config, folder, parts, display).train()
    rows: list[dict[str, Any]] = list(folder.metrics())
    steps = [row for row in rows if "time/step" in row]
    last = steps[-max(len(steps) // 3, 1) :]
    measured = [row["eval/accuracy_sampled"] for row in rows if "eval/accuracy_sampled" in row]
    return Result(
        seconds=sum(row["time/step"] for row in steps),
        learner_idle=1 - sum(row["time/update"] for row in steps) / sum(row["time/step"] for row in steps),
        engine_idle=fmean(row["time/engine_idle_share"] for row in steps),
        staleness=max(row["staleness/max"] for row in steps),
        reward=fmean(row["rollout/reward"] for row in last),
        accuracy=measured[-1],
    )


def settings(folder: str, seed: int, steps: int, problems: int, mode: Sequence[str]) -> RunConfig:
    """The quickstart, smaller."""
    overrides = [
        f"runs_dir={folder}", f"seed={seed}", f"steps={steps}", f"problems_per_step={problems}", "threads=1",
        "evals={eval: {data: {families: [], count: 64, seed: 2}, every: 0, greedy: false, record: 0}}",
        "learner.checkpoint.every=0", "records.level=text", *mode,
    ]  # fmt: skip
    return load(ROOT / "configs/quickstart.yaml", overrides, model=RunConfig)


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--slower", type=float, default=4.0, help="factor of recorded tool times")
    asked = parser.parse_args()
    print("seed mode    seconds  learner idle  engine idle  staleness  reward, last third  held out")
    found: dict[str, list[Result]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(asked.seeds):
            for mode, overrides in MODES.items():
                config = settings(folder, seed, asked.steps, asked.problems, overrides)
                result = asyncio.run(run(config, asked.slower))
                found[mode].append(result)
                print(
                    f"{seed:4} {mode:5} {result.seconds:9.1f} {result.learner_idle:13.0%} {result.engine_idle:12.0%} "
                    f"{result.staleness:10.0f} {result.reward:19.3f} {result.accuracy:9.1%}",
                    flush=True,
                )
    sync, overlapped = found["sync"], found["async"]
    ratios = [s.seconds / a.seconds for s, a in zip(sync, overlapped, strict=True)]
    print(
        f"async is {fmean(ratios):.2f} times as fast (smallest {min(ratios):.2f}); learner idle "
        f"{fmean(r.learner_idle for r in sync):.0%} -> {fmean(r.learner_idle for r in overlapped):.0%}; reward "
        f"{fmean(r.reward for r in sync):.3f} -> {fmean(r.reward for r in overlapped):.3f}; held out "
        f"{fmean(r.accuracy for r in sync):.1%} -> {fmean(r.accuracy for r in overlapped):.1%}"
    )


if __name__ == "__main__":
    main()
