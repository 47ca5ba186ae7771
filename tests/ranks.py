"""A test file run as several processes, one a rank of a process group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def said_by_ranks(file: str, ranks: int, folder: Path) -> list[Any]:
    """Run `python FILE RANK RANKS FOLDER` for each rank at once; the JSON of the last line that each printed."""
    processes = [
        subprocess.Popen(
            [sys.executable, file, str(rank), str(ranks), str(folder)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=280) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [json.loads(said.splitlines()[-1]) for said, _ in outputs]
