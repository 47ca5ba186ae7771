"""The slots of the KV block: what they hold survives moves, growth and eviction."""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_rl.engines.base import GenerationRequest
from agent_rl.engines.job import Job, longest
from agent_rl.engines.kv import KVBlock, LayerShape
from agent_rl.engines.slots import SlotTable

LAYERS = [LayerShape(2, 3, 3), LayerShape(1, 4, 5), LayerShape(2, 3, 3)]
BUDGET = 400


def _job(name: str, ids: list[int]) -> Job:
    loop = asyncio.new_event_loop()
    try:
        request = GenerationRequest(name, tuple(ids), 10, seed=0)
        return Job(request, loop.create_future(), loop, 10, None)
    finally:
        loop.close()


class Slots(RuleBasedStateMachine):
    """Random life of a table; every position of every slot is stamped with what belongs there."""

    @initialize()
    def make(self) -> None:
        self.block = KVBlock(LAYERS, torch.float32, torch.device("cpu"))
        self.table = SlotTable(self.block, BUDGET, 64)
        self.names = 0
        self.jobs: dict[str, Job] = {}

    def _stamp(self, job: Job, start: int) -> None:
        for index, tensors in enumerate(zip(self.block.keys, self.block.values, strict=True)):
            for side, tensor in enumerate(tensors):
                for position in range(start, len(job.context)):
                    tensor[job.slot, :, position] = hash((job.name, position)) % 1000 + index * 2 + side
        job.cached = len(job.context)

    def _start(self, job: Job) -> None:
        new = int(self.table.find(job.name) is None)
        room = self.table.make_room(new, len(job.context) + 1, {job.name})
        if room < new:
            # Only running rows can be in the way: everything else was evicted.
            assert all(other.running for other in self.jobs.values() if self.table.find(other.name) is other)
            return
        self.table.place(job)
        self.jobs[job.name] = job
        self._stamp(job, job.cached)

    @rule(size=st.integers(1, 30))
    def arrive(self, size: int) -> None:
        self.names += 1
        self._start(_job(f"t{self.names}", list(range(size))))

    @precondition(lambda self: any(not job.running for job in self.jobs.values()))
    @rule(data=st.data(), more=st.integers(1, 12))
    def resume(self, data: Any, more: int) -> None:
        idle = sorted(name for name, job in self.jobs.items() if not job.running)
        earlier = self.jobs[data.draw(st.sampled_from(idle))]
        kept = earlier.cached if self.table.find(earlier.name) is earlier else 0
        job = _job(earlier.name, [*earlier.context, *range(100, 100 + more)])
        self._start(job)
        if job.running:
            assert job.slot >= 0
        elif kept:
            assert self.table.find(earlier.name) in (earlier, None)

    @precondition(lambda self: any(job.running for job in self.jobs.values()))
    @rule(data=st.data(), keep=st.booleans())
    def pause(self, data: Any, keep: bool) -> None:
        job = data.draw(st.sampled_from(self.table.running))
        self.table.retire(job, keep=keep)
        assert (self.table.find(job.name) is job) is keep

    @rule(tolerance=st.integers(0, 2))
    def compact(self, tolerance: int) -> None:
        running = {job.name for job in self.table.running}
        self.table.compact(tolerance)
        assert {job.name for job in self.table.running} == running
        assert len(self.table.leading()) - len(running) <= tolerance

    @rule()
    def drop_all(self) -> None:
        running = self.table.running
        assert self.table.drop_all() == running
        assert len(self.table) == 0

    @invariant()
    def slots_hold_what_they_should(self) -> None:
        if not hasattr(self, "table"):
            return
        held = [job for job in self.jobs.values() if self.table.find(job.name) is job]
        assert len({job.slot for job in held}) == len(held) == len(self.table)
        assert self.block.rows * self.block.length <= BUDGET
        assert longest(held) <= self.block.length
        for job in held:
            for index, tensors in enumerate(zip(self.block.keys, self.block.values, strict=True)):
                for side, tensor in enumerate(tensors):
                    expected = torch.tensor(
                        [hash((job.name, p)) % 1000 + index * 2.0 + side for p in range(job.cached)]
                    )
                    assert torch.equal(
                        tensor[job.slot, :, : job.cached],
                        expected[None, :, None].expand_as(tensor[job.slot, :, : job.cached]),
                    )


Slots.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestSlots = Slots.TestCase


def test_bytes_of_a_token_count_every_layer_and_both_sides() -> None:
    block = KVBlock(LAYERS, torch.bfloat16, torch.device("cpu"))
    assert block.bytes_per_token == 2 * (2 * 3 * 2 + 1 * 4 + 1 * 5 + 2 * 3 * 2)


def test_the_least_recently_used_idle_row_goes_first() -> None:
    table = SlotTable(KVBlock(LAYERS, torch.float32, torch.device("cpu")), 3 * 32, 32)
    jobs = [_job(name, list(range(31))) for name in "abc"]
    assert table.make_room(3, 32, ()) == 3
    for job in jobs:
        table.place(job)
    for job in (jobs[1], jobs[0]):
        table.retire(job, keep=True)
    assert table.make_room(1, 32, ()) == 1
    assert [table.find(name) is not None for name in "abc"] == [True, False, True]
    assert table.make_room(2, 32, {"a"}) == 1
    assert table.find("a") is jobs[0]
    assert table.evictions == 1


def test_a_row_in_use_has_to_go_when_a_longer_context_does_not_fit() -> None:
    table = SlotTable(KVBlock(LAYERS, torch.float32, torch.device("cpu")), 100, 64)
    jobs = [_job(name, list(range(40))) for name in "ab"]
    assert table.make_room(2, 40, ()) == 2
    for job in jobs:
        table.place(job)
    assert table.make_room(0, 60, ()) == -1
    table.drop("b")
    assert table.make_room(0, 60, ()) == 0
    assert table.find("a") is jobs[0]
