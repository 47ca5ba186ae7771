"""What `agent-rl eval` does: find the policy, play the problem sets, write the report, go on where it stopped."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from agent_rl.config import ConfigError, dump
from agent_rl.evaluation.metrics import Summary
from agent_rl.evaluation.outcomes import Outcome
from agent_rl.evaluation.presets import BENCHMARKS, BenchmarkAbsent
from agent_rl.evaluation.report import is_share
from agent_rl.evaluation.run import Evaluation, Play, evaluate, load_sets, recorded
from agent_rl.evaluation.settings import EvaluationSettings
from agent_rl.play.policy import Policy
from agent_rl.play.settings import PlaySettings
from agent_rl.tasks.problems import Problems

DONE, FAILED, REFUSED = 0, 1, 2
FAMILIES = {"families": [], "count": 160, "seed": 2}
"""What `--on families` measures: the trained families, questions of their evaluation split."""


class EvalConfig(PlaySettings):
    """A measurement from the command line."""

    output: str | None = None
    """Folder of the report; null = one under `runs/evals` whose name tells policy and measurement apart, so that the
    same command goes on where it stopped."""
    evaluation: EvaluationSettings = EvaluationSettings()


def sets_from_options(names: Sequence[str]) -> dict[str, Any]:
    """`--on` values as configuration: benchmarks by name, `families`, or anything that `data.path` takes."""
    data: dict[str, Any] = {}
    benchmarks: list[str] = []
    for name in names:
        if name in BENCHMARKS:
            benchmarks.append(name)
        elif name == "families":
            data["families"] = FAMILIES
        else:
            data[_set_name(name, data)] = {"path": name}
    return {key: value for key, value in (("data", data), ("benchmarks", benchmarks)) if value}


def endpoint_from_options(urls: Sequence[str], name: str | None) -> dict[str, Any]:
    """`--endpoint` and `--model` values as configuration: vLLM servers that have the policy's weights.

    Raises:
        ConfigError: a name without an address.
    """
    if not urls:
        if name is not None:
            raise ConfigError(f"--model {name} names a model of a server: give --endpoint, or the model as an argument")
        return {}
    remote: dict[str, Any] = {"url": urls[0] if len(urls) == 1 else list(urls)}
    return {"engine": {"kind": "remote", "remote": remote | ({"model": name} if name is not None else {})}}


def _set_name(path: str, taken: Mapping[str, Any]) -> str:
    """A name that may head a folder: the file's stem, with its folder where that is just a split."""
    parts = Path(path).name.split(".")[0], Path(path).parent.name
    stem = f"{parts[1]}-{parts[0]}" if parts[0] in ("train", "test", "validation") and parts[1] else parts[0]
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in stem) or "set"
    number = 2
    while name in taken:
        name, number = f"{name}-{number}", number + 1
    return name


def run(config: EvalConfig, policy: Policy, console: Console | None = None) -> int:
    """Measure; the exit status: 0 complete, 1 failed or incomplete, 2 refused, 130 stopped."""
    console = console or Console()
    try:
        sets = load_sets(config.evaluation)
    except (BenchmarkAbsent, FileNotFoundError, ValueError) as error:
        return _error(str(error), REFUSED)
    from agent_rl.play.serve import INTERRUPTED, run_interruptibly

    try:
        status = run_interruptibly(_run(config, policy, sets, console))
    except _plain_errors() as error:
        return _error(str(error), FAILED)
    if status == INTERRUPTED:
        _say(console, "stopped; what was played is kept: the same command goes on")
    return status


def _plain_errors() -> tuple[type[Exception], ...]:
    """Errors whose message says all that a user needs; others keep their traceback."""
    from agent_rl.engines.sources import ModelError
    from agent_rl.tir.formats import TemplateError
    from agent_rl.types import InfrastructureError
    from sandbox.client import SandboxClientError

    return (ConfigError, ModelError, TemplateError, InfrastructureError, SandboxClientError)


async def _run(config: EvalConfig, policy: Policy, sets: Mapping[str, Problems], console: Console) -> int:
    from agent_rl.engines.base import Sampling
    from agent_rl.play.serve import playing
    from agent_rl.records import manifest

    settings = config.evaluation
    served_config = config.model_copy(update={"tir": settings.episode(config.tir)})
    async with playing(served_config, say=lambda text: _say(console, text), seed=settings.seed) as served:
        sampling = Sampling(temperature=settings.temperature, top_p=settings.top_p, top_k=settings.top_k)
        identity = {
            "model": policy.name,
            "path": policy.path,
            "weights": served.fingerprint,
            "tir": served.tir.model_dump(mode="json"),
            "rewards": config.rewards.model_dump(mode="json", exclude={"verifier"}),
            "dtype": config.engine.dtype,
        }
        if config.engine.kind != "transformers":
            identity["engine"] = config.engine.kind
        folder = _folder(config, identity)

        resolved = dump(served_config.model_copy(update={"tir": served.tir}))

        def play(name: str) -> Play:
            return lambda attempts: served.rollout.play(attempts, sampling=sampling, stream=f"{settings.seed}/{name}")

        def describe(name: str) -> dict[str, Any]:
            return manifest.describe(
                tokenizer=served.tokenizer,
                config=resolved,
                level="full",
                model=policy.path,
                fingerprints={"data": sets[name].fingerprint, "base model": served.fingerprint},
            )

        try:
            with _progress(console, sets, settings, folder) as advance:
                result = await evaluate(
                    play,
                    sets,
                    settings,
                    folder,
                    identity=identity,
                    command=_command(),
                    config=resolved,
                    piece=served.piece,
                    describe=describe,
                    on_finish=advance,
                )
        except ValueError as error:  # the folder holds something else
            raise ConfigError(str(error)) from error
    _show(result, console)
    return DONE if result.complete else FAILED


def _folder(config: EvalConfig, identity: Mapping[str, Any]) -> Path:
    if config.output is not None:
        return Path(config.output)
    whole = json.dumps([identity, config.evaluation.model_dump(mode="json")], sort_keys=True)
    digest = hashlib.blake2b(whole.encode(), digest_size=4).hexdigest()
    return Path("runs/evals") / f"{identity['model']}-{digest}"


def _command() -> str:
    """The command line that was typed, as it may be typed again."""
    return shlex.join(["agent-rl", *sys.argv[1:]])


@contextmanager
def _progress(
    console: Console, sets: Mapping[str, Problems], settings: EvaluationSettings, folder: Path
) -> Iterator[Callable[[str, Outcome], None]]:
    """Bars with the running accuracy; a line now and then where there is no terminal."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("correct {task.fields[share]}"), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks, done, right = {}, {}, {}
        for name, problems in sets.items():
            before = [o for o in recorded(folder / "trajectories" / name) if not o.failed]
            done[name], right[name] = len(before), sum(o.score for o in before)
            total = len(problems) * settings.samples
            tasks[name] = bars.add_task(name, total=total, completed=len(before), share="-")
            if before:
                _say(console, f"{name}: {len(before)} of {total} attempts are there already")

        def advance(name: str, outcome: Outcome) -> None:
            done[name] += 1
            right[name] += 0.0 if outcome.failed else outcome.score
            share = f"{right[name] / done[name]:.1%}"
            bars.update(tasks[name], completed=done[name], share=share)
            total = len(sets[name]) * settings.samples
            if not console.is_terminal and done[name] % max(total // 10, 1) == 0:
                _say(console, f"{name}: {done[name]} of {total} attempts, correct {share}")

        yield advance


def _show(result: Evaluation, console: Console) -> None:
    for summary in result.summaries:
        console.print(_table(summary))
        if not summary.complete:
            _say(
                console,
                f"{summary.name}: {summary.failed} attempts failed for reasons that are not the model's and enter no "
                "figure; the same command tries them again",
            )
    _say(console, "report: " + ", ".join(str(path) for path in result.files.values()))


def _table(summary: Summary) -> Table:
    table = Table(title=f"{summary.name}: {summary.problems} problems, {summary.attempts} attempts")
    for column in ("figure", "value", "interval"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, estimate in summary.estimates.items():
        form = (lambda v: f"{v:.1%}") if is_share(name) else (lambda v: f"{v:.2f}")
        known = estimate.low is not None and estimate.high is not None
        table.add_row(name, form(estimate.value), f"{form(estimate.low)} to {form(estimate.high)}" if known else "-")
    return table


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _error(message: str, status: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return status
