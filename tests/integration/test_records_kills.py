"""A recorder that is killed at any moment: what it said was recorded is there, and nothing is half there."""

from __future__ import annotations

import os
import random
import signal
import time

from agent_rl.records import summaries
from agent_rl.records.recorder import TrajectoryRecorder, read_records, shards
from tests.recordings import made_trajectory

KILLS = 50


def _record_for_ever(folder, acknowledged: int, first: int) -> None:
    """Append until killed; each name goes down the pipe once `append` has returned."""
    rng = random.Random(first)
    recorder = TrajectoryRecorder(folder, piece=lambda i: f"w{i}")
    number = first
    while True:
        names = [f"k{number + n}" for n in range(3)]
        recorder.append("train-000001", [made_trajectory(name, 0, 400, rng) for name in names], step=1)
        os.write(acknowledged, ("".join(f"{name}\n" for name in names)).encode())
        number += 3


def _killed_after(folder, seconds: float, first: int) -> list[str]:
    """Names that a forked recorder acknowledged before it was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            _record_for_ever(folder, writer, first)
        finally:
            os._exit(1)
    os.close(writer)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    with os.fdopen(reader) as said:
        return said.read().split()


def test_killed_fifty_times_it_loses_no_complete_record_and_reads_no_half_one(tmp_path):
    rng = random.Random(7)
    acknowledged: list[str] = []
    for kill in range(KILLS):
        acknowledged += _killed_after(tmp_path, rng.uniform(0.002, 0.12), 10_000 * kill)
        (path,) = shards(tmp_path) or [None]
        if path is None:
            continue
        found = [row["problem"]["id"] for row in read_records(path)]
        assert len(found) == len(set(found)) and len(found) % 3 == 0
        assert set(acknowledged) <= set(found)
        assert [row.problem for row in summaries(tmp_path)] == found
    assert len(acknowledged) > KILLS
