"""The front door: every object that travels through the system, and nothing else.

The way of the data::

    Problem -> episode -> Trajectory (segments, turns) -> Verdict -> Group (advantages) -> learner

A trajectory is a list of :class:`Segment`. A segment is a run of token ids of one origin; ids that were
sampled are kept as they were sampled and are never decoded and encoded again. ``ids``, ``loss_mask``,
``logprobs`` and ``weight_versions`` are derived from the segments here, in one place: a token is trained
on if and only if it was sampled by the policy.

This module imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

UNSAMPLED_VERSION = -1
"""Weight version of a token that no policy sampled."""


class Origin(StrEnum):
    """Who wrote a run of tokens."""

    PROMPT = "prompt"
    """The problem and its instructions, rendered once at the start."""
    MODEL = "model"
    """Sampled by the policy. The only origin with loss mask 1."""
    TOOL = "tool"
    """The observation: what the sandbox answered, as the model sees it."""
    SEPARATOR = "separator"
    """Role headers, newlines after a close token: text of the format that nobody sampled."""


class FinishReason(StrEnum):
    """Why one generation ended."""

    EOS = "eos"
    """An end-of-sequence token was sampled; it is the last id of the segment, with mask 1."""
    FENCE = "fence"
    """The token that completes the closing fence of a code block was sampled; kept whole, with mask 1."""
    LENGTH = "length"
    """The cap on sampled tokens of this turn, or on all tokens of the trajectory, was reached."""
    ABORTED = "aborted"
    """The caller's deadline passed or the request was cancelled; the ids so far are returned."""


class StopReason(StrEnum):
    """Why a trajectory ended."""

    ANSWER = "answer"
    """The model gave a final answer (a box outside a fence, or `final_answer(LITERAL)` in code that ran)."""
    TOOL_ANSWER = "tool_answer"
    """A tool printed a boxed answer and the setting `tool_answer_counts` is on."""
    VOID = "void"
    """A turn ended by itself with neither a complete code block nor an answer (SimpleTIR's void turn)."""
    LENGTH = "length"
    """A turn was cut by a length cap before it had a complete code block or an answer; counted as void."""
    MAX_TURNS = "max_turns"
    """The last permitted turn ran code; its observation was appended and nothing may follow it."""
    CONTEXT_FULL = "context_full"
    """A turn ran code, and what follows its observation would not fit the trajectory's token cap."""
    DEADLINE = "deadline"
    """The episode's wall-clock deadline passed: an infrastructure failure, never a wrong answer."""
    FAILED = "failed"
    """Engine, sandbox or verifier failed for reasons of ours; left out of training and counted."""


class ToolStatus(StrEnum):
    """How one execution of model code ended. The first eight are the model's doing, the last three ours."""

    OK = "ok"
    """Exit status 0, whatever stands on stderr."""
    ERROR = "error"
    """Uncaught exception or non-zero exit status."""
    SYNTAX_ERROR = "syntax_error"
    """The source does not compile."""
    TIMEOUT = "timeout"
    """The wall-clock limit passed; partial output is kept."""
    CPU_TIMEOUT = "cpu_timeout"
    """The CPU-time limit passed; partial output is kept."""
    OOM = "oom"
    """The memory limit was reached."""
    OUTPUT_LIMIT = "output_limit"
    """The program flooded its output and was stopped."""
    KILLED = "killed"
    """A signal that was not ours ended it (segmentation fault, abort, its own kill)."""
    CANCELLED = "cancelled"
    """The caller cancelled the run."""
    SESSION_LOST = "session_lost"
    """The session's state is gone (idle, evicted, restarted): the model starts from an empty one."""
    SANDBOX_ERROR = "sandbox_error"
    """The sandbox itself failed; retryable, never shown to the model as its own mistake."""


class VerdictKind(StrEnum):
    """What the verifier found."""

    CORRECT = "correct"
    """The answer equals the gold answer."""
    WRONG = "wrong"
    """There is no answer, or it is another one."""
    UNDECIDED = "undecided"
    """Deadline, memory or size, caused by the answer: reward as for a wrong one, counted apart."""


class InfrastructureError(Exception):
    """A failure of ours (engine, sandbox, verifier), as opposed to a failure of the model.

    Args:
        component: `engine`, `sandbox` or `verifier`.
        message: what happened and what to do.
        retryable: whether the same call may succeed later.
    """

    def __init__(self, component: str, message: str, *, retryable: bool = True):
        super().__init__(f"{component}: {message}")
        self.component = component
        self.retryable = retryable


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem to solve.

    `id` is stable and unique within a data set; `gold` is the reference answer as text; `source` names the
    family or data set, so that metrics can be grouped by it.
    """

    id: str
    question: str
    gold: str
    source: str = ""
    kind: str = "math"
    """Name of the verifier that compares answers with `gold`."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of token ids of one origin.

    `logprobs[i]` is the log-probability (natural logarithm, of the distribution that was sampled from,
    temperature included) of `ids[i]`, and `weight_versions[i]` the version of the weights that sampled it.
    Both are empty for origins other than `MODEL`.
    """

    origin: Origin
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    weight_versions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        expected = len(self.ids) if self.origin is Origin.MODEL else 0
        if len(self.logprobs) != expected or len(self.weight_versions) != expected:
            raise ValueError(
                f"a {self.origin} segment of {len(self.ids)} ids needs {expected} logprobs and weight versions, "
                f"got {len(self.logprobs)} and {len(self.weight_versions)}"
            )


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What the sandbox answered to one program. Times in milliseconds, sizes in bytes."""

    status: ToolStatus
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    signal: int | None = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    queue_ms: float = 0.0
    state: str | None = None
    """Of a session after the run: `kept`, `reset`, `rolled_back` or `lost`; None for a stateless run."""
    tier: str = ""
    retries: int = 0

    @property
    def ok(self) -> bool:
        return self.status is ToolStatus.OK


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation and what came of it."""

    text: str
    """The sampled ids, decoded for parsing and display only."""
    finish: FinishReason
    code: str | None = None
    answer: str | None = None
    void: bool = False
    outcome: ToolOutcome | None = None
    observation: str | None = None
    generate_seconds: float = 0.0
    tool_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier says of one final answer."""

    kind: VerdictKind
    reason: str
    answer: str | None
    gold: str
    verifier: str
    """Name and version, such as `math/1`."""
    seconds: float = 0.0

    @property
    def score(self) -> float:
        """1.0 if correct, else 0.0."""
        return 1.0 if self.kind is VerdictKind.CORRECT else 0.0


@dataclass(slots=True)
class Trajectory:
    """One attempt at one problem, token by token."""

    problem: Problem
    sample: int
    """Index within the group."""
    segments: list[Segment] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    stop: StopReason | None = None
    answer: str | None = None
    error: str | None = None
    """Of an infrastructure failure: which component, and what it said."""
    verdict: Verdict | None = None
    reward: float | None = None
    """None for an infrastructure failure: such a trajectory enters neither the loss nor the group's statistics."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def key(self) -> str:
        """Name of this attempt within one rollout batch."""
        return f"{self.problem.id}#{self.sample}"

    @property
    def ids(self) -> list[int]:
        """All token ids, in order."""
        return [i for s in self.segments for i in s.ids]

    @property
    def loss_mask(self) -> list[int]:
        """1 where the policy sampled the token, else 0."""
        return [m for s in self.segments for m in (int(s.origin is Origin.MODEL),) * len(s.ids)]

    @property
    def logprobs(self) -> list[float]:
        """The sampler's log-probability at model tokens, 0.0 elsewhere."""
        return [p for s in self.segments for p in (s.logprobs or (0.0,) * len(s.ids))]

    @property
    def weight_versions(self) -> list[int]:
        """The sampler's weight version at model tokens, `UNSAMPLED_VERSION` elsewhere."""
        return [v for s in self.segments for v in (s.weight_versions or (UNSAMPLED_VERSION,) * len(s.ids))]

    @property
    def length(self) -> int:
        return sum(len(s.ids) for s in self.segments)

    @property
    def sampled_tokens(self) -> int:
        return sum(len(s.ids) for s in self.segments if s.origin is Origin.MODEL)

    @property
    def void(self) -> bool:
        """Whether SimpleTIR's filter leaves it out of the loss: it ended in a turn without code or answer."""
        return any(turn.void for turn in self.turns)

    @property
    def failed(self) -> bool:
        """Whether it failed for reasons of ours."""
        return self.stop in (StopReason.FAILED, StopReason.DEADLINE)

    @property
    def truncated(self) -> bool:
        return any(turn.finish is FinishReason.LENGTH for turn in self.turns)

    @property
    def tool_calls(self) -> int:
        return sum(turn.outcome is not None for turn in self.turns)


@dataclass(slots=True)
class Group:
    """All attempts at one problem of one rollout batch, with their advantages once they are known."""

    problem: Problem
    trajectories: list[Trajectory]
    advantages: list[float] | None = None
    """One per trajectory; 0.0 for those that are left out of the loss."""
    dead: bool = False
    """All rewards that count are equal, so that no trajectory of the group carries a signal."""

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)
