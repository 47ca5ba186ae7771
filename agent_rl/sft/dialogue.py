"""One demonstration as an episode sees it: a question, then turns with their observations."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agent_rl.sft.execution import run_own_programs
from agent_rl.sft.settings import FamilyDemonstrations
from agent_rl.tasks.families import items
from agent_rl.tasks.families.traces import Flaw, Trace, carry_out, plan, programs_of
from agent_rl.tir.observation import observation_text
from agent_rl.types import ToolOutcome

_EXECUTION_DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """What the model writes, and the observation's body if that text ends with a program."""

    text: str
    observation: str | None = None


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A question and the turns that follow."""

    question: str
    turns: tuple[DialogueTurn, ...]
    flawed: bool = False
    """Wrong on purpose; see `agent_rl.tasks.families.traces`."""

    def texts(self) -> Iterator[str]:
        """Everything that is read or written, in order."""
        yield self.question
        for turn in self.turns:
            yield turn.text
            if turn.observation is not None:
                yield turn.observation


def family_dialogues(settings: FamilyDemonstrations) -> tuple[list[Dialogue], dict[str, int]]:
    """Demonstrations on generated problems, their programs run; and how many there are of each flaw."""
    flaws = settings.flaws
    shares = {
        Flaw.MISTAKE: flaws.mistake,
        Flaw.GUESS: flaws.guess,
        Flaw.VOID: flaws.void,
        Flaw.SYNTAX: flaws.syntax,
    }
    rng = random.Random(f"demonstrations/{settings.seed}")
    plans = [plan(f, item, rng, shares) for f, item in items(settings.families, settings.seed, settings.count)]
    outcomes = run_own_programs(programs_of(plans), deadline_s=_EXECUTION_DEADLINE_S)
    traces = [carry_out(p, outcomes) for p in plans]
    return [_dialogue(trace, rng) for trace in traces], dict(Counter(t.flaw.value for t in traces))


def _dialogue(trace: Trace, rng: random.Random) -> Dialogue:
    turns = []
    for step in trace.steps:
        seen = None if step.outcome is None else observation_text(_retold(step.outcome, rng))
        turns.append(DialogueTurn(step.text, seen))
    return Dialogue(trace.problem.question, tuple(turns), flawed=trace.flaw is not Flaw.NONE)


_UNDERLINE = re.compile(r"^ *[~^]+\n", re.MULTILINE)
_FILE_NAMES = ("/sandbox/main.py", "main.py", "<cell 1>")


def _retold(outcome: ToolOutcome, rng: random.Random) -> ToolOutcome:
    """The same error as another interpreter or sandbox words it: file name, marks under the faulty place."""
    if outcome.ok:
        return outcome
    stderr = outcome.stderr.replace(_FILE_NAMES[0], rng.choice(_FILE_NAMES))
    if rng.random() < 0.3:
        stderr = _UNDERLINE.sub("", stderr)
    return replace(outcome, stderr=stderr)
