"""What a run asks of a cluster, whether it fits, and what is said if not; all without a cluster."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.cluster.faults import RowOfFailures
from agent_rl.cluster.resources import Node, available_cpus, placement, shortages
from agent_rl.cluster.settings import ClusterSettings


def asked(**values) -> ClusterSettings:
    return ClusterSettings(kind="ray", **values)


def nodes(*free: tuple[float, float]) -> list[Node]:
    return [Node(f"node{i}", {"CPU": cpus, "GPU": gpus}) for i, (cpus, gpus) in enumerate(free)]


def test_split_placement_gives_ranks_and_actors_bundles_of_their_own():
    found = placement(asked(rollout_actors=3, learner_ranks=2, learner_gpus=1, rollout_gpus=1, spread="spread"))
    ranks, rollouts = found.groups
    assert ranks.strategy == "PACK" and rollouts.strategy == "SPREAD"
    assert [b.resources for b in ranks.bundles] == [{"CPU": 1.0, "GPU": 1.0}] * 2
    assert found.ranks == ((0, 0), (0, 1)) and found.rollouts == ((1, 0), (1, 1), (1, 2))


def test_colocated_placement_shares_the_gpu_of_a_rank_and_adds_cpus():
    found = placement(asked(placement="colocated", rollout_actors=3, learner_ranks=2, learner_gpus=1, rollout_gpus=1))
    (group,) = found.groups
    assert [b.resources for b in group.bundles] == [{"CPU": 3.0, "GPU": 1.0}, {"CPU": 2.0, "GPU": 1.0}]
    assert found.rollouts == ((0, 0), (0, 1), (0, 0))
    assert group.bundles[0].users == ("learner rank 0", "rollout actor 0", "rollout actor 2")


def test_a_request_that_fits_has_no_shortage():
    wanted = placement(asked(rollout_actors=4, learner_ranks=2, learner_gpus=1, rollout_gpus=1))
    assert shortages(wanted, nodes((4, 3), (4, 3))) == []


def test_a_shortage_names_who_needs_what_and_what_each_node_has():
    wanted = placement(asked(rollout_actors=1, learner_ranks=2, learner_gpus=1))
    (found,) = shortages(wanted, nodes((4, 1), (4, 0)))
    assert found.startswith("learner rank 1 needs 1 GPU (node0 has 0 left, node1 has 0 left)")
    assert "lower cluster.rollout_actors" in found


def test_enough_in_sum_but_not_on_one_node_is_said_so():
    wanted = placement(asked(rollout_actors=1, learner_ranks=1, learner_cpus=2, learner_gpus=2))
    (found, *_) = shortages(wanted, nodes((1, 2), (4, 1)))
    assert "on one node" in found and "2 CPU" in found and "2 GPU" in found


def test_strictly_spread_actors_need_a_node_each():
    wanted = placement(asked(rollout_actors=3, spread="strict_spread"))
    (found,) = shortages(wanted, nodes((8, 0), (8, 0)))
    assert found.startswith("rollout actor 2 needs a node of its own (cluster.spread = strict_spread)")


def test_a_cluster_without_nodes_is_said_so():
    assert shortages(placement(asked()), []) == ["the cluster has no live node"]


@settings(deadline=None, max_examples=60)
@given(
    free=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=4),
    actors=st.integers(1, 5),
    ranks=st.integers(1, 4),
    gpus=st.integers(0, 1),
)
def test_what_is_short_in_sum_is_always_found(free, actors, ranks, gpus):
    wanted = placement(asked(rollout_actors=actors, learner_ranks=ranks, learner_gpus=gpus))
    found = shortages(wanted, nodes(*free))
    if sum(cpus for cpus, _ in free) < actors + ranks or sum(g for _, g in free) < ranks * gpus:
        assert found
    if not gpus and sum(cpus for cpus, _ in free) >= actors + ranks:
        assert not found  # bundles of one CPU fit wherever a CPU is left


def test_cpus_are_those_that_the_cgroup_leaves(tmp_path):
    everything = available_cpus(tmp_path / "none")
    assert everything >= 1
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert available_cpus(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert available_cpus(tmp_path) == everything
    older = tmp_path / "v1"
    (older / "cpu").mkdir(parents=True)
    (older / "cpu" / "cpu.cfs_quota_us").write_text("100000\n")
    (older / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert available_cpus(older) == 1
    (older / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert available_cpus(older) == everything


def test_a_place_is_started_afresh_after_a_row_of_failures_only():
    row = RowOfFailures(limit=3)
    assert [row.note(0, failed=f) for f in (True, True, False, True, True)] == [False] * 5
    assert not row.note(1, failed=True)
    assert row.note(0, failed=True)
    assert not row.note(0, failed=True), "it is counted anew"
