"""Recorded programs, run again in the sandbox; each difference is told apart by what causes it."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Sequence

from agent_rl.records.replay.stages import Difference, Kind, Stage, short
from agent_rl.records.schema import Record
from agent_rl.tir.tool import PythonTool
from agent_rl.types import InfrastructureError, ToolOutcome, ToolStatus

COMPARED = ("status", "stdout", "stderr", "exit_code", "signal", "stdout_truncated", "stderr_truncated")
"""Fields of an outcome that a replay must meet; times and queues are the machine's."""

_CLOCKS = frozenset({"time", "datetime", "perf_counter", "monotonic", "timeit", "sleep", "localtime"})
_RACES = frozenset({ToolStatus.TIMEOUT, ToolStatus.CPU_TIMEOUT})
_MACHINE = frozenset({ToolStatus.OOM, ToolStatus.KILLED, ToolStatus.OUTPUT_LIMIT})
_MACHINE_ERRORS = (
    "ModuleNotFoundError",
    "ImportError",
    "MemoryError",
    "FileNotFoundError",
    "PermissionError",
    "OSError",
)


async def replay_tools(
    records: Sequence[Record], open_tool: Callable[[], PythonTool], *, deadline_s: float, at_once: int = 8
) -> Stage:
    """Run every recorded program again, those of one trajectory in order, and compare the outcomes.

    A trajectory that differs is run once more, to see whether it repeats itself.
    """
    stage = Stage("tools")
    gate = asyncio.Semaphore(at_once)

    async def one(record: Record) -> list[Difference]:
        async with gate:
            return await _compare(record, open_tool, deadline_s, stage)

    with_calls = [r for r in records if any(turn.outcome is not None for turn in r.turns)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(record)) for record in with_calls]
    stage.differences = [difference for task in tasks for difference in task.result()]
    return stage


async def _compare(
    record: Record, open_tool: Callable[[], PythonTool], deadline_s: float, stage: Stage
) -> list[Difference]:
    programs = [(turn.code or "", turn.outcome) for turn in record.turns if turn.outcome is not None]
    stage.checked += len(programs)
    codes = [code for code, _ in programs]
    first = await _run(codes, open_tool, deadline_s)
    if isinstance(first, str):
        stage.checked -= len(programs)
        stage.notes.append(f"{record.key} could not be run: {first}")
        return []
    wrong = [n for n, (_, outcome) in enumerate(programs) if not same(outcome, first[n])]
    if not wrong:
        return []
    second = await _run(codes, open_tool, deadline_s)
    again = first if isinstance(second, str) else second
    return [
        Difference(
            f"step {record.step}, {record.key}, call {n + 1}",
            _told(programs[n][1], first[n]),
            _told(first[n], programs[n][1]),
            classify(codes[: n + 1], programs[n][1], first[n], again[n]),
        )
        for n in wrong
    ]


async def _run(codes: Sequence[str], open_tool: Callable[[], PythonTool], deadline_s: float) -> list[ToolOutcome] | str:
    """The outcomes, or what the sandbox said when it failed."""
    tool = open_tool()
    deadline = asyncio.get_running_loop().time() + deadline_s
    try:
        return [await tool.run(code, deadline=deadline) for code in codes]
    except (InfrastructureError, TimeoutError) as error:
        return str(error) or type(error).__name__
    finally:
        await tool.close()


def same(recorded: ToolOutcome, replayed: ToolOutcome) -> bool:
    """Whether two outcomes agree in all that a model could see."""
    return all(getattr(recorded, name) == getattr(replayed, name) for name in COMPARED)


def classify(codes: Sequence[str], recorded: ToolOutcome, first: ToolOutcome, second: ToolOutcome) -> Kind:
    """Why a program answered otherwise than was recorded.

    Args:
        codes: the program, after those that ran before it in the same trajectory.
        first, second: outcomes of two replays.
    """
    if any(reads_a_clock(code) for code in codes) or _RACES & {recorded.status, first.status, second.status}:
        return Kind.TIME
    if not same(first, second):
        return Kind.RANDOM
    statuses = {recorded.status, first.status}
    if (recorded.tier != first.tier and recorded.status != first.status) or statuses & _MACHINE:
        return Kind.ENVIRONMENT
    if any(_last_line(outcome.stderr).startswith(_MACHINE_ERRORS) for outcome in (recorded, first)):
        return Kind.ENVIRONMENT
    return Kind.DETERMINISTIC


def reads_a_clock(code: str) -> bool:
    """Whether a program names a clock; a program that does not parse cannot."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and _CLOCKS & {alias.name.split(".")[0] for alias in node.names}:
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _CLOCKS:
            return True
    return False


def _told(outcome: ToolOutcome, other: ToolOutcome) -> str:
    """The first field in which the two differ."""
    name = next(name for name in COMPARED if getattr(outcome, name) != getattr(other, name))
    return f"{name} {short(getattr(outcome, name))}"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
