"""A process killed while it writes a checkpoint leaves one that loads: the new one or the one before."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EVENTS = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree")


def test_killed_before_each_file_operation_and_at_random_moments(tmp_path):
    """One process forks a saver per trial, kills it, and looks at what is left (see `main`)."""
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["wrong"] == []
    # The trials really cut through the writing: some found the old checkpoint, some the new one.
    assert result["old"] >= 10 and result["new"] >= 3 and result["killed"] >= 20


def main(directory: Path) -> None:
    import torch

    from agent_rl.learner.checkpoint import load, newest_complete, save
    from agent_rl.learner.settings import CheckpointSettings
    from agent_rl.learner.update import Learner
    from tests.learner_cases import recipe, settings, tiny_llama, uneven_batch

    prints = {"data": "d"}
    keep_one = CheckpointSettings(keep_last=1, keep_best=False)
    learner, reader = (Learner(tiny_llama(), recipe(), settings()) for _ in range(2))
    learner.train_on(uneven_batch([12] * 4), seed=0)
    states: dict[int, list[torch.Tensor]] = {}
    result = {"old": 0, "new": 0, "killed": 0, "wrong": []}

    def remember(step: int) -> None:
        states[step] = [tensor.clone() for _, tensor in learner.full_state()]

    def trial(folder: Path, kill_at: int | None, kill_after: float | None) -> bool:
        """Save step 2 over step 1 in a fork; returns whether the fork lived to its end."""
        child = os.fork()
        if child == 0:
            if kill_at is not None:
                remaining = [kill_at]

                def count(event: str, _: tuple) -> None:
                    if event in EVENTS:
                        if remaining[0] == 0:
                            os.kill(os.getpid(), signal.SIGKILL)
                        remaining[0] -= 1

                sys.addaudithook(count)
            try:
                save(folder, 2, learner, None, {"at": 2}, fingerprints=prints, retention=keep_one)
            finally:
                os._exit(0)
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(child, signal.SIGKILL)
        return os.WIFEXITED(os.waitpid(child, 0)[1])

    def look(folder: Path, what: str) -> None:
        path, _ = newest_complete(folder)
        if path is None:
            result["wrong"].append(f"{what}: nothing left")
            return
        restored = load(path, reader, prints)
        same = all(torch.equal(a, b) for (_, a), b in zip(reader.full_state(), states[restored.step], strict=True))
        if not same or restored.progress != {"at": restored.step}:
            result["wrong"].append(f"{what}: step {restored.step} has other contents")
        result["old" if restored.step == 1 else "new"] += 1

    remember(1)
    first = directory / "first"
    save(first, 1, learner, None, {"at": 1}, fingerprints=prints)
    learner.train_on(uneven_batch([12] * 4, seed=1), seed=1)
    remember(2)

    def fresh(name: str) -> Path:
        folder = directory / name
        subprocess.run(["cp", "-r", str(first), str(folder)], check=True)
        return folder

    started = time.perf_counter()
    trial(fresh("whole"), None, None)
    duration = time.perf_counter() - started
    at, finished = 0, False
    while not finished:
        folder = fresh(f"at-{at}")
        finished = trial(folder, at, None)
        result["killed"] += not finished
        look(folder, f"killed at operation {at}")
        at += 1
    moments = random.Random(7)
    for number in range(15):
        folder = fresh(f"after-{number}")
        result["killed"] += not trial(folder, None, moments.uniform(0, 1.2 * duration))
        look(folder, f"killed at random moment {number}")
    # A later save in the same folder clears what the killed ones left.
    save(folder, 3, learner, None, {"at": 3}, fingerprints=prints, retention=keep_one)
    left = [path.name for path in folder.iterdir()]
    if left != ["step-00000003"]:
        result["wrong"].append(f"left behind: {left}")
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
