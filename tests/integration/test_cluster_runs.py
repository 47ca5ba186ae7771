"""The quickstart through Ray on two local nodes with two gloo ranks: it learns the same, and survives being killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch

from agent_rl.config import ConfigError, load
from agent_rl.records.schema import Record
from agent_rl.records.shards import read_records
from agent_rl.training import entry
from agent_rl.training.progress import Display
from agent_rl.training.settings import RunConfig

ROOT = Path(__file__).parents[2]
SMALL = [
    "problems_per_step=8", "samples_per_problem=4", "learner.updates_per_batch=2", "data.count=256", "evals={}",
    "tir.max_turns=2", "threads=1", "sandbox.slots=1", "sandbox.backend=bwrap", "learner.checkpoint.every=1",
    "cluster.kind=ray", "cluster.rollout_actors=2", "cluster.learner_ranks=2",
    "trackers.tensorboard=false",
]  # fmt: skip
ROUNDS = int(os.environ.get("AGENT_RL_KILLS", "1"))
"""How often each part is killed."""
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("requires_bwrap")]


class Said(Display):
    """Keeps what a person would have read."""

    def __init__(self):
        super().__init__()
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def error(self, text: str) -> None:
        self.lines.append(f"error: {text}")

    def __str__(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture(scope="module")
def cluster(requires_ray):
    """A head node with room for everything, and a second node."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ["OMP_NUM_THREADS"] = "1"
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "object_store_memory": 150 << 20})
    found.add_node(num_cpus=2, object_store_memory=150 << 20)
    found.wait_for_nodes()
    yield found
    found.shutdown()


def config(cluster, folder: Path, *overrides: str) -> RunConfig:
    given = [*SMALL, f"runs_dir={folder}", f"cluster.address={cluster.address}", *overrides]
    return load(ROOT / "configs/quickstart.yaml", given, model=RunConfig)


def rows(run: Path) -> list[dict]:
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def trained(run: Path) -> list[Record]:
    paths = sorted((run / "trajectories").glob("train-*.zst"))
    return [Record.model_validate(row) for path in paths for row in read_records(path)]


def test_two_nodes_and_two_ranks_learn_what_one_process_learns(cluster, tmp_path):
    from agent_rl.engines.loading import load_model
    from agent_rl.learner.batch import batch_from
    from agent_rl.tir.episode import stream_seed
    from agent_rl.training.metrics import learner_metrics
    from agent_rl.training.parts import make_learner

    settings, said = config(cluster, tmp_path, "steps=2", "cluster.spread=spread", "name=run"), Said()
    assert entry.train(settings, None, said) == entry.DONE, said
    run = tmp_path / "run"
    assert "2 rollout actors and 2 learner ranks; sandbox: our own service, bwrap" in str(said)
    steps = [row for row in rows(run) if "time/step" in row]
    assert [row["step"] for row in steps] == [1, 2] and all(row["sync/checksum_ok"] == 1.0 for row in steps)
    proofs = [json.loads(line) for line in (run / "sync.jsonl").read_text().splitlines()]
    assert [proof["version"] for proof in proofs] == [0, 1, 2] and all(len(p["engines"]) == 2 for p in proofs)

    first = [record for record in trained(run) if record.step == 1 and not record.filters]
    batch = batch_from([(record.trajectory(), record.advantage) for record in first])
    model, _ = load_model(settings.model.path, dtype="float32", device="cpu")
    alone = make_learner(settings, model)
    reports = alone.train_on(batch, stream_seed(str(settings.seed), "minibatches", 1, 0))
    expected = learner_metrics(reports)
    for name in ("learner/loss", "learner/grad_norm", "learner/model_tokens", "policy/clip_rate", "policy/mask_rate"):
        assert steps[0][name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    from safetensors.torch import load_file

    (file,) = (run / "checkpoints" / "step-00000001" / "model").glob("*.safetensors")
    there, before = (
        load_file(file),
        dict(load_model(settings.model.path, dtype="float32", device="cpu")[0].state_dict()),
    )
    for name, tensor in alone.full_state():
        moved = (tensor - before[name]).abs().max()
        assert moved > 0 or tensor.numel() < 2, name
        torch.testing.assert_close(there[name], tensor, atol=2e-5, rtol=0, msg=lambda text, n=name: f"{n}: {text}")


def processes(title: str) -> list[psutil.Process]:
    """Worker processes of that title, of the cluster that this process started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(part.startswith(title) for part in process.cmdline()):
                found.append(process)
    return found


class Killer(threading.Thread):
    """Ends one part after the other at random moments, each two steps after the run has got over the one before; then
    asks the run to stop."""

    def __init__(self, run: Path, said: Said, cluster, victims: list[str], rng: random.Random):
        super().__init__(daemon=True)
        self.run_folder, self.said, self.cluster, self.victims, self.rng = run, said, cluster, victims, rng
        self.killed: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        for victim in self.victims:
            self._wait_for_steps(2)
            self.over.wait(self.rng.uniform(0.0, 2.0))
            while not self.over.is_set() and not self._kill(victim):
                self.over.wait(0.1)
            if self.over.is_set():
                return
            self.killed.append(victim)
            if victim == "RolloutActor":
                back = str(self.said).count("is back")
                while not self.over.is_set() and str(self.said).count("is back") == back:
                    self.over.wait(0.1)
        self._wait_for_steps(2)
        if not self.over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    def _wait_for_steps(self, count: int) -> None:
        """Until the run has finished so many steps more than it has now."""
        wanted = self._step() + count
        while not self.over.is_set() and self._step() < wanted:
            self.over.wait(0.05)

    def _step(self) -> int:
        return max((row["step"] for row in rows(self.run_folder)), default=0)

    def _kill(self, victim: str) -> bool:
        if victim == "node":
            other = next(iter(self.cluster.worker_nodes))
            self.cluster.remove_node(other, allow_graceful=False)
            return True
        if victim == "sandbox":
            candidates = [
                child
                for actor in processes("ray::RolloutActor")
                for child in actor.children()
                if "sandbox" in " ".join(child.cmdline())
            ]
        else:
            candidates = processes(f"ray::{victim}")
        if not candidates:
            return False
        self.rng.choice(candidates).send_signal(signal.SIGKILL)
        return True


def test_a_run_survives_the_loss_of_each_of_its_parts_at_random_moments(cluster, tmp_path):
    rng = random.Random(os.environ.get("AGENT_RL_KILL_SEED", "11"))
    victims = ["RolloutActor", "sandbox", "RankActor"] * ROUNDS + ["node"]
    settings = config(
        cluster, tmp_path, "name=run", "steps=2000", "mode=async", "cluster.spread=spread", "data.count=4096",
        "recovery.wait_s=0.5", "records.level=tokens", "rollout.max_failed_share=0.9",
    )  # fmt: skip
    run, said = tmp_path / "run", Said()
    killer = Killer(run, said, cluster, victims, rng)
    killer.start()
    try:
        status = entry.train(settings, None, said)
    finally:
        killer.over.set()
    assert status == entry.INTERRUPTED, said
    assert killer.killed == victims, said
    assert "was lost; its attempts are played anew, and it is started again" in str(said)
    assert "going on from the last checkpoint" in str(said)
    assert "finished trajectories that were not trained on are restored" in str(said)
    metrics = [row for row in rows(run) if "time/step" in row]
    steps = len(metrics)
    assert [row["step"] for row in metrics] == list(range(1, steps + 1))
    assert all(row["staleness/max"] <= 2 for row in metrics)
    assert metrics[-1]["async/trained"] == 8 * (steps - 1)
    seen = Counter((record.problem.id, record.sample) for record in trained(run))
    assert set(seen.values()) == {1}, "a trajectory was used twice"
    assert len(seen) == 8 * 4 * steps, "a group is missing"
    versions = [json.loads(line)["version"] for line in (run / "sync.jsonl").read_text().splitlines()]
    assert versions[-1] == steps


def test_what_the_cluster_does_not_have_is_refused_with_the_node_and_the_resource(cluster, tmp_path):
    said = Said()
    settings = config(cluster, tmp_path, "name=large", "steps=1", "cluster.rollout_actors=9", "cluster.learner_gpus=1")
    assert entry.train(settings, None, said) == entry.FAILED
    text = str(said)
    assert "error: the Ray cluster cannot place this run" in text
    assert "learner rank 0 needs 1 GPU (" in text and "has 0 left" in text
    assert "rollout actor" in text and "1 CPU (" in text
    assert not (tmp_path / "large").exists()


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:9", "no Ray cluster at cluster.address = 127.0.0.1:9: "),
        ("ray://127.0.0.1:10001", "is neither local, auto nor HOST:PORT of a head node"),
    ],
)
def test_an_address_without_a_cluster_is_refused_in_plain_words(requires_ray, address, reason):
    from agent_rl.cluster.session import session
    from agent_rl.cluster.settings import ClusterSettings

    with (
        pytest.raises(ConfigError, match=reason),
        session(ClusterSettings(kind="ray", address=address), lambda text: None),
    ):
        pytest.fail("there is no cluster to join")
