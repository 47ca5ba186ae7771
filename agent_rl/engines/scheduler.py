"""The worker's loop: take commands, admit, prefill, decode one token in every row, hand out what is finished."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from agent_rl.engines.admission import Admission
from agent_rl.engines.forward import Runner
from agent_rl.engines.job import Job, longest
from agent_rl.engines.mailbox import Mailbox
from agent_rl.engines.outbox import Outbox
from agent_rl.engines.sampling import draw_mixed, sum_type
from agent_rl.engines.slots import SlotTable
from agent_rl.engines.uniform import uniform
from agent_rl.types import FinishReason, InfrastructureError

logger = logging.getLogger(__name__)

_PLAIN, _FENCE, _EOS = 0, 1, 2
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
_PREFILL_CELLS = 1 << 26
"""Most entries of a prefill's attention mask."""


class Scheduler:
    """Everything that happens in the worker thread. No method may be called from another one, save through the mailbox.

    Args:
        runner: the model over the slots.
        table: the slots.
        admission: when a request starts.
        text: piece of text of a token id.
        eos_ids: ids that end a turn.
        max_rows: most rows decoded together.
        prefill_tokens: most tokens of one prefill, padding included.
        keep_cache: whether idle trajectories keep their slots.
    """

    def __init__(
        self,
        runner: Runner,
        table: SlotTable,
        admission: Admission,
        *,
        text: Callable[[int], str],
        eos_ids: Iterable[int],
        max_rows: int,
        prefill_tokens: int,
        keep_cache: bool,
        version: int,
    ):
        self.mailbox = Mailbox()
        self.version = version
        self.counters = dict.fromkeys(
            ("sampled_tokens", "prefill_tokens", "prefills", "decode_steps", "decode_rows", "preemptions"), 0
        )
        self.jobs: dict[str, Job] = {}
        """Unfinished jobs by trajectory, waiting and running."""
        self._runner, self._table, self._admission = runner, table, admission
        self._text = text
        self._kinds: dict[int, int] = dict.fromkeys(eos_ids, _EOS)
        self._max_rows, self._prefill_tokens, self._keep_cache = max_rows, prefill_tokens, keep_cache
        self._again: list[Job] = []
        """Jobs that ran and lost their slot (new weights, no memory): they go before all others."""
        self._released: list[str] = []
        """Trajectories whose slots are to be freed as soon as admission permits."""
        self._outbox = Outbox()
        self._next_deadline = math.inf
        self._poisoned = False
        """NaN was computed, and may stand in the block."""
        self._retry = False
        """Something was put back although nothing runs that could make room."""
        self._stopping = False
        self._fault = ""
        """What broke the worker, for good."""
        self._weights_fault = ""
        """Why there are no usable weights."""

    @property
    def evictions(self) -> int:
        """Idle caches that were dropped for lack of memory."""
        return self._table.evictions

    # --- commands ---

    def submit(self, job: Job) -> None:
        """Queue a request."""
        fault = self._fault or self._weights_fault
        if not fault and job.name in self.jobs:
            fault = f"trajectory {job.name!r} has a turn running already"
        if fault:
            self._outbox.add(job, InfrastructureError("engine", fault, retryable=False))
            return
        self.jobs[job.name] = job
        self._admission.add(job)
        if job.request.deadline is not None:
            self._next_deadline = min(self._next_deadline, job.request.deadline)

    def cancel(self, job: Job) -> None:
        """Nobody waits for this job any more."""
        if self.jobs.get(job.name) is job:
            self._withdraw(job, FinishReason.ABORTED)

    def release(self, name: str) -> None:
        """Forget a trajectory."""
        if name in self.jobs:
            self._withdraw(self.jobs[name], FinishReason.ABORTED)
        self._released.append(name)
        self._admission.release(name)

    def expect(self, names: Sequence[str]) -> None:
        """Announce trajectories."""
        self._admission.expect(names)

    def load(
        self, copy: Callable[[], None], version: int, answer: Callable[[InfrastructureError | None], None]
    ) -> None:
        """Change the weights. Keys and values of the old ones are dropped, and what runs is prefilled again."""
        if self._fault:
            answer(InfrastructureError("engine", self._fault, retryable=False))
            return
        self._again.extend(self._table.drop_all())
        try:
            copy()
        except Exception as problem:
            # Some weights may be new and some old: nothing may be sampled until a load succeeds.
            self._weights_fault = f"loading weights of version {version} failed: {problem}"
            self._fail_all(self._weights_fault)
            answer(InfrastructureError("engine", self._weights_fault, retryable=False))
            return
        self._weights_fault = ""
        self.version = version
        answer(None)

    def stop(self) -> None:
        """Leave the loop; what waits fails."""
        self._stopping = True

    # --- the loop ---

    def work(self) -> None:
        """Body of the worker thread. After an error of its own it answers all requests with that error, old and
        new, until it is stopped: nothing ever waits for an answer that cannot come."""
        while not self._stopping:
            try:
                self._run()
            except Exception as problem:
                logger.exception("the generation worker failed")
                self._fault = explain(problem)
                self._fail_all(self._fault)
                self._outbox.deliver()
        self._fault = self._fault or "the engine was closed"
        for command in self.mailbox.close():
            command()
        self._fail_all(self._fault)
        self._outbox.deliver()

    def _run(self) -> None:
        while not self._stopping:
            for command in self.mailbox.take(self._idle_time()):
                command()
            if (now := time.monotonic()) >= self._next_deadline:
                self._expire(now)
            if self._poisoned:
                self._again.extend(self._table.drop_all())
                self._table.block.clear()
                self._poisoned = False
            if (error := self._admission.overdue()) is not None:
                for job in self._admission.waiting():
                    self._admission.remove(job)
                    self._finish(job, error)
            self._admit()
            self._decode()
            self._outbox.deliver()

    def _idle_time(self) -> float | None:
        if self._retry or self._again or self._outbox or self._table.running:
            return 0.0
        wake = min(self._admission.next_check(), self._next_deadline)
        return None if wake == math.inf else max(0.0, wake - time.monotonic())

    def _admit(self) -> None:
        running = len(self._table.running)
        busy = running + len(self._again)
        if self._admission.may_free(busy):
            for name in self._released:
                self._table.drop(name)
            self._released.clear()
        jobs = self._again + self._admission.take(busy, self._max_rows - busy)
        self._again, self._retry = [], False
        if not jobs:
            return
        fitting = self._count_fitting(jobs)
        if fitting == 0 and running == 0:
            job = jobs.pop(0)
            self._finish(job, self._too_long(job))
            self._retry = True
        waiting = jobs[fitting:]
        self._again = [job for job in waiting if job.versions]
        self._admission.put_back([job for job in waiting if not job.versions])
        for job in jobs[:fitting]:
            self._table.place(job)
            job.note_version(self.version)
        self._prefill(jobs[:fitting])

    def _count_fitting(self, jobs: list[Job]) -> int:
        """For how many of the first jobs there is memory, and that memory provided."""
        count = len(jobs)
        while count:
            fresh = [self._table.find(job.name) is None for job in jobs[:count]]
            names = {job.name for job in jobs[:count]}
            room = self._table.make_room(sum(fresh), longest(jobs[:count]) + 1, names)
            if room >= sum(fresh):
                return count
            # As many as there is room for; if one is too long for any, it is found by halving.
            fewer = next(index for index in range(count) if sum(fresh[: index + 1]) > room)
            count = fewer or count // 2
        return 0

    def _prefill(self, jobs: list[Job]) -> None:
        """Compute the keys and values that the jobs' slots lack, and sample a token for each."""
        leaders: dict[tuple[int, ...], list[Job]] = {}
        alone: list[list[Job]] = []
        for job in jobs:
            # Samples of one problem start with the same prompt, which is computed once and copied.
            if job.cached == 0:
                leaders.setdefault(tuple(job.context), []).append(job)
            else:
                alone.append([job])
        groups = sorted([*leaders.values(), *alone], key=lambda g: len(g[0].context) - g[0].cached)
        start = 0
        while start < len(groups):
            stop = start + 1
            while stop < len(groups) and self._fits_prefill(groups[start : stop + 1]):
                stop += 1
            self._prefill_batch(groups[start:stop])
            start = stop

    def _fits_prefill(self, groups: list[list[Job]]) -> bool:
        width = max(len(group[0].context) - group[0].cached for group in groups)
        cells = len(groups) * width
        return cells <= self._prefill_tokens and cells * longest(group[0] for group in groups) <= _PREFILL_CELLS

    def _prefill_batch(self, groups: list[list[Job]]) -> None:
        leaders = [group[0] for group in groups]
        self.counters["prefills"] += 1
        self.counters["prefill_tokens"] += sum(len(job.context) - job.cached for job in leaders)
        logits = self._runner.prefill(
            [job.slot for job in leaders],
            [job.cached for job in leaders],
            [job.context[job.cached :] for job in leaders],
        )
        for leader, *others in groups:
            for job in others:
                self._table.block.copy(leader.slot, job.slot, len(job.context))
        jobs = [job for group in groups for job in group]
        if len(jobs) > len(groups):
            index = torch.tensor([i for i, group in enumerate(groups) for _ in group], device=logits.device)
            logits = logits.index_select(0, index)
        self._sample(jobs, logits)

    def _decode(self) -> None:
        running = self._table.running
        if not running:
            return
        while running and self._table.make_room(0, longest(running), ()) < 0:
            # Youngest first: it loses least, and is prefilled again when there is room.
            if len(running) == 1:
                self._finish(running[0], self._too_long(running[0]))
            else:
                youngest = max(running, key=lambda job: job.used)
                self._table.drop(youngest.name)
                self._again.append(youngest)
                self.counters["preemptions"] += 1
            running = self._table.running
        self._table.compact(max(2, len(running) // 8))
        rows = self._table.leading()
        running = [job for job in rows if job is not None and job.running]
        if not running:
            return
        self.counters["decode_steps"] += 1
        self.counters["decode_rows"] += len(rows)
        # An idle row is fed token 0 behind its end, where nothing reads it and its next token overwrites it.
        logits = self._runner.decode(
            [job.context[-1] if job is not None and job.running else 0 for job in rows],
            [job.cached if job is not None else 0 for job in rows],
            longest(running),
        )
        if len(running) < len(rows):
            index = torch.tensor([job.slot for job in running], device=logits.device)
            logits = logits.index_select(0, index)
        self._sample(running, logits)

    def _sample(self, jobs: list[Job], logits: Tensor) -> None:
        """Append a token to each job and finish those that end with it."""
        starts = np.array([job.stream for job in jobs], dtype=np.uint64)
        counts = np.array([len(job.logprobs) for job in jobs], dtype=np.uint64)
        draws = torch.from_numpy(uniform(starts, counts)[:, None]).to(sum_type(logits.device)).to(logits.device)
        with torch.inference_mode():
            ids, logprobs = draw_mixed(logits, [job.request.sampling for job in jobs], draws)
        # The one place of a step where the host waits for the device.
        tokens, chances = ids.tolist(), logprobs.tolist()
        if not math.isfinite(sum(chances)):
            jobs, tokens, chances = self._drop_non_finite(jobs, tokens, chances)
        self.counters["sampled_tokens"] += len(jobs)
        kinds, text = self._kinds, self._text
        for job, token, chance in zip(jobs, tokens, chances, strict=True):
            job.cached = len(job.context)
            job.context.append(token)
            job.logprobs.append(chance)
            kind = kinds.get(token)
            if kind is None:
                kind = kinds[token] = _FENCE if "`" in text(token) else _PLAIN
            if kind == _EOS:
                self._finish(job, FinishReason.EOS)
            elif kind == _FENCE and job.scanner is not None and job.closes_fence(text):
                self._finish(job, FinishReason.FENCE)
            elif len(job.logprobs) >= job.limit:
                self._finish(job, FinishReason.LENGTH)

    # --- endings ---

    def _finish(self, job: Job, outcome: FinishReason | InfrastructureError) -> None:
        job.finished = True
        self.jobs.pop(job.name, None)
        if job.slot >= 0:
            self._table.retire(job, keep=self._keep_cache and not isinstance(outcome, InfrastructureError))
        if isinstance(outcome, FinishReason):
            self._outbox.add(job, job.result(outcome))
        else:
            self._outbox.add(job, outcome)

    def _withdraw(self, job: Job, reason: FinishReason | InfrastructureError) -> None:
        if job in self._again:
            self._again.remove(job)
        elif not job.running:
            self._admission.remove(job)
        self._finish(job, reason)

    def _expire(self, now: float) -> None:
        self._next_deadline = math.inf
        for job in list(self.jobs.values()):
            deadline = job.request.deadline
            if deadline is None:
                continue
            if deadline <= now:
                self._withdraw(job, FinishReason.ABORTED)
            else:
                self._next_deadline = min(self._next_deadline, deadline)

    def _fail_all(self, message: str) -> None:
        """Answer everything that is unfinished with an error, and hold nothing more."""
        for job in self._admission.waiting():
            self._admission.remove(job)
        self._again = []
        self._table.drop_all()
        for job in list(self.jobs.values()):
            self._finish(job, InfrastructureError("engine", message, retryable=False))

    def _drop_non_finite(
        self, jobs: list[Job], tokens: list[int], chances: list[float]
    ) -> tuple[list[Job], list[int], list[float]]:
        """Fail the rows whose logits are NaN or infinite; their keys may be, too, so that no cache is kept."""
        self._poisoned = True
        good = []
        for job, token, chance in zip(jobs, tokens, chances, strict=True):
            if math.isfinite(chance):
                good.append((job, token, chance))
                continue
            message = (
                f"the model's logits are not finite for trajectory {job.name!r} (weight version {self.version}): "
                "the weights have diverged; lower the learning rate or the gradient clip, or go back to a checkpoint"
            )
            self._finish(job, InfrastructureError("engine", message, retryable=False))
        return [g[0] for g in good], [g[1] for g in good], [g[2] for g in good]

    def _too_long(self, job: Job) -> InfrastructureError:
        have = self._table.budget_tokens
        return InfrastructureError(
            "engine",
            f"trajectory {job.name!r} has {len(job.context)} tokens and the KV cache has memory for {have}: "
            "raise engine.kv_budget_mb or lower the trajectory's token cap",
            retryable=False,
        )


def explain(problem: Exception) -> str:
    """What to tell of an error in the worker; for lack of memory, what to turn down."""
    text = f"{type(problem).__name__}: {problem}"
    if isinstance(problem, MemoryError) or any(mark in str(problem).lower() for mark in _NO_MEMORY):
        return (
            "out of memory while generating; turn down engine.kv_budget_mb, engine.max_rows or "
            f"engine.prefill_tokens ({text})"
        )
    return f"the generation worker failed: {text}"
