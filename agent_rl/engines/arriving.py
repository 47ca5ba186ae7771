"""One turn whose tokens come from another process, a few at a time, and that ends where we say.

A serving engine knows end-of-sequence ids and lengths, but no fence: that needs the text of the turn so far. So the
fence is looked for here, token by token, and the rest of the stream is given up at the token that completes it.
Tokens behind that one were sampled for nothing; they are counted and never become part of a trajectory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from agent_rl.engines.base import Generation, GenerationRequest
from agent_rl.engines.job import Scanner
from agent_rl.types import FinishReason, InfrastructureError


class ArrivingTurn:
    """What has come of a turn so far.

    Args:
        request: what was asked for.
        limit: most tokens that may be sampled: the request's cap, or what the context has room for.
        eos_ids: ids that end a turn, and are part of it.
        text: piece of text that an id adds.
        scanner: makes what looks for the closing fence; None if the turn does not end there.
    """

    def __init__(
        self,
        request: GenerationRequest,
        *,
        limit: int,
        eos_ids: frozenset[int],
        text: Callable[[int], str],
        scanner: Callable[[], Scanner] | None,
    ):
        self.request, self.limit = request, limit
        self.surplus = 0
        """Tokens that came behind the end, and were dropped."""
        self._eos_ids, self._text = eos_ids, text
        self._scanner_of = scanner
        self._begun = time.monotonic()
        self.begin_again()

    def begin_again(self) -> None:
        """Forget what has come."""
        self.ids: list[int] = []
        self.finish: FinishReason | None = None
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._scanner = None if self._scanner_of is None else self._scanner_of()
        self._scanned = 0

    def take(self, ids: Sequence[int], logprobs: Sequence[float], version: int) -> bool:
        """Take the next tokens, all sampled with weights of that version; whether the turn has ended.

        Raises:
            InfrastructureError: a log-probability is not finite, or there is not one for each id.
        """
        if len(ids) != len(logprobs):
            raise InfrastructureError(
                "engine", f"{len(ids)} tokens came with {len(logprobs)} log-probs", retryable=False
            )
        for place, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
            if self.finish is not None:
                self.surplus += len(ids) - place
                break
            if not math.isfinite(logprob):
                raise InfrastructureError(
                    "engine",
                    f"the model's logits are not finite for trajectory {self.request.trajectory!r} (weight version "
                    f"{version}): the weights have diverged; lower the learning rate or the gradient clip, or go "
                    "back to a checkpoint",
                    retryable=False,
                )
            self.ids.append(token)
            self._logprobs.append(logprob)
            self._versions.append(version)
            if token in self._eos_ids:
                self.finish = FinishReason.EOS
            elif self._closes_fence(token):
                self.finish = FinishReason.FENCE
            elif len(self.ids) >= self.limit:
                self.finish = FinishReason.LENGTH
        return self.finish is not None

    def result(self, finish: FinishReason) -> Generation:
        """What has come."""
        return Generation(
            ids=tuple(self.ids),
            logprobs=tuple(self._logprobs),
            weight_versions=tuple(self._versions),
            finish=finish,
            seconds=time.monotonic() - self._begun,
        )

    def _closes_fence(self, token: int) -> bool:
        # The scanner is shown text only when a backtick comes: no other piece can complete a fence.
        if self._scanner is None or "`" not in self._text(token):
            return False
        fresh = "".join(map(self._text, self.ids[self._scanned :]))
        self._scanned = len(self.ids)
        return self._scanner.feed(fresh)
