"""The contract between an episode and whatever generates tokens for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agent_rl.types import FinishReason

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 means greedy.

    Log-probs are those of the distribution that was sampled from: of softmax(logits / temperature), and
    with `temperature` 0 of softmax(logits). `top_p` < 1 and `top_k` > 0 serve evaluation; training refuses
    them, since ratios against a truncated distribution mean nothing.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One turn of one trajectory.

    Args:
        trajectory: unique name of the trajectory; successive turns share it, so that an engine can keep its
            KV cache until `release(trajectory)`.
        ids: the whole context, prompt first. It extends what the engine has seen of this trajectory.
        max_new_tokens: at least 1.
        seed: names the random stream of this turn; equal (ids, seed, weights) gives equal samples when the
            engine is deterministic.
        stop_at_fence: stop at the token that completes the closing line of an executable code block.
        deadline: seconds on `time.monotonic()`; past it the engine returns what it has, as `ABORTED`.
    """

    trajectory: str
    ids: tuple[int, ...]
    max_new_tokens: int
    seed: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_at_fence: bool = True
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """What was sampled: `ids`, `logprobs` and `weight_versions` have one entry a token."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_versions: tuple[int, ...]
    finish: FinishReason
    seconds: float = 0.0


class Engine(Protocol):
    """Generates tokens for many trajectories at once.

    `generate` may be awaited by hundreds of tasks concurrently; the engine batches them. Errors of the
    engine's own are raised as `InfrastructureError("engine", ...)`.
    """

    @property
    def weight_version(self) -> int:
        """Version of the weights that the next token is sampled with."""
        ...

    async def start(self) -> None:
        """Make ready; idempotent."""
        ...

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one turn."""
        ...

    def release(self, trajectory: str) -> None:
        """The trajectory asks for nothing more: drop its cache, and in lockstep mode stop waiting for it."""
        ...

    def expect(self, trajectories: Iterable[str]) -> None:
        """Announce the trajectories of a batch. In lockstep (deterministic) mode a batch of generations
        starts only when each announced trajectory has asked or been released; otherwise this does nothing."""
        ...

    async def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take new weights (Hugging Face parameter names); caches of older weights are dropped."""
        ...

    async def close(self) -> None:
        """Stop, and wait for what was started; idempotent."""
        ...


@runtime_checkable
class Resting(Protocol):
    """An engine that may share its devices with the learner."""

    async def rest(self) -> None:
        """Nothing will be asked until new weights come: give up what memory the settings say."""
        ...


async def rest(engine: Engine) -> None:
    """Let an engine rest, if it is one that can."""
    if isinstance(engine, Resting):
        await engine.rest()
