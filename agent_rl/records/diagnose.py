"""Why is it not learning: numbers out of range, in plain words, with the threshold and what to try."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from agent_rl.records.inspect.command import read_metrics
from agent_rl.records.inspect.overview import budget_used
from agent_rl.records.reader import folders, summaries, updates
from agent_rl.records.schema import Summary
from agent_rl.records.shards import RecordError
from agent_rl.records.token_updates import Update, steps_with_updates

Row = Mapping[str, float]
BUDGET_REASON = 5
FAR = 1.0
"""Size of a log-ratio, nats, from which on the data says little about the policy."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One number out of range."""

    what: str
    number: str
    threshold: str
    attempt: str
    """What to try."""

    def __str__(self) -> str:
        return f"{self.what}: {self.number} ({self.threshold}). Try: {self.attempt}"


def diagnose(run: Path, console: Console | None = None, *, last: int = 10) -> int:
    """Print findings over the last steps; 0 if there is none, 1 if there are, 2 if the run cannot be read."""
    console = console or Console()
    try:
        rows = [s for s in summaries(run) if s.split == "train"]
    except RecordError as error:
        Console(stderr=True).print(f"error: {error}", highlight=False)
        return 2
    metrics = [m for m in read_metrics(run) if "rollout/reward" in m]
    steps = sorted({r.step for r in rows if r.step is not None})[-last:]
    kept = [s for folder in folders(run) for s in steps_with_updates(folder) if s in steps]
    found = findings(
        [m for m in metrics if m["step"] in steps],
        [r for r in rows if r.step in steps],
        [updates(run, s) for s in kept],
    )
    span = f"steps {steps[0]} to {steps[-1]}" if steps else "no training step"
    console.print(f"{run}: {span}, {len(rows)} trajectories of training recorded", highlight=False)
    for finding in found:
        console.print(f"[bold]{finding.what}[/bold]: {finding.number}  [dim](out of range: {finding.threshold})[/dim]")
        console.print(f"    try: {finding.attempt}", highlight=False, markup=False)
    if not found:
        console.print("nothing is out of range", style="green")
    return 1 if found else 0


def findings(metrics: Sequence[Row], rows: Sequence[Summary], batches: Sequence[Sequence[Update]]) -> list[Finding]:
    """All that is out of range in these steps: their metrics rows, trajectories, and updates (one list a step)."""
    checks: list[Iterator[Finding]] = [_of_rows(rows), _of_metrics(metrics), _of_updates(batches)]
    return [finding for check in checks for finding in check]


def _of_rows(rows: Sequence[Summary]) -> Iterator[Finding]:
    if not rows:
        yield Finding("no training was recorded", "0 trajectories", "below 1", "look at the run's first lines")
        return
    for test, what, limit, above, attempt in _SHARES:
        share = sum(map(test, rows)) / len(rows)
        if (share > limit) if above else (share < limit):
            yield Finding(what, f"{share:.1%} of trajectories", f"{'above' if above else 'below'} {limit:.0%}", attempt)
    calls = sum(r.tool_calls for r in rows)
    failures = sum(r.tool_failures for r in rows)
    if calls and failures > 0.5 * calls:
        yield Finding("most tool calls fail", f"{failures / calls:.1%} of {calls} calls", "above 50%",
                      "inspect --sort calls; look whether imports or limits (tir.tool) are at fault")  # fmt: skip
    yield from _of_groups(rows)


_SHARES: tuple[tuple[Callable[[Summary], bool], str, float, bool, str], ...] = (
    (lambda r: r.tool_calls > 0, "hardly any tool calls", 0.05, False,
     "warm the policy up on traces with code (agent-rl sft), or set rewards.tool_call_bonus"),
    (lambda r: r.void, "many void turns", 0.3, True,
     "the policy ends turns without code or answer: warm up, raise tir.max_turn_tokens, check tir.instruction"),
    (lambda r: r.truncated, "many truncated turns", 0.15, True,
     "raise tir.max_turn_tokens and tir.max_total_tokens, or switch rewards.overlong on"),
    (lambda r: r.stop == "context_full", "trajectories run out of context", 0.1, True,
     "raise tir.max_total_tokens or lower tir.max_observation_tokens"),
    (lambda r: r.stop == "max_turns", "trajectories use all their turns", 0.3, True,
     "raise tir.max_turns, or look whether the policy repeats itself (inspect --sort calls)"),
    (lambda r: r.timed_out, "programs time out", 0.1, True,
     "raise tir.tool.wall_s and cpu_s, or look at sandbox.slots: programs may wait for a core"),
    (lambda r: r.failed, "failures that are ours, not the model's", 0.02, True,
     "look at the errors (inspect --search failed): engine, sandbox or verifier are at fault"),
    (lambda r: r.verdict == "undecided", "the verifier cannot decide", 0.05, True,
     "raise rewards.verifier.wall_seconds or look at the answers: they may be huge"),
    (lambda r: r.reward is not None and r.reward > 0, "hardly any reward", 0.02, False,
     "problems are too hard, or right answers are not recognised: read a few, check rewards.extraction and the golds"),
)  # fmt: skip


def _of_groups(rows: Sequence[Summary]) -> Iterator[Finding]:
    groups = {(r.step, r.problem): r for r in rows}
    dead = sum("dead_group" in r.filters for r in groups.values())
    if dead > 0.8 * len(groups):
        rewards = Counter(r.reward for r in rows if "dead_group" in r.filters).most_common(1)[0][0]
        attempt = (
            "all attempts are alike and right: use harder problems"
            if rewards and rewards > 0
            else "all attempts are alike and wrong: use easier problems, more samples_per_problem, or warm up"
        )
        what = "all groups are dead: nothing can be learnt" if dead == len(groups) else "most groups are dead"
        yield Finding(what, f"{dead} of {len(groups)} groups", "above 80%", attempt)
    right = [r for r in rows if r.correct]
    sources = {r.source for r in rows}
    winners = Counter(r.source for r in right)
    if len(sources) > 2 and len(right) >= 20 and winners.most_common(1)[0][1] > 0.9 * len(right):
        name, count = winners.most_common(1)[0]
        yield Finding("reward comes from one source only", f"{count / len(right):.1%} from {name!r}", "above 90%",
                      "the others are too hard or their golds are not recognised; read one of each")  # fmt: skip


def _of_metrics(metrics: Sequence[Row]) -> Iterator[Finding]:
    for name, limit, above, what, attempt in _METRICS:
        values = [m[name] for m in metrics if m.get(name) is not None and m[name] == m[name]]
        if not values:
            continue
        mean = float(np.mean(values))
        if (abs(mean) > limit) if above else (mean < limit):
            yield Finding(what, f"{name} = {mean:.4g}", f"{'above' if above else 'below'} {limit:g}", attempt)
    norms = [m["learner/grad_norm"] for m in metrics if m.get("learner/grad_norm") is not None]
    if norms and max(norms) == 0:
        yield Finding("the gradient is zero", "learner/grad_norm = 0", "0", "look at dead groups and filters above")


_METRICS = (
    ("policy/mismatch_mean", 0.05, True, "sampler and trainer disagree about log-probs",
     "engine and learner must have the same weights, number format and temperature; engine.dtype: float32 to compare"),
    ("policy/mismatch_std", 0.3, True, "sampler and trainer disagree about single tokens",
     "method.mismatch.kind: icepop or sequence_tis, and engine.dtype: float32 to find the cause"),
    ("policy/entropy", 0.02, False, "the policy has collapsed: it hardly varies its text",
     "lower the learning rate, raise temperature, or give method.entropy.coefficient a small value"),
    ("policy/clip_rate", 0.4, True, "most tokens are clipped",
     "lower learner.optimizer.lr or learner.updates_per_batch: the policy moves too far within a batch"),
    ("policy/mask_rate", 0.4, True, "most tokens are gated",
     "lower learner.optimizer.lr or learner.updates_per_batch, or raise method.prefix_budget.delta_b"),
    ("learner/skipped_updates", 0.0, True, "updates were skipped: their gradient was not finite",
     "inspect --sort ratio at that step; lower the learning rate; learner.autocast: none"),
)  # fmt: skip


def _of_updates(batches: Sequence[Sequence[Update]]) -> Iterator[Finding]:
    first = [t for batch in batches for t in (batch[0].tokens.values() if batch else ()) if "logp_old" in t]
    gap = max((float(np.abs(t["logp"] - t["logp_old"]).max(initial=0.0)) for t in first), default=0.0)
    if gap > 1e-4:
        yield Finding("the ratio is not 1 on the first mini-batch", f"largest |log pi - log pi_old| = {gap:.3g}",
                      "above 0.0001", "log pi_old must be of the weights before the batch: dropout, packing or number "
                      "format differ between the two passes")  # fmt: skip
    rest = [t for batch in batches for update in batch for t in update.tokens.values() if "log_ratio" in t]
    sizes = [np.abs(t["log_ratio"]) for t in rest]
    count = sum(len(size) for size in sizes)
    far = sum(int((size > FAR).sum()) for size in sizes)
    if far > 0.05 * count:
        yield Finding("ratios run away within a batch", f"{far / count:.1%} of tokens have |log ratio| above {FAR:g}",
                      "above 5%", "lower learner.optimizer.lr or updates_per_batch")  # fmt: skip
    yield from _budget([t for batch in batches for update in batch for t in update.tokens.values() if "budget" in t])


def _budget(tokens: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """From which model token on the prefix's budget is spent, over trajectories that reach it."""
    longest = max((len(t["budget"]) for t in tokens), default=0)
    if longest < 8:
        return
    spent, reached = np.zeros(longest), np.zeros(longest)
    for values in tokens:
        n = len(values["budget"])
        reached[:n] += 1
        spent[:n] += (values["reason"] == BUDGET_REASON) | (budget_used(values) > 1)
    share = spent / np.maximum(reached, 1)
    many = np.flatnonzero((share > 0.5) & (reached >= max(4, 0.1 * len(tokens))))
    if many.size:
        yield Finding("the prefix budget is spent early", f"for most from model token {int(many[0]) + 1} on",
                      "more than half at any token", "lower learner.optimizer.lr or updates_per_batch, raise "
                      "method.prefix_budget.delta_b, or method.prefix_budget.adaptive: true")  # fmt: skip
