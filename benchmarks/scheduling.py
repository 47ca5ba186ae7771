"""Rollout scheduling at cluster scale, on a virtual clock: the schedule of `mode: async` over engines that take time.

    python benchmarks/scheduling.py [--run RUN] [--plot docs/images/scheduling.png]

512 trajectories a batch (64 problems x 8) over 8 engines. What episodes cost comes from a run's recordings (`--run`),
or from `scheduling_recorded.json`: 512 training episodes of `agent-rl train configs/quickstart.yaml` (turns, tokens,
seconds of tools), which were drawn from all its steps. That policy is terse, so tokens are multiplied (`--tokens`), and
the second workload spreads lengths by a log-normal factor as long reasoning does (`--spread`).

Printed for each policy: trajectories trained on a second against the synchronous run, tokens decoded against engines
that are always full, share of the time in which the learner worked, seconds that it waited for a batch (median, 95th
percentile), staleness (mean, max), tokens thrown away, and mean length of what is trained on against what was started
(below 1: long episodes are given up). Means over seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from agent_rl.scheduling.settings import AsyncSettings
from agent_rl.scheduling.simulation import Outcome, Simulation
from agent_rl.scheduling.virtual_engine import Hardware
from agent_rl.scheduling.workload import Workload, groups_from, groups_of

RECORDED = Path(__file__).with_name("scheduling_recorded.json")
POLICIES = {
    "synchronous": AsyncSettings(max_staleness=0),
    "over-sampled 1.25": AsyncSettings(max_staleness=0, oversample=1.25),
    "over-sampled 1.5": AsyncSettings(max_staleness=0, oversample=1.5),
    "async 1": AsyncSettings(max_staleness=1),
    "async 2": AsyncSettings(max_staleness=2),
    "async 4": AsyncSettings(max_staleness=4),
    "async 2, over-sampled 1.25": AsyncSettings(max_staleness=2, oversample=1.25),
}


@dataclass(frozen=True)
class Row:
    """Means over seeds."""

    rate: float
    engine: float
    learner: float
    wait: float
    wait95: float
    staleness: float
    oldest: int
    wasted: float
    bias: float


def row(outcomes: Sequence[Outcome]) -> Row:
    """One line of the table."""
    return Row(
        rate=fmean(o.rate for o in outcomes),
        engine=fmean(o.engine_share for o in outcomes),
        learner=fmean(o.learner_busy for o in outcomes),
        wait=fmean(quantile(o.waits, 0.5) for o in outcomes),
        wait95=fmean(quantile(o.waits, 0.95) for o in outcomes),
        staleness=fmean(fmean(o.staleness) for o in outcomes),
        oldest=max(max(o.staleness) for o in outcomes),
        wasted=fmean(o.wasted for o in outcomes),
        bias=fmean(o.length_bias for o in outcomes),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def simulate(rules: AsyncSettings, hardware: Hardware, workload: Workload, seeds: int) -> Row:
    """One policy on one workload."""
    return row([Simulation(rules, hardware, workload, seed=seed).run() for seed in range(seeds)])


def table(rows: dict[str, Row]) -> None:
    """Print it."""
    base = next(iter(rows.values())).rate
    print("policy                       traj/s  ratio  engine learner  wait p50   p95  stale max  thrown  length")
    for name, r in rows.items():
        print(
            f"{name:27} {r.rate:7.2f} {r.rate / base:6.2f} {r.engine:7.0%} {r.learner:7.0%} "
            f"{r.wait:8.1f}s {r.wait95:5.0f}s {r.staleness:5.2f} {r.oldest:3} {r.wasted:7.1%} {r.bias:7.2f}"
        )


def plot(found: dict[str, dict[str, Row]], staleness: dict[int, Row], engines: dict[int, Row], path: Path) -> None:
    """Utilisation and waiting by policy, and what staleness and the number of engines buy."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7.5), constrained_layout=True)
    rows = found["long-tailed"]
    names, places = list(rows), range(len(rows))
    axes[0, 0].barh([p - 0.2 for p in places], [r.engine for r in rows.values()], 0.4, label="engines (of full rows)")
    axes[0, 0].barh([p + 0.2 for p in places], [r.learner for r in rows.values()], 0.4, label="learner")
    axes[0, 0].set(yticks=list(places), yticklabels=names, xlabel="share of the time in use", xlim=(0, 1))
    axes[0, 1].barh([p - 0.2 for p in places], [r.wait for r in rows.values()], 0.4, label="median")
    axes[0, 1].barh([p + 0.2 for p in places], [r.wait95 for r in rows.values()], 0.4, label="95th percentile")
    axes[0, 1].set(
        yticks=list(places), yticklabels=[""] * len(rows), xlabel="seconds that the learner waits for a batch"
    )
    for axis, swept, label in ((axes[1, 0], staleness, "max_staleness"), (axes[1, 1], engines, "engines")):
        best = max(r.rate for r in swept.values())
        axis.plot(
            list(swept), [r.rate / best for r in swept.values()], "o-", label="trajectories a second (of the best)"
        )
        axis.plot(list(swept), [r.engine for r in swept.values()], "s--", label="engines in use")
        axis.plot(list(swept), [r.learner for r in swept.values()], "^--", label="learner in use")
        axis.set(xlabel=label, ylim=(0, 1.05), xticks=list(swept))
    for axis in axes.flat:
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    for axis in axes[0]:
        axis.invert_yaxis()
    figure.savefig(path, dpi=110)
    print(f"plot: {path}")


def recorded(run: Path | None) -> tuple[str, Workload]:
    """The costs of a run's training episodes, or those that are kept here."""
    if run is None:
        plain = json.loads(RECORDED.read_text())
        return "kept recording", Workload(groups_from(plain), f"recording of the quickstart ({RECORDED.name})")
    from agent_rl.records.shards import read_records, shards

    records = [r for path in shards(run / "trajectories") if path.name.startswith("train-") for r in read_records(path)]
    return str(run), Workload(groups_of(records), f"recording of {run}")


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of a run whose recordings give lengths and tool times")
    parser.add_argument("--tokens", type=float, default=64.0, help="factor of all lengths (default 64)")
    parser.add_argument("--spread", type=float, default=0.8, help="sigma of the log-normal factor (default 0.8)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed, one workload, no sweeps")
    parser.add_argument("--plot", type=Path, help="where to draw")
    asked = parser.parse_args()
    hardware = Hardware()
    print(
        f"{hardware.engines} engines of {hardware.rows} rows, {hardware.peak:.0f} tokens/s each when full; learner "
        f"{hardware.learner_tokens_per_s:.0f} tokens/s, hand-over {hardware.sync_s:g} s; "
        "batch 64 x 8 = 512 trajectories"
    )
    _, base = recorded(asked.run)
    as_recorded = replace(base, tokens=asked.tokens)
    workloads = {"long-tailed": replace(as_recorded, spread=asked.spread)}
    if not asked.quick:
        workloads["as recorded"] = as_recorded
    seeds = 1 if asked.quick else asked.seeds
    found: dict[str, dict[str, Row]] = {}
    for name, workload in workloads.items():
        print(f"\n{name}: {workload.describe()}")
        found[name] = {policy: simulate(rules, hardware, workload, seeds) for policy, rules in POLICIES.items()}
        table(found[name])
    if asked.quick:
        return
    long_tailed = workloads["long-tailed"]
    staleness = {
        n: simulate(AsyncSettings(max_staleness=n), hardware, long_tailed, seeds) for n in (0, 1, 2, 3, 4, 6, 8)
    }
    print("\nmax_staleness, long-tailed")
    table({str(n): r for n, r in staleness.items()})
    engines = {
        n: simulate(POLICIES["async 4"], replace(hardware, engines=n), long_tailed, seeds) for n in (2, 4, 6, 8, 12, 16)
    }
    print("\nengines, async 4, long-tailed")
    table({str(n): r for n, r in engines.items()})
    if asked.plot:
        plot(found, staleness, engines, asked.plot)


if __name__ == "__main__":
    main()
