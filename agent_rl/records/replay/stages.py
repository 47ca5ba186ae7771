"""What a replay found, stage by stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """Why a replayed program answers otherwise than was recorded."""

    DETERMINISTIC = "deterministic"
    """It answers alike each time, and not as recorded: the recording or the sandbox was changed."""
    TIME = "time-dependent"
    """It reads a clock, or raced a time limit."""
    RANDOM = "random"
    """It answers otherwise each time."""
    ENVIRONMENT = "environment"
    """What differs is the machine's doing: isolation, memory, a missing module or file."""


STAGES = (
    "tools",
    "tokens",
    "answers",
    "verdicts",
    "rewards",
    "advantages",
    "sampler log-probs",
    "token quantities",
    "weights",
    "policy log-probs",
    "ratios and gates",
    "loss",
    "gradient norm",
)
"""In the order in which data flows, so that the first that differs is where to look."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that came out otherwise."""

    where: str
    """`step 3, problem#2, turn 1`."""
    recorded: str
    replayed: str
    kind: Kind | None = None

    def __str__(self) -> str:
        kind = "" if self.kind is None else f" [{self.kind}]"
        return f"{self.where}: recorded {self.recorded}, replayed {self.replayed}{kind}"


@dataclass(slots=True)
class Stage:
    """One stage over everything that was replayed."""

    name: str
    checked: int = 0
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        if self.differences:
            return "differs"
        return "equal" if self.checked else "not checked"

    def check(self, where: str, recorded: Any, replayed: Any) -> None:
        """Count one comparison."""
        self.checked += 1
        if recorded != replayed:
            self.differences.append(Difference(where, short(recorded), short(replayed)))


@dataclass(frozen=True)
class Outcome:
    """A whole replay."""

    stages: Sequence[Stage]
    context: Sequence[str] = ()
    """What is another now than when the recording was made."""

    @property
    def first(self) -> Stage | None:
        """The first stage that differs, None if all that was checked is equal."""
        return next((stage for stage in self.stages if stage.differences), None)

    def as_json(self) -> dict[str, Any]:
        first = self.first
        return {
            "first_difference": None if first is None else first.name,
            "context": list(self.context),
            "stages": [
                {
                    "name": s.name,
                    "status": s.status,
                    "checked": s.checked,
                    "differing": len(s.differences),
                    "differences": [str(d) for d in s.differences[:20]],
                    "notes": s.notes,
                }
                for s in self.stages
            ],
        }


def ordered(stages: Iterable[Stage]) -> list[Stage]:
    """One stage a name, in the order of `STAGES`, those of equal name added up."""
    by_name = {name: Stage(name) for name in STAGES}
    for stage in stages:
        total = by_name[stage.name]
        total.checked += stage.checked
        total.differences += stage.differences
        total.notes += [note for note in stage.notes if note not in total.notes]
    return list(by_name.values())


def short(value: Any, most: int = 60) -> str:
    """For one line of a report."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"
