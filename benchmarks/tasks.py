"""Reading problems: rows a second by file form, against reading the bare file; and ordering an epoch.

    python benchmarks/tasks.py [--rows 20000]

Prints one JSON object. Ratios are within this run: `over_json` is the time of `load_problems` divided by that of
parsing the same lines with the standard `json` module alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agent_rl.tasks.load import load_problems
from agent_rl.tasks.settings import DataSettings
from agent_rl.tasks.stream import ProblemStream


def seconds(work: Callable[[], object], repeat: int = 3) -> float:
    """Best wall time of several runs."""
    best = float("inf")
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        data = [
            {"prompt": [{"role": "user", "content": f"What is {i} plus {i % 97}? " + "Explain the steps. " * 15}],
             "reward_model": {"ground_truth": str(i + i % 97), "style": "rule"}, "data_source": "made"}
            for i in range(rows)
        ]  # fmt: skip
        lines, columns = Path(folder) / "data.jsonl", Path(folder) / "data.parquet"
        lines.write_text("".join(json.dumps(r) + "\n" for r in data))
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        parquet.write_table(arrow.Table.from_pylist(data), columns)
        bare = seconds(lambda: [json.loads(line) for line in lines.open("rb")])
        of_lines = seconds(lambda: load_problems(DataSettings(path=str(lines))))
        of_columns = seconds(lambda: load_problems(DataSettings(path=str(columns))))
        problems = load_problems(DataSettings(path=str(lines)))
        epoch = seconds(lambda: problems.order(0, 1))
        stream = ProblemStream(problems, 32, 0)
        batches = seconds(lambda: [stream.next_batch() for _ in range(100)], 1)
    print(
        json.dumps(
            {
                "rows": rows,
                "jsonl_rows_per_second": round(rows / of_lines),
                "parquet_rows_per_second": round(rows / of_columns),
                "over_json": round(of_lines / bare, 2),
                "order_of_an_epoch_seconds": round(epoch, 4),
                "batch_of_32_microseconds": round(1e6 * batches / 100, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
