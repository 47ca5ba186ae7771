"""The documented examples inside TRL and verl, each in an environment of its own.

    python -m venv /tmp/trl && /tmp/trl/bin/pip install torch trl
    AGENT_RL_TRL_PYTHON=/tmp/trl/bin/python pytest tests/integration/test_algorithms_in_other_trainers.py

Likewise AGENT_RL_VERL_PYTHON for an environment with verl. Without the variable the test is skipped, or fails
when REQUIRE names `trl` or `verl`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


def example(marker: str) -> str:
    """The Python block of docs/algorithms.md that contains `marker`."""
    page = (ROOT / "docs" / "algorithms.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if marker in block]
    return code


def run_elsewhere(name: str, marker: str, folder: Path) -> dict:
    variable = f"AGENT_RL_{name.upper()}_PYTHON"
    python = os.environ.get(variable)
    if not python:
        reason = f"{variable} names no Python with {name} installed"
        if name in os.environ.get("REQUIRE", "").split(","):
            pytest.fail(f"REQUIRE names {name!r}, but {reason}", pytrace=False)
        pytest.skip(reason)
    snippet = folder / "snippet.py"
    snippet.write_text(example(marker))
    found = subprocess.run(
        [python, str(HERE / f"algorithms_in_{name}_script.py"), str(snippet)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.strip().splitlines()[-1])


def test_the_documented_trl_trainer_trains_and_agrees_with_trl(tmp_path) -> None:
    found = run_elsewhere("trl", "class OurTrainer", tmp_path)
    for name in ("grpo", "dapo", "gspo", "sapo", "dr_grpo"):
        assert found[name]["losses"] == 12, name
        assert found[name]["largest_gap"] < 1e-6, name
    ours = found["ctpo_cppo"]
    assert ours["steps"] == 6 and ours["finite"]
    # On a rollout's first update the ratios are 1; on its second the policy has moved.
    assert ours["clip_rate"][0] == 0.0 and max(ours["clip_rate"][1::2]) > 0.0


def test_the_documented_verl_losses_are_registered_and_agree_with_verl(tmp_path) -> None:
    found = run_elsewhere("verl", "register_policy_loss", tmp_path)
    for name in ("ctpo", "cppo", "ctpo_cppo"):
        assert found.pop(name) is True
    assert len(found) == 9
    assert max(found.values()) < 1e-8, found
