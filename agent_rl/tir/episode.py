"""The episode: the policy and the Python sandbox take turns until there is an answer, a void turn, or no room.

This is the only place where tokens are appended to a trajectory, and so the only place where the loss mask
is made: what the engine sampled becomes a `MODEL` segment, everything else another origin.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agent_rl.engines.base import Engine, Generation, GenerationRequest, Sampling
from agent_rl.tir.fence import parse_turn
from agent_rl.tir.formats import PromptFormat
from agent_rl.tir.observation import observation_text
from agent_rl.tir.settings import TirSettings
from agent_rl.tir.tool import PythonTool
from agent_rl.types import (
    FinishReason,
    InfrastructureError,
    Origin,
    Problem,
    Segment,
    StopReason,
    ToolOutcome,
    Trajectory,
    Turn,
)


class AnswerRules(Protocol):
    """How a final answer is recognised."""

    def from_prose(self, text: str) -> str | None:
        """The answer in text outside code blocks, None if there is none."""
        ...

    def from_code(self, code: str) -> str | None:
        """The literal that the model's own program hands to `final_answer`, None if there is none."""
        ...


@dataclass(frozen=True)
class EpisodeContext:
    """What all episodes of a rollout share."""

    engine: Engine
    format: PromptFormat
    answers: AnswerRules
    settings: TirSettings
    sampling: Sampling
    open_tool: Callable[[Problem, int], PythonTool]
    stream: str = ""
    """Names the random streams of this rollout, such as `seed 7, step 12`."""


def stream_seed(stream: str, problem: str, sample: int, turn: int) -> int:
    """Seed of one turn's random stream, in [0, 2**63): equal names give equal seeds, on every machine."""
    name = f"{stream}/{problem}/{sample}/{turn}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1


async def run_episode(problem: Problem, sample: int, context: EpisodeContext) -> Trajectory:
    """Play one episode.

    Never raises for a failure of the model, nor for one of engine or sandbox: the latter is kept in
    `stop` (`FAILED`, `DEADLINE`) and `error`, and such a trajectory is neither rewarded nor trained on.
    """
    start = time.monotonic()
    trajectory = Trajectory(problem, sample, [context.format.prompt(problem.question)])
    tool = context.open_tool(problem, sample)
    deadline = asyncio.get_running_loop().time() + context.settings.deadline_s
    try:
        async with asyncio.timeout_at(deadline):
            await _play(trajectory, tool, context, deadline)
    except InfrastructureError as error:
        trajectory.stop, trajectory.error = StopReason.FAILED, str(error)
    except TimeoutError:
        trajectory.stop = StopReason.DEADLINE
        trajectory.error = f"the episode did not end within tir.deadline_s = {context.settings.deadline_s:g} s"
    finally:
        context.engine.release(trajectory.key)
        await tool.close()
        trajectory.seconds = time.monotonic() - start
    return trajectory


async def _play(trajectory: Trajectory, tool: PythonTool, context: EpisodeContext, deadline: float) -> None:
    settings = context.settings
    for turn in range(settings.max_turns):
        room = settings.max_total_tokens - trajectory.length
        if room < 1:
            trajectory.stop = StopReason.CONTEXT_FULL
            return
        generation = await _generate(trajectory, turn, min(settings.max_turn_tokens, room), context, deadline)
        if generation.ids:
            trajectory.segments.append(
                Segment(Origin.MODEL, generation.ids, generation.logprobs, generation.weight_versions)
            )
        if generation.finish is FinishReason.ABORTED:
            raise TimeoutError
        text = context.format.decode(generation.ids)
        parsed = parse_turn(text)
        answer = context.answers.from_prose(parsed.prose)
        if parsed.code is None:
            void = answer is None
            trajectory.turns.append(
                Turn(text, generation.finish, answer=answer, void=void, generate_seconds=generation.seconds)
            )
            trajectory.answer = answer
            trajectory.stop = _stop_without_code(answer, generation.finish)
            return
        last = turn == settings.max_turns - 1 or answer is not None
        stop = await _use_tool(trajectory, generation, text, parsed.code, answer, tool, context, deadline, last=last)
        if stop is not None:
            trajectory.stop = stop
            return


async def _generate(
    trajectory: Trajectory, turn: int, cap: int, context: EpisodeContext, deadline: float
) -> Generation:
    remaining = deadline - asyncio.get_running_loop().time()
    return await context.engine.generate(
        GenerationRequest(
            trajectory=trajectory.key,
            ids=tuple(trajectory.ids),
            max_new_tokens=cap,
            seed=stream_seed(context.stream, trajectory.problem.id, trajectory.sample, turn),
            sampling=context.sampling,
            deadline=time.monotonic() + remaining,
        )
    )


def _stop_without_code(answer: str | None, finish: FinishReason) -> StopReason:
    if answer is not None:
        return StopReason.ANSWER
    return StopReason.LENGTH if finish is FinishReason.LENGTH else StopReason.VOID


async def _use_tool(
    trajectory: Trajectory,
    generation: Generation,
    text: str,
    code: str,
    answer: str | None,
    tool: PythonTool,
    context: EpisodeContext,
    deadline: float,
    *,
    last: bool,
) -> StopReason | None:
    """Run the turn's program and append its observation; the reason to stop, None to go on."""
    start = time.monotonic()
    outcome = await tool.run(code, deadline=deadline)
    tool_seconds = time.monotonic() - start
    stop, answer = _stop_after_code(code, answer, outcome, context, last=last)
    segments = _observation(trajectory, generation, outcome, context, last=stop is not None)
    if segments is None:
        stop = stop or StopReason.CONTEXT_FULL
    else:
        trajectory.segments += segments
    shown = [i for s in segments or () if s.origin is Origin.TOOL for i in s.ids]
    trajectory.turns.append(
        Turn(
            text,
            generation.finish,
            code=code,
            answer=answer,
            outcome=outcome,
            observation=context.format.decode(tuple(shown)),
            generate_seconds=generation.seconds,
            tool_seconds=tool_seconds,
        )
    )
    trajectory.answer = answer
    return stop


def _stop_after_code(
    code: str, answer: str | None, outcome: ToolOutcome, context: EpisodeContext, *, last: bool
) -> tuple[StopReason | None, str | None]:
    if answer is None and outcome.ok:
        answer = context.answers.from_code(code)
    if answer is not None:
        return StopReason.ANSWER, answer
    if context.settings.tool_answer_counts:
        answer = context.answers.from_prose(outcome.stdout)
        if answer is not None:
            return StopReason.TOOL_ANSWER, answer
    return (StopReason.MAX_TURNS if last else None), None


def _observation(
    trajectory: Trajectory, generation: Generation, outcome: ToolOutcome, context: EpisodeContext, *, last: bool
) -> list[Segment] | None:
    """The observation's segments, cut to the room that is left; None if not even an empty one fits."""
    settings = context.settings
    room = settings.max_total_tokens - trajectory.length - context.format.overhead()
    if room < 1:
        return None
    return context.format.observation(
        observation_text(outcome),
        generation.ids,
        max_tokens=min(settings.max_observation_tokens, room),
        last=last,
    )
