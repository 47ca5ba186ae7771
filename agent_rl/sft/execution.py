"""Outcomes of generated programs, all run in one child process.

Only for programs that this package wrote itself: the child is a plain interpreter, no sandbox. Programs of a
model go to the sandbox.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from agent_rl.types import ToolOutcome, ToolStatus

_WORKER = Path(__file__).with_name("worker.py")


def run_own_programs(programs: Sequence[str], *, deadline_s: float) -> dict[str, ToolOutcome]:
    """Run each program in a fresh namespace; what it printed and how it ended, by source text.

    Raises:
        RuntimeError: the child failed or did not end in time.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(_WORKER)],
            input=json.dumps(list(programs)).encode(),
            capture_output=True,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{len(programs)} generated programs did not end within {deadline_s:g} s") from error
    if done.returncode != 0:
        raise RuntimeError(f"the child that runs generated programs failed: {done.stderr.decode(errors='replace')}")
    return {
        program: ToolOutcome(ToolStatus(status), stdout, stderr, exit_code=int(status != ToolStatus.OK))
        for program, (status, stdout, stderr) in zip(programs, json.loads(done.stdout), strict=True)
    }
