"""The verifier: compares an answer with the gold answer, never hangs, and never blames an answer for our faults.

    async with Verifier(settings.verifier) as verifier:
        verdict = await verifier.verify("\\\\frac{1}{2}", "0.5")

Simple answers are decided in this process, exactly; everything else by a pool of killable worker processes.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from agent_rl.rewards.judge import Judgement, judge_fast
from agent_rl.rewards.pool import QueueFull, WorkerPool
from agent_rl.rewards.settings import VerifierSettings
from agent_rl.types import InfrastructureError, Verdict, VerdictKind

VERSION = "1"
"""Raised with every change that can change a verdict; part of every record."""

KINDS = ("math", "string", "numeric", "choice")
"""Verifiers by name; any other kind is an import path `package.module:function`."""

_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
_POLL_SECONDS = 0.01


def verifier_name(kind: str) -> str:
    """Name and version as they stand in every :class:`agent_rl.types.Verdict`."""
    return f"{kind}/{VERSION}"


class Verifier:
    """Compares answers with gold answers. Usable from any thread and any event loop, by many callers at once.

    Args:
        settings: limits and rules; see :class:`agent_rl.rewards.settings.VerifierSettings`.
    """

    def __init__(self, settings: VerifierSettings | None = None):
        self.settings = settings or VerifierSettings()
        self.pool = WorkerPool(self.settings)
        self.options = {
            "percent_as_number": self.settings.percent_as_number,
            "decimal_digits": self.settings.decimal_digits,
            "relative_tolerance": self.settings.relative_tolerance,
            "absolute_tolerance": self.settings.absolute_tolerance,
        }

    async def __aenter__(self) -> Verifier:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers. Answers that still wait raise :class:`InfrastructureError`."""
        self.pool.close()

    async def verify(self, answer: str | None, gold: str, *, kind: str = "math") -> Verdict:
        """The verdict on one answer.

        Args:
            answer: the extracted answer, None if there is none.
            gold: the reference answer.
            kind: `math`, `string`, `numeric`, `choice`, or an import path `module:function`.

        Raises:
            InfrastructureError: the verifier itself failed, repeatedly; the answer is not to blame.
            ValueError: `kind` names no verifier.
        """
        began = time.perf_counter()
        judgement = self._at_once(answer, gold, kind)
        if judgement is None:
            assert answer is not None
            future = None
            limit = time.monotonic() + self.settings.queue_seconds
            while future is None:
                try:
                    future = self.pool.submit(self._message(answer, gold, kind), custom=":" in kind)
                except QueueFull:
                    self._check_queue(limit)
                    await asyncio.sleep(_POLL_SECONDS)
            try:
                async with asyncio.timeout(self._longest_wait()):
                    judgement = _judgement(await asyncio.wrap_future(future))
            except TimeoutError:
                raise InfrastructureError("verifier", "no result within any of its own deadlines") from None
        return self._verdict(judgement, answer, gold, kind, began)

    def verify_sync(self, answer: str | None, gold: str, *, kind: str = "math") -> Verdict:
        """As :meth:`verify`, for callers without an event loop. Blocks; usable from any thread."""
        began = time.perf_counter()
        judgement = self._at_once(answer, gold, kind)
        if judgement is None:
            assert answer is not None
            future = None
            limit = time.monotonic() + self.settings.queue_seconds
            while future is None:
                try:
                    future = self.pool.submit(self._message(answer, gold, kind), custom=":" in kind)
                except QueueFull:
                    self._check_queue(limit)
                    time.sleep(_POLL_SECONDS)
            try:
                judgement = _judgement(future.result(timeout=self._longest_wait()))
            except FutureTimeoutError:
                future.cancel()
                raise InfrastructureError("verifier", "no result within any of its own deadlines") from None
        return self._verdict(judgement, answer, gold, kind, began)

    def _at_once(self, answer: str | None, gold: str, kind: str) -> Judgement | None:
        """What needs no worker: missing and oversized answers, and everything the fast rules decide."""
        if kind not in KINDS and not _IMPORT_PATH.match(kind):
            raise ValueError(
                f"verifier kind {kind!r} is unknown; choose from {', '.join(KINDS)} or give 'module:function'"
            )
        if answer is None:
            return Judgement("wrong", "no answer")
        limit = self.settings.max_answer_chars
        if not gold.strip():
            return Judgement("undecided", "gold unreadable: empty")
        if len(gold) > limit:
            return Judgement("undecided", f"gold unreadable: {len(gold)} characters, more than {limit}")
        if not answer.strip():
            return Judgement("wrong", "the answer is empty")
        if len(answer) > limit:
            return Judgement("undecided", f"size: {len(answer)} characters, more than max_answer_chars = {limit}")
        return judge_fast(answer, gold, kind, self.options)

    def _message(self, answer: str, gold: str, kind: str) -> Mapping[str, Any]:
        return {
            "answer": answer,
            "gold": gold,
            "kind": kind,
            "options": self.options,
            "cpu_seconds": self.settings.cpu_seconds,
        }

    def _check_queue(self, limit: float) -> None:
        if time.monotonic() > limit:
            raise InfrastructureError(
                "verifier",
                f"no place in the queue within queue_seconds = {self.settings.queue_seconds}; "
                "raise workers or queue_size",
            )

    def _longest_wait(self) -> float:
        """An upper bound on queueing, every retry and every start together: a backstop, never reached in order."""
        one = self.settings.wall_seconds + self.settings.start_seconds + 35
        return self.settings.queue_seconds + one * (self.settings.crash_retries + 2)

    def _verdict(self, judgement: Judgement, answer: str | None, gold: str, kind: str, began: float) -> Verdict:
        return Verdict(
            kind=VerdictKind(judgement.kind),
            reason=judgement.reason,
            answer=answer,
            gold=gold,
            verifier=verifier_name(kind),
            seconds=time.perf_counter() - began,
        )


def _judgement(reply: Mapping[str, Any]) -> Judgement:
    return Judgement(reply["kind"], reply["reason"])
