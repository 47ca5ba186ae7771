"""Train through Ray on two nodes that are both this machine: two rollout actors, two FSDP2 ranks over gloo.

    OMP_NUM_THREADS=1 python -m benchmarks.two_nodes [configs/quickstart.yaml] [key=value ...]

Printed besides what `agent-rl train` prints: mean reward of the first and the last third of the steps, and the first
and last held-out accuracy. Nodes are logical: they share this machine's processors, so that times say nothing.
"""

from __future__ import annotations

import os
import sys
from statistics import fmean

from agent_rl.config import load
from agent_rl.training import entry
from agent_rl.training.run_dir import RunDir
from agent_rl.training.settings import RunConfig

ASKED = ("cluster.kind=ray", "cluster.rollout_actors=2", "cluster.learner_ranks=2", "cluster.spread=spread")


def main() -> int:
    """See the head of this file."""
    from ray.cluster_utils import Cluster

    arguments = sys.argv[1:]
    file = arguments.pop(0) if arguments and "=" not in arguments[0] else "configs/quickstart.yaml"
    os.environ.setdefault("RAY_worker_niceness", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    try:
        config = load(file, [*ASKED, f"cluster.address={cluster.address}", *arguments], model=RunConfig)
        run = RunDir.create(config)
        status = entry.train(config, run)
        rows = [row for row in run.metrics() if "time/step" in row]
        measured = [row["eval/accuracy_sampled"] for row in run.metrics() if "eval/accuracy_sampled" in row]
        third = max(len(rows) // 3, 1)
        first, last = (fmean(row["rollout/reward"] for row in part) for part in (rows[:third], rows[-third:]))
        print(f"mean reward of the first and the last {third} steps: {first:.3f} -> {last:.3f}")
        if len(measured) > 1:
            print(f"held out: {measured[0]:.1%} -> {measured[-1]:.1%}")
        return status
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
