"""The embedded engine: any Hugging Face causal language model, batched continuously in one worker thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from agent_rl.engines.admission import Continuous, Lockstep
from agent_rl.engines.base import Generation, GenerationRequest
from agent_rl.engines.forward import Runner, probe_layers, text_config
from agent_rl.engines.job import Job, Scanner
from agent_rl.engines.kv import KVBlock
from agent_rl.engines.mailbox import Command
from agent_rl.engines.pieces import TokenPieces
from agent_rl.engines.requests import check_request
from agent_rl.engines.scheduler import Scheduler
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.slots import SlotTable
from agent_rl.engines.weights import copy_weights
from agent_rl.types import InfrastructureError

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "alloc failed")


class TransformersEngine:
    """Generates with a Hugging Face causal language model in this process (see `Engine` for the contract).

    Draws depend on (request seed, token index) alone, never on the batch. Without `deterministic` the batch's
    shape still moves logits by rounding errors; with it reruns are equal bit for bit on the same machine and
    number of threads, unless a request is cancelled or passes its deadline.

    Args:
        model: the module; put into evaluation mode. The engine owns it, unless `share`.
        tokenizer: its tokenizer, for the text of tokens and for the end-of-sequence id.
        settings: memory, batch and lockstep settings; `dtype`, `device` and `kind` are for those who load the model.
        scanner: makes the fence scanner of a turn; needed if a request sets `stop_at_fence`.
        eos_ids: ids that end a turn; by default the tokenizer's and those of the model's generation config.
        share: the module is the learner's own. `load_weights` then copies nothing: it drops the caches and takes
            the new version. The learner must not update while a generation runs.
        version: version of the weights that the model has now.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        settings: EngineSettings | None = None,
        scanner: Callable[[], Scanner] | None = None,
        eos_ids: Iterable[int] | None = None,
        share: bool = False,
        version: int = 0,
    ):
        self.settings = settings or EngineSettings()
        self.model = model.eval()
        self.eos_ids = frozenset(eos_ids) if eos_ids is not None else default_eos_ids(model, tokenizer)
        config = text_config(model)
        positions = getattr(config, "max_position_embeddings", None) or 1 << 20
        self.max_length = min(self.settings.max_length or positions, positions)
        self._vocabulary = config.vocab_size
        self._scanner, self._share = scanner, share
        parameter = next(model.parameters())
        block = KVBlock(probe_layers(model), parameter.dtype, parameter.device)
        budget = (self.settings.kv_budget_mb << 20) // block.bytes_per_token
        self._scheduler = Scheduler(
            Runner(model, block, shared=share),
            SlotTable(block, budget, self.max_length),
            Lockstep(self.settings.lockstep_timeout_s)
            if self.settings.deterministic
            else Continuous(self.settings.admit_after_steps),
            text=TokenPieces(tokenizer).__getitem__,
            eos_ids=self.eos_ids,
            max_rows=self.settings.max_rows,
            prefill_tokens=self.settings.prefill_tokens,
            keep_cache=self.settings.keep_cache,
            version=version,
        )
        self._post = self._scheduler.mailbox.post
        self._pending = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def weight_version(self) -> int:
        return self._scheduler.version

    @property
    def counters(self) -> dict[str, int]:
        """What was done since the start: sampled_tokens, prefill_tokens (computed anew, padding left out), prefills,
        decode_steps, decode_rows (over all steps, idle rows included), evictions of idle caches, preemptions of
        running rows for lack of memory."""
        return {**self._scheduler.counters, "evictions": self._scheduler.evictions}

    async def start(self) -> None:
        if self._closed:
            raise InfrastructureError("engine", "the engine was closed", retryable=False)
        if self._thread is None:
            self._thread = threading.Thread(target=self._scheduler.work, name="generation", daemon=True)
            self._thread.start()

    async def generate(self, request: GenerationRequest) -> Generation:
        await self.start()
        job = self._job(request)
        if self._pending >= self.settings.max_waiting:
            raise InfrastructureError("engine", f"{self._pending} requests are queued (engine.max_waiting)")
        self._pending += 1
        try:
            self._demand(lambda: self._scheduler.submit(job))
            return await job.future
        except asyncio.CancelledError:
            self._post(lambda: self._scheduler.cancel(job))
            raise
        finally:
            self._pending -= 1

    def partial(self, trajectory: str) -> tuple[int, ...]:
        """Ids sampled so far in the running turn of a trajectory, for display; empty when none runs."""
        # Read from another thread: lists only grow at the end, so that a slice is whole.
        job = self._scheduler.jobs.get(trajectory)
        return () if job is None else tuple(job.context[len(job.request.ids) :])

    def release(self, trajectory: str) -> None:
        self._post(lambda: self._scheduler.release(trajectory))

    def expect(self, trajectories: Iterable[str]) -> None:
        names = list(trajectories)
        self._post(lambda: self._scheduler.expect(names))

    async def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        await self.start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def copy() -> None:
            if not self._share:
                copy_weights(self.model, weights)

        def answer(error: InfrastructureError | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, done, error)

        self._demand(lambda: self._scheduler.load(copy, version, answer))
        await done

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._post(self._scheduler.stop)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _demand(self, command: Command) -> None:
        """Post a command that someone will wait for."""
        if not self._post(command):
            raise InfrastructureError("engine", "the engine was closed", retryable=False)

    def _job(self, request: GenerationRequest) -> Job:
        """Check the request; a bad one is the caller's mistake and must not reach the batch."""
        check_request(
            request,
            vocabulary=self._vocabulary,
            max_length=self.max_length,
            can_stop_at_fence=self._scanner is not None,
        )
        loop = asyncio.get_running_loop()
        return Job(
            request=request,
            future=loop.create_future(),
            loop=loop,
            limit=min(request.max_new_tokens, self.max_length - len(request.ids)),
            scanner=self._scanner() if request.stop_at_fence and self._scanner else None,
        )


def default_eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """End-of-sequence ids of the tokenizer and of the model's generation config."""
    generation = getattr(model, "generation_config", None)
    found = getattr(generation, "eos_token_id", None)
    ids = {found} if isinstance(found, int) else set(found or ())
    if getattr(tokenizer, "eos_token_id", None) is not None:
        ids.add(tokenizer.eos_token_id)
    return frozenset(ids)


def _settle(done: asyncio.Future[None], error: InfrastructureError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
