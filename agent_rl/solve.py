"""What `agent-rl solve` does: one problem, the model's text and the tool's output as they come, the answers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from agent_rl.config import ConfigError
from agent_rl.engines.base import Generation, GenerationRequest, Sampling
from agent_rl.engines.sources import ModelError
from agent_rl.evaluation.metrics import vote_of
from agent_rl.play.serve import Playing, playing, run_interruptibly
from agent_rl.play.settings import PlaySettings
from agent_rl.tir.formats import TemplateError
from agent_rl.tir.tool import PythonTool
from agent_rl.types import InfrastructureError, Problem, ToolOutcome, Trajectory
from sandbox.client import SandboxClientError

ANSWERED, FAILED = 0, 1
_POLL_S = 0.05
"""How often the growing text of a turn is looked at."""
_PARTIAL = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Ask:
    """One question to a policy. `gold`, if known, is compared with each answer."""

    question: str
    samples: int = 1
    temperature: float = 1.0
    seed: int = 0
    gold: str | None = None
    as_json: bool = False

    @property
    def problem(self) -> Problem:
        # Without a gold answer the verdict means nothing; comparing strings costs nothing.
        return Problem("question", self.question, self.gold or "", kind="math" if self.gold else "string")


def solve(ask: Ask, settings: PlaySettings) -> int:
    """Play the attempts and show them; exit status 1 if none ended with an answer."""
    try:
        return run_interruptibly(_solve(ask, settings))
    except (ConfigError, ModelError, TemplateError, InfrastructureError, SandboxClientError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED


async def _solve(ask: Ask, settings: PlaySettings) -> int:
    """One attempt is shown token by token; several are played at once, and each is shown as it ends."""
    streamed = ask.samples == 1 and not ask.as_json
    attempts = [(ask.problem, sample) for sample in range(ask.samples)]
    done: list[Trajectory] = []
    async with playing(settings, say=_aside, seed=ask.seed) as served:
        rollout = _streamed(served) if streamed else served.rollout
        play = rollout.play(attempts, sampling=Sampling(temperature=ask.temperature), stream=str(ask.seed))
        async with aclosing(play) as trajectories:
            async for trajectory in trajectories:
                done.append(trajectory)
                if not streamed and not ask.as_json:
                    print(f"--- attempt {len(done)} of {ask.samples} ---\n{transcript(trajectory)}\n", flush=True)
    done.sort(key=lambda t: t.sample)
    if ask.as_json:
        print(json.dumps(report(ask, done), indent=2, ensure_ascii=False))
    else:
        print("\n".join(closing_lines(ask, done)))
    return ANSWERED if any(t.answer is not None for t in done) else FAILED


def votes(trajectories: Sequence[Trajectory]) -> list[tuple[str, int]]:
    """Answers with how many attempts gave them, most frequent first; `0.5` and `1/2` are one answer."""
    spelled: dict[Hashable, str] = {}
    counts: Counter[Hashable] = Counter()
    for trajectory in trajectories:
        key = vote_of(trajectory.answer)
        if trajectory.answer is not None and key is not None:
            spelled.setdefault(key, trajectory.answer)
            counts[key] += 1
    return [(spelled[key], count) for key, count in counts.most_common()]


def transcript(trajectory: Trajectory) -> str:
    """The attempt as text: what the model wrote, and what its programs printed."""
    parts = []
    for turn in trajectory.turns:
        parts.append(turn.text.strip("\n"))
        if turn.outcome is not None:
            parts.append(shown_output(turn.outcome))
    return "\n".join(parts)


def shown_output(outcome: ToolOutcome) -> str:
    """A program's output for the terminal, each line under a mark."""
    text = "\n".join(part.rstrip("\n") for part in (outcome.stdout, outcome.stderr) if part.strip())
    lines = [f"  | {line}" for line in (text or "(no output)").splitlines()]
    return "\n".join([f"  [tool: {outcome.status}, {outcome.wall_ms:.0f} ms]", *lines])


def closing_lines(ask: Ask, trajectories: Sequence[Trajectory]) -> list[str]:
    """The answer, or the votes of several attempts; and what failed for reasons of ours."""
    lines = [f"attempt {t.sample + 1} failed: {t.error}" for t in trajectories if t.failed]
    counted = votes(trajectories)
    if not counted:
        stops = ", ".join(str(t.stop) for t in trajectories)
        return [*lines, f"no answer (stopped by: {stops})"]
    if ask.samples == 1:
        lines.append(f"answer: {counted[0][0]}")
    else:
        lines.append("votes: " + ", ".join(f"{answer} x {count}" for answer, count in counted))
        lines.append(f"answer: {counted[0][0]} ({counted[0][1]} of {ask.samples})")
    if ask.gold is not None:
        right = sum(t.verdict is not None and t.verdict.score == 1.0 for t in trajectories)
        lines.append(f"correct: {right} of {ask.samples}")
    return lines


def report(ask: Ask, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Everything as plain JSON."""
    counted = votes(trajectories)
    return {
        "question": ask.question,
        "answer": counted[0][0] if counted else None,
        "votes": [{"answer": answer, "count": count} for answer, count in counted],
        "attempts": [_attempt(ask, t) for t in trajectories],
    }


def _attempt(ask: Ask, trajectory: Trajectory) -> dict[str, Any]:
    verdict = trajectory.verdict if ask.gold is not None else None
    return {
        "answer": trajectory.answer,
        "stop": str(trajectory.stop),
        "error": trajectory.error,
        "verdict": None if verdict is None else str(verdict.kind),
        "sampled_tokens": trajectory.sampled_tokens,
        "seconds": round(trajectory.seconds, 3),
        "turns": [
            {
                "text": turn.text,
                "code": turn.code,
                "status": None if turn.outcome is None else str(turn.outcome.status),
                "stdout": None if turn.outcome is None else turn.outcome.stdout,
                "stderr": None if turn.outcome is None else turn.outcome.stderr,
            }
            for turn in trajectory.turns
        ],
    }


def _streamed(served: Playing) -> Any:
    """The rollout, with an engine and a tool that show what happens while it happens."""
    rollout = served.rollout

    def open_tool(problem: Problem, sample: int) -> PythonTool:
        return ShownTool(rollout.open_tool(problem, sample), _write)

    return replace(rollout, engine=ShownEngine(rollout.engine, served.form.decode, _write), open_tool=open_tool)


@dataclass
class ShownEngine:
    """An engine whose text is written while it is sampled, for one trajectory at a time.

    Looks at the ids so far where the engine tells them (`partial`); otherwise a turn is written when it has ended.
    """

    engine: Any
    decode: Callable[[tuple[int, ...]], str]
    write: Callable[[str], None]

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one turn, writing it as it grows."""
        task = asyncio.ensure_future(self.engine.generate(request))
        partial = getattr(self.engine, "partial", None)
        written = 0
        try:
            while partial is not None and not (await asyncio.wait({task}, timeout=_POLL_S))[0]:
                # A character whose bytes are not all there yet waits for the rest.
                text = self.decode(partial(request.trajectory)).rstrip(_PARTIAL)
                self.write(text[written:])
                written = max(written, len(text))
            generation = await task
        finally:
            task.cancel()
        self.write(self.decode(generation.ids)[written:].rstrip("\n") + "\n")
        return generation

    def release(self, trajectory: str) -> None:
        self.engine.release(trajectory)

    def expect(self, trajectories: Iterable[str]) -> None:
        self.engine.expect(trajectories)


@dataclass
class ShownTool:
    """A tool whose outcomes are written as they come."""

    tool: PythonTool
    write: Callable[[str], None]

    async def run(self, code: str, *, deadline: float) -> ToolOutcome:
        outcome = await self.tool.run(code, deadline=deadline)
        self.write(shown_output(outcome) + "\n")
        return outcome

    async def close(self) -> None:
        await self.tool.close()


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _aside(text: str) -> None:
    """About the surroundings, apart from the answer: on standard error."""
    print(text, file=sys.stderr)
