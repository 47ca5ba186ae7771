"""vLLM's asynchronous engine behind the `Engine` protocol: token ids in, token ids and log-probs out.

Scheduling, batching and the cache are vLLM's own. What is ours: when a turn ends, which weights sampled which token,
deadlines, and errors in plain words.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from torch import Tensor

from agent_rl.engines.arriving import ArrivingTurn
from agent_rl.engines.base import Generation, GenerationRequest
from agent_rl.engines.job import Scanner
from agent_rl.engines.pieces import TokenPieces
from agent_rl.engines.requests import check_request
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.vllm.handover import needed_shapes, written
from agent_rl.engines.vllm.routing import Routes
from agent_rl.engines.vllm.sampling import sampling_params
from agent_rl.engines.vllm.starting import start_llm
from agent_rl.types import FinishReason, InfrastructureError


class VllmEngine:
    """Generates with vLLM in processes of its own (see `Engine` for the contract).

    A turn ends at the token that completes the closing fence by giving up its request: what vLLM samples until it
    hears of that is dropped, and counted as far as it reaches us (`counters["surplus_tokens"]`).

    New weights reach running turns between two tokens: generation is paused, caches are dropped, and the turns go on
    with their contexts prefilled again, each token with the version that sampled it.

    Args:
        model: folder of the model, or its name on the hub.
        tokenizer: its tokenizer, for the text of tokens.
        eos_ids: ids that end a turn.
        settings: `deterministic` is refused by those who build engines.
        scanner: makes the fence scanner of a turn; needed if a request sets `stop_at_fence`.
        version: version of the weights in `model`.
    """

    def __init__(
        self,
        model: str,
        tokenizer: Any,
        *,
        eos_ids: Iterable[int],
        settings: EngineSettings | None = None,
        scanner: Callable[[], Scanner] | None = None,
        version: int = 0,
    ):
        self.settings = settings or EngineSettings(kind="vllm")
        self.model = model
        self.eos_ids = frozenset(eos_ids)
        self._text = TokenPieces(tokenizer).__getitem__
        self._scanner = scanner
        self._version = version
        self._llm: Any | None = None
        self._routes = Routes(self.settings.vllm.engines)
        self._numbers = itertools.count()
        self._running: dict[str, tuple[asyncio.Task[None], ArrivingTurn]] = {}
        self._lock = asyncio.Lock()
        self._asleep = False
        self.adapter: Any | None = None
        """vLLM's `LoRARequest` that every turn is played with; None = the weights alone."""
        self._fault = ""
        self._closed = False
        self._sampled = self._surplus = 0

    # --- what it is ---

    @property
    def weight_version(self) -> int:
        return self._version

    @property
    def llm(self) -> Any:
        """vLLM's `AsyncLLM`; `collective_rpc` on it reaches the workers of all engines."""
        if self._llm is None:
            raise InfrastructureError("engine", "the vLLM engine was not started", retryable=False)
        return self._llm

    @property
    def max_length(self) -> int:
        """Most tokens of a trajectory."""
        return int(self.llm.model_config.max_model_len)

    @property
    def counters(self) -> dict[str, int]:
        """Since the start: sampled_tokens that became part of a turn, and surplus_tokens that came behind its end."""
        return {"sampled_tokens": self._sampled, "surplus_tokens": self._surplus}

    async def start(self) -> None:
        if self._closed:
            raise InfrastructureError("engine", "the engine was closed", retryable=False)
        async with self._lock:
            if self._llm is None:
                self._llm = await start_llm(self.model, self.settings)
                self._shapes = await asyncio.to_thread(needed_shapes, self.model)

    # --- turns ---

    async def generate(self, request: GenerationRequest) -> Generation:
        await self.start()
        config = self.llm.model_config
        check_request(
            request,
            vocabulary=config.get_vocab_size(),
            max_length=self.max_length,
            can_stop_at_fence=self._scanner is not None,
        )
        if len(self._running) >= self.settings.max_waiting:
            raise InfrastructureError("engine", f"{len(self._running)} requests are queued (engine.max_waiting)")
        if self._asleep:
            await self._wake()
        if self._fault:
            raise InfrastructureError("engine", self._fault, retryable=False)
        turn = ArrivingTurn(
            request,
            limit=min(request.max_new_tokens, self.max_length - len(request.ids)),
            eos_ids=self.eos_ids,
            text=self._text,
            scanner=self._scanner if request.stop_at_fence else None,
        )
        task = asyncio.create_task(self._follow(turn))
        self._running[request.trajectory] = (task, turn)
        try:
            remaining = None if request.deadline is None else max(0.0, request.deadline - time.monotonic())
            await asyncio.wait({task}, timeout=remaining)
            await _stopped(task)
        except asyncio.CancelledError:
            await _stopped(task)
            raise
        finally:
            self._sampled += len(turn.ids)
            self._surplus += turn.surplus
            if self._running.get(request.trajectory) == (task, turn):
                del self._running[request.trajectory]
        if not task.cancelled():
            task.result()
        elif turn.finish is None and self._fault:
            raise InfrastructureError("engine", self._fault, retryable=False)
        return turn.result(turn.finish or FinishReason.ABORTED)

    async def _follow(self, turn: ArrivingTurn) -> None:
        """Take the tokens of a turn as they come, until it ends."""
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        request = turn.request
        stream = self.llm.generate(
            tokens_input(list(request.ids)),
            sampling_params(request, limit=turn.limit, eos_ids=self.eos_ids, seeds=self.settings.vllm.seeds),
            f"{request.trajectory}/{next(self._numbers)}",
            lora_request=self.adapter,
            data_parallel_rank=self._routes.rank(request.trajectory),
        )
        try:
            async with contextlib.aclosing(stream):
                async for output in stream:
                    completion = output.outputs[0]
                    if turn.take(completion.token_ids, completion.logprobs.logprobs, self._version):
                        return
                    if completion.finish_reason is not None:
                        raise InfrastructureError(
                            "engine",
                            f"vLLM ended the turn of {request.trajectory!r} after {len(turn.ids)} of {turn.limit} "
                            f"tokens: {completion.finish_reason}",
                        )
        except EngineDeadError as error:
            raise InfrastructureError("engine", self._obituary(), retryable=False) from error
        except EngineGenerateError as error:
            cause = error.__cause__
            raise InfrastructureError("engine", f"vLLM failed on {request.trajectory!r}: {cause!r}") from error
        except VLLMClientError as error:
            raise ValueError(f"vLLM refuses the request of trajectory {request.trajectory!r}: {error}") from error

    def partial(self, trajectory: str) -> tuple[int, ...]:
        """Ids that have come of the running turn of a trajectory, for display; empty when none runs."""
        running = self._running.get(trajectory)
        return () if running is None else tuple(running[1].ids)

    def release(self, trajectory: str) -> None:
        self._routes.forget(trajectory)
        if running := self._running.get(trajectory):
            running[0].cancel()

    def pin(self, trajectory: str, rank: int) -> None:
        """Have a trajectory played by that engine, of several."""
        self._routes.pin(trajectory, rank)

    def expect(self, trajectories: Iterable[str]) -> None:
        """Nothing to announce: batches are not in lockstep."""

    # --- weights, sleep ---

    async def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        await self.start()
        async with self.new_weights(version):
            files = written(weights, self._shapes)
            folder = await asyncio.to_thread(files.__enter__)
            try:
                await self.llm.collective_rpc("take_weights", args=(str(folder),))
            finally:
                await asyncio.to_thread(files.__exit__, None, None, None)

    @contextlib.asynccontextmanager
    async def new_weights(self, version: int) -> AsyncIterator[None]:
        """Inside the block nothing is sampled, and the workers may be given new weights by any means.

        Running turns wait; caches of the old weights are dropped. When the block ends well, all go on with `version`.
        When it raises, some weights may be new and some old: running turns fail, and so do new ones until a whole set
        arrives.
        """
        async with self._lock:
            try:
                async with asyncio.timeout(self.settings.vllm.weights_timeout_s):
                    await self._hold()
                    yield
                    await self.llm.update_weight_version(str(version))
                    self._version, self._fault = version, ""
                    await self._go_on()
            except BaseException as problem:
                late = isinstance(problem, TimeoutError)
                why = "it took longer than engine.vllm.weights_timeout_s" if late else str(problem)
                self._fault = f"loading weights of version {version} failed: {why}"
                for task, _ in self._running.values():
                    task.cancel()
                if not isinstance(problem, Exception):
                    raise
                raise InfrastructureError("engine", self._fault, retryable=False) from problem

    async def _hold(self) -> None:
        """Sample nothing, hold no cache, and have the memory of the weights."""
        if self._asleep:
            await self.llm.wake_up(tags=["weights"])
        else:
            # Its answer comes behind all outputs of the steps before, on the same socket: what has come by then was
            # sampled with the old weights, and nothing else was.
            await self.llm.pause_generation(mode="keep", clear_cache=True)

    async def _go_on(self) -> None:
        if self._asleep:
            await self.llm.wake_up(tags=["kv_cache"])
            self._asleep = False
        await self.llm.resume_generation()

    async def rest(self) -> None:
        """Nothing will be asked until new weights come. A colocated engine gives its memory up, if it can."""
        own = self.settings.vllm
        if own.placement != "colocated" or self._llm is None or not self._llm.model_config.enable_sleep_mode:
            return
        async with self._lock:
            if not self._asleep:
                await self._llm.sleep(level=own.sleep_level, mode="keep")
                self._asleep = True

    async def _wake(self) -> None:
        """Go on with the old weights."""
        async with self._lock:
            if not self._asleep:
                return
            if self.settings.vllm.sleep_level == 2:
                message = "the engine dropped its weights (engine.vllm.sleep_level = 2) and got no new ones since"
                raise InfrastructureError("engine", message, retryable=False)
            await self.llm.wake_up()
            self._asleep = False

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for task, _ in list(self._running.values()):
            task.cancel()
        if self._llm is not None:
            await asyncio.to_thread(self._llm.shutdown)

    def _obituary(self) -> str:
        self._fault = (
            "the process of the vLLM engine has died; what it wrote above says why (often lack of memory: lower "
            "engine.vllm.gpu_memory_utilization, engine.kv_budget_mb or engine.max_rows)"
        )
        return self._fault


async def _stopped(task: asyncio.Task[None]) -> None:
    """Cancel what still runs, and wait until it has given its request up."""
    task.cancel()
    await asyncio.wait({task})
