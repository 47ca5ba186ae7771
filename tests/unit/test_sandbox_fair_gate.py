"""The admission queue: bounded, fair over clients, exact in its books."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.admission import FairGate
from sandbox.errors import Overloaded, QueueTimeout


async def _enter(gate: FairGate, client: str, order: list[str], timeout_s: float = 5.0) -> None:
    await gate.enter("tenant", client, timeout_s)
    order.append(client)


async def test_a_newcomer_is_served_before_the_rest_of_a_greedy_client() -> None:
    gate, order = FairGate(1, 20), []
    await gate.enter("tenant", "holder", 1)
    greedy = [asyncio.ensure_future(_enter(gate, "greedy", order)) for _ in range(5)]
    await asyncio.sleep(0)
    newcomer = asyncio.ensure_future(_enter(gate, "newcomer", order))
    await asyncio.sleep(0)
    for _ in range(6):
        gate.leave(0.01)
        await asyncio.sleep(0)
    await asyncio.gather(*greedy, newcomer)
    assert order == ["greedy", "newcomer", "greedy", "greedy", "greedy", "greedy"]


async def test_a_tenant_gains_nothing_by_calling_itself_many_clients() -> None:
    gate, order = FairGate(1, 20), []
    await gate.enter("holder", "", 1)

    async def enter(tenant: str, client: str) -> None:
        await gate.enter(tenant, client, 5)
        order.append(tenant)

    tasks = [asyncio.ensure_future(enter("many", f"client {number}")) for number in range(4)]
    await asyncio.sleep(0)
    tasks += [asyncio.ensure_future(enter("one", "")) for _ in range(3)]
    await asyncio.sleep(0)
    for _ in range(7):
        gate.leave(0.01)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == ["many", "one", "many", "one", "many", "one", "many"]


async def test_a_client_with_nothing_queued_finds_a_place_in_a_queue_that_another_filled() -> None:
    gate, order = FairGate(1, 2), []
    await gate.enter("tenant", "holder", 1)
    waiting = [asyncio.ensure_future(_enter(gate, "greedy", order)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as refused:
        await gate.enter("tenant", "greedy", 1)
    assert refused.value.retry_after_s is not None and refused.value.retry_after_s > 0
    waiting.append(asyncio.ensure_future(_enter(gate, "other", order)))
    await asyncio.sleep(0)
    assert gate.waiting == 3
    for _ in range(3):
        gate.leave(0.01)
    await asyncio.gather(*waiting)
    assert order[1] == "other"


async def test_waiting_ends_with_queue_timeout_and_leaves_no_trace() -> None:
    gate = FairGate(1, 5)
    await gate.enter("tenant", "holder", 1)
    with pytest.raises(QueueTimeout):
        await gate.enter("tenant", "late", 0.02)
    assert gate.waiting == 0 and not gate._tenants
    gate.leave(0.01)
    assert gate.free == 1


async def test_a_permit_granted_to_a_caller_who_just_left_goes_to_the_next() -> None:
    gate = FairGate(1, 5)
    await gate.enter("tenant", "holder", 1)
    first = asyncio.ensure_future(gate.enter("tenant", "a", 5))
    second = asyncio.ensure_future(gate.enter("tenant", "b", 5))
    await asyncio.sleep(0)
    gate.leave(0.01)  # grants to a ...
    first.cancel()  # ... who is cancelled before it runs again
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.wait_for(second, 1)


@settings(deadline=None, max_examples=60)
@given(
    permits=st.integers(1, 3),
    capacity=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sampled_from(["enter", "leave", "cancel"]), st.integers(0, 3)), max_size=40),
)
def test_permits_are_neither_lost_nor_made(permits: int, capacity: int, steps: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        gate = FairGate(permits, capacity)
        tasks: list[asyncio.Task[None]] = []
        held = 0
        for action, number in steps:
            if action == "enter":
                tasks.append(asyncio.ensure_future(gate.enter(f"tenant {number % 2}", f"client {number}", 60)))
            elif action == "leave" and held:
                gate.leave(0.01)
                held -= 1
            elif action == "cancel" and tasks:
                tasks[number % len(tasks)].cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for task in [task for task in tasks if task.done()]:
                tasks.remove(task)
                if not task.cancelled() and task.exception() is None:
                    held += 1
            assert gate.free + held == permits
            assert gate.waiting == len(tasks) <= 2 * capacity
            assert gate.free == 0 or gate.waiting == 0
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert gate.waiting == 0 and not gate._tenants

    asyncio.run(scenario())
