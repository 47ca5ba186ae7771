"""Which trajectory has which slot of the KV block, within a budget of memory.

Running rows are kept near the front, so that a decode step reads one view of the block. Rows of trajectories
whose tool is running stay where they are, as holes, until holes cost more than moving them.
"""

from __future__ import annotations

from collections.abc import Collection

from agent_rl.engines.job import Job, longest
from agent_rl.engines.kv import KVBlock

_LENGTH_STEP = 32


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


class SlotTable:
    """Owner of the block's rows.

    Args:
        block: the storage.
        budget_tokens: most `rows * length` of the storage.
        max_length: longest context that is ever asked for.
    """

    def __init__(self, block: KVBlock, budget_tokens: int, max_length: int):
        self.block = block
        self.budget_tokens = budget_tokens
        self.evictions = 0
        self._max_length = _round_up(max_length, _LENGTH_STEP)
        self._slots: list[Job | None] = []
        self._by_name: dict[str, Job] = {}
        self._clock = 0

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def running(self) -> list[Job]:
        """Running jobs in the order of their slots."""
        return [job for job in self._slots if job is not None and job.running]

    def leading(self) -> list[Job | None]:
        """What lies in each slot, up to the last running one."""
        last = max((job.slot for job in self._by_name.values() if job.running), default=-1)
        return self._slots[: last + 1]

    def find(self, name: str) -> Job | None:
        """The job, running or idle, whose keys and values are held under this trajectory's name."""
        return self._by_name.get(name)

    def make_room(self, new: int, length: int, protected: Collection[str]) -> int:
        """Provide `new` more rows of `length` tokens; returns how many of them there is room for.

        Idle rows that are not `protected` are evicted, least recently used first. -1 says that a row in use has
        to go before `length` fits.
        """
        idle = sorted(
            (job for job in self._by_name.values() if not job.running and job.name not in protected),
            key=lambda job: job.used,
            reverse=True,
        )
        while not self._fit(len(self) + new, length):
            if idle:
                self.drop(idle.pop().name)
                self.evictions += 1
            elif new <= 0:
                return -1
            elif len(self) + new == 1:
                return 0
            else:
                new -= 1
        return new

    def place(self, job: Job) -> None:
        """Give the job a slot: that of its trajectory's earlier turn, with what both have in common, or a free
        one. `make_room` was called before."""
        earlier = self._by_name.get(job.name)
        if earlier is not None:
            common = _common_prefix(earlier.context[: earlier.cached], job.context)
            # The last token is always fed again: its logits are what the first new token is drawn from.
            job.cached, job.slot = min(common, len(job.context) - 1), earlier.slot
        else:
            job.cached, job.slot = 0, self._slots.index(None)
        self._slots[job.slot] = job
        self._by_name[job.name] = job
        job.running = True
        self._touch(job)

    def retire(self, job: Job, *, keep: bool) -> None:
        """The job runs no more; its keys and values stay if `keep`."""
        job.running = False
        job.scanner = None
        self._touch(job)
        if not keep:
            self.drop(job.name)

    def drop(self, name: str) -> None:
        """Free the trajectory's slot, if it has one."""
        job = self._by_name.pop(name, None)
        if job is not None:
            self._slots[job.slot] = None
            job.slot, job.cached, job.running = -1, 0, False

    def drop_all(self) -> list[Job]:
        """Free every slot; returns the jobs that were running, in the order of their slots."""
        running = self.running
        for name in list(self._by_name):
            self.drop(name)
        return running

    def compact(self, tolerance: int) -> None:
        """Move running rows to the front if more than `tolerance` slots before the last one do not run."""
        rows = self.leading()
        count = sum(job is not None and job.running for job in rows)
        if len(rows) - count <= tolerance:
            return
        holes = [slot for slot in range(count) if (job := rows[slot]) is None or not job.running]
        stray = [slot for slot in range(count, len(rows)) if (job := rows[slot]) is not None and job.running]
        for hole, slot in zip(holes, stray, strict=True):
            self._exchange(hole, slot)

    def _touch(self, job: Job) -> None:
        self._clock += 1
        job.used = self._clock

    def _exchange(self, a: int, b: int) -> None:
        first, second = self._slots[a], self._slots[b]
        if first is None and second is not None:
            self.block.copy(b, a, second.cached)
        elif second is None and first is not None:
            self.block.copy(a, b, first.cached)
        elif first is not None and second is not None:
            self.block.swap(a, b, max(first.cached, second.cached))
        self._slots[a], self._slots[b] = second, first
        for slot in (a, b):
            if (job := self._slots[slot]) is not None:
                job.slot = slot

    def _fit(self, rows: int, length: int) -> bool:
        """Give the block at least this size, if the budget allows; its contents stay."""
        length = max(length, longest(self._by_name.values()))
        have_rows, have_length = self.block.rows, self.block.length
        if rows <= have_rows and length <= have_length:
            return True
        more_rows = have_rows if rows <= have_rows else max(rows, 2 * have_rows)
        more_length = have_length
        if length > have_length:
            more_length = max(length, min(have_length * 3 // 2, self._max_length))
            more_length = _round_up(more_length, _LENGTH_STEP)
        # Room to grow first; then just what is needed, at the cost of spare rows or of spare length.
        exact = _round_up(length, _LENGTH_STEP)
        for candidate in (
            (more_rows, more_length),
            (rows, more_length),
            (more_rows, exact),
            (rows, exact),
            (rows, length),
        ):
            if candidate[0] * candidate[1] <= self.budget_tokens:
                self._resize(*candidate)
                return True
        return False

    def _resize(self, rows: int, length: int) -> None:
        free = [slot for slot in range(min(rows, len(self._slots))) if self._slots[slot] is None]
        for slot in range(rows, len(self._slots)):
            if self._slots[slot] is not None:
                self._exchange(free.pop(0), slot)
        self.block.resize(rows, length)
        self._slots = self._slots[:rows] + [None] * (rows - len(self._slots))


def _common_prefix(a: list[int], b: list[int]) -> int:
    if b[: len(a)] == a:
        return len(a)
    return next(i for i, pair in enumerate(zip(a, [*b, None], strict=False)) if pair[0] != pair[1])
