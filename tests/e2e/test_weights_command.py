"""What a run leaves of its hand-overs, and how it ends when one fails."""

from __future__ import annotations

import json
from pathlib import Path

from agent_rl.weights.proof import SyncLog
from tests.e2e.test_train_command import SMALL, rows, train


def test_a_run_records_a_proof_before_the_first_step_and_after_each(tmp_path: Path) -> None:
    done = train(tmp_path, "configs/quickstart.yaml", *SMALL, "steps=2", "evals={}", "name=proved")
    assert done.returncode == 0, done.stderr + done.stdout
    proofs = SyncLog(tmp_path / "proved").read()
    assert [proof.version for proof in proofs] == [0, 1, 2]
    assert all(proof.ok and proof.engines[0].total == proof.total for proof in proofs)
    assert [proof.changed for proof in proofs] == [38, 38, 38]
    steps = [row for row in rows(tmp_path / "proved") if "time/step" in row]
    assert [row["sync/version"] for row in steps] == [1.0, 2.0]
    assert all(row["sync/checksum_ok"] == 1.0 and 0 <= row["sync/gap"] < 1e-4 for row in steps)
    assert all(0 < row["time/sync_proof"] < row["time/sync"] < row["time/step"] for row in steps)


def test_a_run_stops_with_a_plain_message_when_the_proof_fails(tmp_path: Path) -> None:
    done = train(tmp_path, "configs/quickstart.yaml", *SMALL, "steps=2", "name=stopped", "sync.canary_limit=1e-12")
    assert done.returncode == 1
    assert "engine transformers: canary: log-probs of" in done.stderr
    assert "the limit is 1e-12" in done.stderr
    assert "Traceback" not in done.stderr
    (line,) = (tmp_path / "stopped" / "sync.jsonl").read_text().splitlines()
    assert json.loads(line)["engines"][0]["faults"][0].startswith("canary: ")
