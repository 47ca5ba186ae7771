"""What a step of the quickstart costs, and how well generation and tools overlap.

    python -m benchmarks.step                 # the overlap, as ratios within this run
    python -m benchmarks.step --steps 12      # and the median step of a training run, with its split

The same 256 episodes are played several times: their tokens are the same each time, since random streams
depend on problem, sample and turn alone, and since each tool hands back what the first pass recorded.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from agent_rl.config import load
from agent_rl.engines.base import Sampling
from agent_rl.engines.loading import load_model
from agent_rl.rollout.run import Rollout
from agent_rl.rollout.serve import format_of, serve
from agent_rl.tasks.load import load_problems
from agent_rl.tir.tool import PythonTool
from agent_rl.training.settings import RunConfig
from agent_rl.types import Problem, ToolOutcome

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
BURN = "import time\n_end = time.process_time() + 0.02\nwhile time.process_time() < _end: pass\n"
SLEEP_S = 0.3

Calls = dict[str, list[tuple[str, ToolOutcome]]]
"""Per episode: its programs and their outcomes, in order."""


@dataclass
class Recording:
    """Runs programs for real and keeps what came of them."""

    tool: PythonTool
    key: str
    calls: Calls

    async def run(self, code: str, *, deadline: float) -> ToolOutcome:
        outcome = await self.tool.run(code, deadline=deadline)
        self.calls.setdefault(self.key, []).append((code, outcome))
        return outcome

    async def close(self) -> None:
        await self.tool.close()


@dataclass
class Replaying:
    """Answers with recorded outcomes, after a pause or after burning processor time in the sandbox."""

    calls: list[tuple[str, ToolOutcome]]
    tool: PythonTool | None = None
    pause: float = 0.0
    position: int = field(default=0)

    async def run(self, code: str, *, deadline: float) -> ToolOutcome:
        recorded, outcome = self.calls[self.position]
        if recorded != code:
            raise RuntimeError("the episodes of two passes differ; the comparison would mean nothing")
        self.position += 1
        await asyncio.sleep(self.pause)
        if self.tool is not None:
            await self.tool.run(BURN, deadline=deadline)
        return outcome

    async def close(self) -> None:
        return None


async def overlap(config: RunConfig) -> None:
    """Print wall times of generation alone, tools alone and both, for sleeping and for busy tools."""
    model, tokenizer = load_model(config.model.path, dtype="float32", device="cpu")
    form = format_of(model, tokenizer, config.tir, config.model)
    problems = list(load_problems(config.data, split="train"))[: config.problems_per_step]
    async with serve(
        model,
        tokenizer,
        form,
        tir=config.tir,
        engine=config.engine,
        rewards=config.rewards,
        rollout=config.rollout,
        sandbox=config.sandbox,
        say=print,
    ) as served:
        real = served.rollout.open_tool
        calls: Calls = {}

        async def play(rollout: Rollout) -> tuple[float, int]:
            start = time.monotonic()
            groups = await rollout.groups(problems, config.samples_per_problem, sampling=Sampling(), stream="bench")
            return time.monotonic() - start, sum(t.sampled_tokens for g in groups for t in g)

        def with_tool(pause: float = 0.0, busy: bool = False) -> Rollout:
            def open_tool(problem: Problem, sample: int) -> PythonTool:
                mine = calls.get(f"{problem.id}#{sample}", [])
                return Replaying(mine, real(problem, sample) if busy else None, pause)

            return replace(served.rollout, open_tool=open_tool)

        def recording(problem: Problem, sample: int) -> PythonTool:
            return Recording(real(problem, sample), f"{problem.id}#{sample}", calls)

        first, tokens = await play(replace(served.rollout, open_tool=recording))
        print(f"first pass, real tools: {first:.2f} s, {tokens} tokens, {sum(map(len, calls.values()))} programs")
        generation = statistics.median([(await play(with_tool()))[0] for _ in range(3)])
        print(f"generation alone: {generation:.2f} s, {tokens / generation:.0f} tokens/s")

        async def tools_alone(pause: float, busy: bool) -> float:
            async def one(key: str) -> None:
                problem = next(p for p in problems if p.id == key.rsplit("#", 1)[0])
                tool = Replaying(calls[key], real(problem, 0) if busy else None, pause)
                for code, _ in calls[key]:
                    await tool.run(code, deadline=asyncio.get_running_loop().time() + 120)

            start = time.monotonic()
            await asyncio.gather(*(one(key) for key in calls))
            return time.monotonic() - start

        for name, pause, busy in (("sleep 0.3 s", SLEEP_S, False), ("burn 20 ms", 0.0, True)):
            tools = await tools_alone(pause, busy)
            both = statistics.median([(await play(with_tool(pause, busy)))[0] for _ in range(3)])
            print(
                f"tools that {name}: alone {tools:.2f} s, with generation {both:.2f} s: "
                f"{both / max(generation, tools):.2f} x the larger, {both / (generation + tools):.2f} x the sum"
            )


def step_split(config: RunConfig, steps: int) -> None:
    """Train for some steps and print the median step with its split."""
    from agent_rl.training.entry import train
    from agent_rl.training.run_dir import RunDir

    with tempfile.TemporaryDirectory() as folder:
        config = config.model_copy(update={"steps": steps, "runs_dir": folder, "evals": {}})
        train(config)
        rows = [row for row in RunDir(Path(folder) / config.name).metrics() if "time/step" in row][1:]
    names = ("step", "rollout", "generation", "tools", "verdicts", "update", "tokens_per_second")
    medians = {name: statistics.median(row[f"time/{name}"] for row in rows) for name in names}
    print("median of steps 2 on: " + ", ".join(f"{name} {value:.2f}" for name, value in medians.items()))


def main(
    steps: Annotated[int, typer.Option(help="Also train so many steps and print the median step.")] = 0,
    config: Annotated[Path, typer.Option(help="Configuration whose episodes are played.")] = CONFIG,
) -> None:
    settings = load(config, model=RunConfig)
    asyncio.run(overlap(settings))
    if steps:
        step_split(settings, steps)


if __name__ == "__main__":
    typer.run(main)
