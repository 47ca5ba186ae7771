"""Measure a policy on problem sets: resumable, with the episode code of training."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.evaluation.metrics import Summary, summarise
from agent_rl.evaluation.outcomes import Outcome, outcome_of, trajectory_of, unplayed
from agent_rl.evaluation.presets import load_benchmark
from agent_rl.evaluation.report import write_report
from agent_rl.evaluation.settings import EvaluationSettings
from agent_rl.records import manifest
from agent_rl.records.recorder import SUFFIX, TrajectoryRecorder, read_records, shards
from agent_rl.tasks.load import load_problems
from agent_rl.tasks.problems import Problems
from agent_rl.types import InfrastructureError, Problem, Trajectory

Play = Callable[[Sequence[tuple[Problem, int]]], AsyncGenerator[Trajectory, None]]
"""Plays and judges attempts (problem, sample), and yields each as it ends: `agent_rl.rollout.run.Rollout.play`."""

IDENTITY = "evaluation.json"
CONFIG = "config.yaml"

NO_PART_OF_IDENTITY = {"resamples", "confidence", "pass_at", "benchmark_dir", "max_failed_share"}
"""Settings that change no attempt, so that a folder may be given again with others."""

FEWEST_FAILURES = 8
"""Failures of ours before their share can stop a measurement."""


@dataclass(frozen=True)
class Evaluation:
    """A finished measurement."""

    summaries: list[Summary]
    files: dict[str, Path]
    """The report's files by suffix."""

    @property
    def complete(self) -> bool:
        """Whether every attempt was made; failed ones are tried again when the same folder is given again."""
        return all(s.complete for s in self.summaries)


def load_sets(settings: EvaluationSettings) -> dict[str, Problems]:
    """The problem sets of a measurement, benchmarks first.

    Raises:
        BenchmarkAbsent: a benchmark's file is absent; says where to get it.
        ValueError: no set is named, or one cannot be used.
    """
    sets = {n: load_benchmark(n, settings.benchmark_dir, limit=settings.limit) for n in settings.benchmarks}
    for name, data in settings.data.items():
        problems = load_problems(data, split="test")
        sets[name] = problems if settings.limit is None else Problems(problems.items[: settings.limit])
    if not sets:
        raise ValueError("nothing to evaluate: name evaluation.benchmarks, or problem sets under evaluation.data")
    return sets


async def evaluate(
    play: Callable[[str], Play],
    sets: Mapping[str, Problems],
    settings: EvaluationSettings,
    folder: Path,
    *,
    identity: Mapping[str, Any],
    command: str | None = None,
    config: str | None = None,
    piece: Callable[[int], str] | None = None,
    describe: Callable[[str], dict[str, Any]] | None = None,
    on_finish: Callable[[str, Outcome], None] = lambda name, outcome: None,
) -> Evaluation:
    """Play what is not yet recorded in `folder`, and write the report there.

    Every trajectory is on disk before the next is looked at, so that a measurement may be killed at any moment and
    goes on when it is started again with the same folder. Attempts that failed for reasons of ours are not
    finished: they are made again.

    Args:
        play: for a set's name, what plays its attempts. Random streams should be named by set and seed alone, so that
            an attempt is the same whenever it is made.
        sets: problems by the name of their set.
        folder: gets `trajectories/NAME/`, the report, and `evaluation.json`.
        identity: what is measured (model, weights, episode settings), as plain JSON; a folder of another identity
            is refused.
        config: the resolved configuration, kept beside the recordings so that they can be replayed.
        piece: text of one token id; with it the recordings can be read without their tokenizer.
        describe: for a set's name, the manifest of its recordings (`agent_rl.records.manifest.describe`).
        on_finish: called for each attempt as it is recorded.

    Raises:
        InfrastructureError: too many attempts failed for reasons of ours.
        ValueError: the folder holds a measurement of something else, or `play` yields an attempt that was not
            asked for.
    """
    whole = {
        **identity,
        "evaluation": settings.model_dump(mode="json", exclude=NO_PART_OF_IDENTITY),
        "data": {name: problems.fingerprint for name, problems in sets.items()},
    }
    _claim(folder, whole)
    if config is not None:
        (folder / CONFIG).write_text(config, encoding="utf-8")
    summaries: list[Summary] = []
    for name, problems in sets.items():
        place = folder / "trajectories" / name
        recorder = TrajectoryRecorder(place, piece=piece)
        if describe is not None:
            manifest.write(place, describe(name))
        outcomes = await _measure(play(name), problems, settings, recorder, name, on_finish)
        summaries.append(
            summarise(
                name,
                outcomes,
                settings.samples,
                pass_ks=settings.pass_ks,
                confidence=settings.confidence,
                resamples=settings.resamples,
                seed=settings.seed,
            )
        )
    return Evaluation(summaries, write_report(folder, summaries, whole, command=command))


async def _measure(
    play: Play,
    problems: Problems,
    settings: EvaluationSettings,
    recorder: TrajectoryRecorder,
    name: str,
    on_finish: Callable[[str, Outcome], None],
) -> list[Outcome]:
    """Outcomes of all attempts at one set, in its order: those recorded before, and those played now."""
    wanted = {(p.id, sample): p for p in problems for sample in range(settings.samples)}
    outcomes = {(o.problem, o.sample): o for o in recorded(recorder.folder) if (o.problem, o.sample) in wanted}
    missing = [(p, key[1]) for key, p in wanted.items() if key not in outcomes or outcomes[key].failed]
    if missing:
        # A shard of its own for each start: one whose last record was cut short is never appended to.
        shard = f"eval-{len(shards(recorder.folder)):06d}"
        pending = {(p.id, sample) for p, sample in missing}
        failed = 0
        async with aclosing(play(missing)) as stream:
            async for trajectory in stream:
                key = (trajectory.problem.id, trajectory.sample)
                if key not in pending:
                    raise ValueError(f"attempt {trajectory.key} was not asked for, or was played twice")
                pending.discard(key)
                recorder.append(shard, [trajectory], set=name)
                outcomes[key] = outcome_of(trajectory)
                failed += outcomes[key].failed
                on_finish(name, outcomes[key])
                _stop_if_too_many_failed(failed, len(missing) - len(pending), outcomes[key], settings)
        for problem_id, sample in pending - outcomes.keys():
            outcomes[(problem_id, sample)] = unplayed(wanted[(problem_id, sample)], sample)
    order = {key: position for position, key in enumerate(wanted)}
    return sorted(outcomes.values(), key=lambda o: order[(o.problem, o.sample)])


def _stop_if_too_many_failed(failed: int, played: int, last: Outcome, settings: EvaluationSettings) -> None:
    if last.failed and failed >= FEWEST_FAILURES and failed > settings.max_failed_share * played:
        raise InfrastructureError(
            "evaluation",
            f"{failed} of {played} attempts failed for reasons that are not the model's "
            f"(evaluation.max_failed_share = {settings.max_failed_share:g}); the last said: {last.error}. "
            "What is recorded is kept: mend the cause and start again with the same folder",
        )


def recorded(folder: Path) -> list[Outcome]:
    """Outcomes of all complete records of a set's folder; of several of one attempt, the last."""
    found: dict[tuple[str, int], Outcome] = {}
    for shard in shards(folder):
        for record in read_records(shard):
            outcome = outcome_of(trajectory_of(record))
            found[(outcome.problem, outcome.sample)] = outcome
    return list(found.values())


def _claim(folder: Path, identity: Mapping[str, Any]) -> None:
    """Write the identity into a new folder, or compare it with that of an old one."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / IDENTITY
    text = json.dumps(identity, indent=2, sort_keys=True, default=str)
    if file.exists():
        old, new = json.loads(file.read_text()), json.loads(text)
        if changed := [k for k in sorted({*old, *new}) if old.get(k) != new.get(k)]:
            raise ValueError(
                f"{str(folder)!r} holds a measurement with another {', '.join(changed)}; choose another folder, "
                f"or remove that one"
            )
        return
    if any(folder.rglob("*" + SUFFIX)):
        raise ValueError(f"{str(folder)!r} holds trajectories of something else; choose another folder")
    temporary = file.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, file)
