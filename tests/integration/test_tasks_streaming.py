"""A file much larger than its problems is read without being held in memory."""

from __future__ import annotations

import json
import tracemalloc

from agent_rl.tasks.load import load_problems
from agent_rl.tasks.settings import DataSettings


def test_memory_follows_the_problems_and_not_the_file(tmp_path):
    file = tmp_path / "fat.jsonl"
    with file.open("w") as out:
        for i in range(400):
            out.write(json.dumps({"question": f"{i}+1?", "answer": str(i + 1), "trace": "x" * 50_000}) + "\n")
    tracemalloc.start()
    try:
        problems = load_problems(DataSettings(path=str(file)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(problems) == 400
    assert peak < file.stat().st_size / 8


def test_limit_stops_reading(tmp_path):
    file = tmp_path / "long.jsonl"
    file.write_text("".join(json.dumps({"question": f"{i}?", "answer": "1"}) + "\n" for i in range(50)) + "{torn\n")
    problems = load_problems(DataSettings(path=str(file), limit=50))
    assert len(problems) == 50 and problems.bad_rows == ()
