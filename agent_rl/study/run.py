"""Run a study: one process a run, so that no run inherits anything of another. Started again, it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from agent_rl.config import ConfigError, load
from agent_rl.study.settings import StudySettings
from agent_rl.study.table import Result, markdown, summarise
from agent_rl.training.run_dir import CONFIG, RunDir
from agent_rl.training.settings import RunConfig

DONE, FAILED = 0, 1
COST = "cost.json"
WITHOUT_TOOLS = "without_tools"


@dataclass(frozen=True)
class Member:
    """One run of a study."""

    variant: Mapping[str, Any]
    seed: int
    folder: Path

    @property
    def label(self) -> str:
        return ", ".join(map(str, self.variant.values()))


def members(settings: StudySettings) -> list[Member]:
    """All runs: the first seed of every variant first, so that a study that is stopped early still compares."""
    found = []
    for seed in settings.seeds:
        for variant in settings.variants():
            name = "-".join("".join(c if c.isalnum() else "_" for c in str(v)) for v in variant.values())
            found.append(Member(variant, seed, Path(settings.folder) / f"{name}-seed{seed}"))
    return found


def study(settings: StudySettings, console: Console | None = None) -> int:
    """Run what is not yet there and write `study.md` and `study.json`; 1 if a run failed.

    Raises:
        ConfigError: a run's configuration is not valid.
    """
    console = console or Console()
    todo = members(settings)
    # all of them now, so that a mistake in the last variant is told before the first is run
    configs = [load(settings.base, _overrides(settings, member), model=RunConfig) for member in todo]
    Path(settings.folder).mkdir(parents=True, exist_ok=True)
    failed = 0
    for number, (member, config) in enumerate(zip(todo, configs, strict=True), start=1):
        where = f"{number} of {len(todo)}: {member.label}, seed {member.seed}"
        if finished(member, config) and not _lacks_without_tools(settings, member, config):
            console.print(f"{where}: is there", highlight=False)
            continue
        console.print(f"{where}: runs, log in {member.folder}.log", highlight=False)
        if not _make(settings, member, config):
            failed += 1
            console.print(f"{where}: failed, see the end of {member.folder}.log", style="red", highlight=False)
        write(settings, todo)
    console.print(write(settings, todo), highlight=False, markup=False)
    return FAILED if failed else DONE


def _make(settings: StudySettings, member: Member, config: RunConfig) -> bool:
    """Train, and measure without tools; whether both went well."""
    if not finished(member, config):
        command = ["train", "--resume", str(member.folder)] if (member.folder / CONFIG).is_file() else [
            "train", settings.base, *_overrides(settings, member),
        ]  # fmt: skip
        if not _agent_rl(command, member):
            return False
    if not _lacks_without_tools(settings, member, config):
        return True
    name, held_out = next(iter(config.evals.items()))
    measurement = {
        "data": {name: held_out.data.model_dump(mode="json")},
        "samples": max(held_out.samples, 1),
        "temperature": config.temperature,
        "max_turns": 1,
    }
    file = member.folder / f"{WITHOUT_TOOLS}.yaml"
    file.write_text(yaml.safe_dump({"evaluation": measurement}, sort_keys=False), encoding="utf-8")
    output = str(member.folder / WITHOUT_TOOLS)
    return _agent_rl(["eval", str(member.folder), "--config", str(file), "--output", output], member)


def _overrides(settings: StudySettings, member: Member) -> list[str]:
    own = {"name": member.folder.name, "runs_dir": str(member.folder.parent), "seed": member.seed}
    together = {**settings.overrides, **member.variant, **own}
    return [f"{key}={json.dumps(value)}" for key, value in together.items()]


def _agent_rl(arguments: Sequence[str], member: Member) -> bool:
    """Run a command of ours to its end, its output in the member's log and its processor time on the bill."""
    before = os.times()
    with open(f"{member.folder}.log", "a", encoding="utf-8") as log:
        log.write(f"$ agent-rl {' '.join(arguments)}\n")
        log.flush()
        command = [sys.executable, "-m", "agent_rl.cli", *arguments]
        status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    after = os.times()
    if arguments[0] == "train" and member.folder.is_dir():
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        bill = member.folder / COST
        earlier = json.loads(bill.read_text())["cpu_s"] if bill.exists() else 0.0
        bill.write_text(json.dumps({"cpu_s": earlier + spent}))
    return status == 0


def finished(member: Member, config: RunConfig) -> bool:
    """Whether all steps were made and measured."""
    if not (member.folder / CONFIG).is_file():
        return False
    return any(row["step"] == config.steps and _accuracies(row) for row in RunDir(member.folder).metrics())


def _accuracies(row: Mapping[str, Any]) -> dict[str, float]:
    return {key: value for key, value in row.items() if "/accuracy_" in key}


def _lacks_without_tools(settings: StudySettings, member: Member, config: RunConfig) -> bool:
    """Whether the measurement without tools is wanted, can be made and is not there."""
    return settings.without_tools and bool(config.evals) and _without_tools(member) is None


def _without_tools(member: Member) -> float | None:
    report = member.folder / WITHOUT_TOOLS / "report.json"
    if not report.is_file():
        return None
    (found,) = json.loads(report.read_text())["sets"]
    return next(e["value"] for name, e in found["estimates"].items() if name.startswith("avg@"))


def result_of(member: Member) -> Result | None:
    """What a finished run came to; None while it has no step."""
    if not (member.folder / CONFIG).is_file():
        return None
    rows = list(RunDir(member.folder).metrics())
    steps = [row for row in rows if "time/step" in row]
    measured = [row for row in rows if _accuracies(row)]
    if not steps or not measured:
        return None
    figures = {f"start {key}": value for key, value in _accuracies(measured[0]).items()}
    figures |= _accuracies(measured[-1])
    for name, key in (("clipped", "policy/clip_rate"), ("gated", "policy/mask_rate")):
        figures[name] = sum(row.get(key, 0.0) for row in steps) / len(steps)
    if (without := _without_tools(member)) is not None:
        figures["without tools"] = without
    figures["minutes"] = sum(row["time/step"] for row in steps) / 60
    bill = member.folder / COST
    if bill.exists():
        figures["processor minutes"] = json.loads(bill.read_text())["cpu_s"] / 60
    return Result(member.label, member.seed, figures)


def write(settings: StudySettings, runs: Sequence[Member]) -> str:
    """Write the table of what there is so far; returns it."""
    folder = Path(settings.folder)
    results = [r for r in map(result_of, runs) if r is not None]
    rows = summarise(results)
    text = markdown(rows, varied=", ".join(settings.vary), seeds=settings.seeds)
    (folder / "study.md").write_text(text, encoding="utf-8")
    whole = {"settings": settings.model_dump(mode="json"), "runs": [asdict(r) for r in results]}
    (folder / "study.json").write_text(json.dumps(whole, indent=1), encoding="utf-8")
    return text


def load_study(path: Path, overrides: Sequence[str]) -> StudySettings:
    """The settings of a study file; ConfigError if `base` is not there."""
    settings = load(path, overrides, model=StudySettings)
    if not Path(settings.base).is_file():
        raise ConfigError(f"base = {settings.base!r}: there is no such file (it is looked up from the current folder)")
    return settings
