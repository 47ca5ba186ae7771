"""One turn that is being generated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from agent_rl.engines.base import Generation, GenerationRequest
from agent_rl.engines.uniform import stream_start
from agent_rl.types import FinishReason


class Scanner(Protocol):
    """Looks for the end of an executable code block in the text of one turn, as it comes."""

    def feed(self, text: str) -> bool:
        """Take the next piece of text; True once the closing line of a block has begun with its three
        backticks. Several pieces may come at once; the engine feeds whenever a token holds a backtick."""
        ...


@dataclass(eq=False, slots=True)
class Job:
    """A request, what was sampled for it, and where its keys and values lie."""

    request: GenerationRequest
    future: asyncio.Future[Generation]
    loop: asyncio.AbstractEventLoop
    limit: int
    """Most tokens that may be sampled: the request's cap, or what the context has room for."""
    scanner: Scanner | None
    context: list[int] = field(init=False)
    """All ids: the request's, then the sampled ones."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    """(number of tokens sampled before, weight version) at the start and at each change of weights."""
    stream: int = field(init=False)
    scanned: int = field(init=False)
    """How many ids of the context the scanner has seen."""
    cached: int = 0
    """How many ids of the context have keys and values in the slot."""
    slot: int = -1
    running: bool = False
    finished: bool = False
    used: int = 0
    """Order of last use, for eviction."""
    begun: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.context = list(self.request.ids)
        self.scanned = len(self.context)
        self.stream = stream_start(self.request.seed)

    @property
    def name(self) -> str:
        return self.request.trajectory

    def closes_fence(self, text: Callable[[int], str]) -> bool:
        """Show the scanner what it has not seen; whether a block closed."""
        assert self.scanner is not None
        fresh = "".join(map(text, self.context[self.scanned :]))
        self.scanned = len(self.context)
        return self.scanner.feed(fresh)

    def note_version(self, version: int) -> None:
        """The tokens to come are sampled with these weights."""
        if not self.versions or self.versions[-1][1] != version:
            self.versions.append((len(self.logprobs), version))

    def result(self, finish: FinishReason) -> Generation:
        """What was sampled so far."""
        count = len(self.logprobs)
        ends = [start for start, _ in self.versions[1:]] + [count]
        # A job that never ran has no version, and no token either.
        versions = [v for (start, v), end in zip(self.versions, ends, strict=False) for _ in range(end - start)]
        return Generation(
            ids=tuple(self.context[len(self.context) - count :]),
            logprobs=tuple(self.logprobs),
            weight_versions=tuple(versions),
            finish=finish,
            seconds=time.monotonic() - self.begun,
        )


def longest(jobs: Iterable[Job]) -> int:
    """Length of the longest context."""
    return max((len(job.context) for job in jobs), default=0)
