"""Runs all checks in an order in which a later one may rest on an earlier one, and shows what they say."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from agent_rl.config import ConfigError, load
from agent_rl.doctor.findings import Finding, Level, fault, ok, warning
from agent_rl.rollout.settings import SandboxSettings
from agent_rl.training.settings import RunConfig

FIT, UNFIT = 0, 1


@dataclass(frozen=True)
class Check:
    """A check by name, and the checks without whose success it means nothing."""

    name: str
    run: Callable[[], list[Finding]]
    needs: tuple[str, ...] = ()


def examine(
    config: Path | None, overrides: Sequence[str] = (), *, skip: Collection[str] = (), as_json: bool = False
) -> int:
    """Check and print; the exit status: 0 fit, 1 not. `skip` names checks that are left out."""
    logging.getLogger("agent_rl").setLevel(logging.ERROR)  # the checks say it themselves
    found: list[Finding] = []
    for finding in findings(config, overrides, skip=skip):
        found.append(finding)
        if not as_json:
            print(line(finding), flush=True)
    if as_json:
        print(json.dumps({"fit": fit(found), "findings": [asdict(f) for f in found]}, indent=2, ensure_ascii=False))
    else:
        print(verdict(found))
    return FIT if fit(found) else UNFIT


def fit(found: Sequence[Finding]) -> bool:
    """Whether there is no fault."""
    return all(f.level is not Level.FAULT for f in found)


def line(finding: Finding) -> str:
    """A finding for the terminal."""
    text = f"{finding.level:<8} {finding.check}: {finding.sentence}"
    return text + (f"\n{'':9}-> {finding.remedy}" if finding.remedy else "")


def verdict(found: Sequence[Finding]) -> str:
    """The last line."""
    faults, warnings = (sum(f.level is level for f in found) for level in (Level.FAULT, Level.WARNING))
    if faults:
        return f"not fit: {faults} fault{'s' * (faults > 1)}, {warnings} warning{'s' * (warnings != 1)}"
    return "fit" + (f", with {warnings} warning{'s' * (warnings > 1)}" if warnings else ": nothing to complain about")


def findings(config: Path | None, overrides: Sequence[str] = (), *, skip: Collection[str] = ()) -> Iterator[Finding]:
    """All findings, as they are made. Without a configuration only the machine and the sandbox are looked at."""
    settings: RunConfig | None = None
    if config is not None or overrides:
        settings, told = check_configuration(config, overrides)
        yield from told
    failed: set[str] = set()
    for check in _checks(settings):
        if check.name in skip:
            continue
        if missing := [name for name in check.needs if name in failed]:
            failed.add(check.name)
            yield warning(check.name, f"not checked, because of {missing[0]}", "mend that first")
            continue
        for finding in _guarded(check):
            if finding.level is Level.FAULT:
                failed.add(check.name)
            yield finding


def check_configuration(config: Path | None, overrides: Sequence[str]) -> tuple[RunConfig | None, list[Finding]]:
    """Read the configuration: unknown keys, bad values, arithmetic that does not come out."""
    from agent_rl.training.plan import batch_sentence, recipe_sentence

    if config is None:
        return None, [fault("configuration", "overrides need a configuration", "agent-rl doctor CONFIG key=value")]
    try:
        settings = load(config, overrides, model=RunConfig)
        recipe = recipe_sentence(settings)
    except (ConfigError, ValueError) as error:
        return None, [fault("configuration", text) for text in str(error).splitlines()]
    return settings, [ok("configuration", f"{batch_sentence(settings)}; {recipe}")]


def _checks(config: RunConfig | None) -> list[Check]:
    from agent_rl.doctor import machine

    checks = [
        Check("python", machine.check_python),
        Check("extras", lambda: machine.check_extras(config), ("python",)),
        Check("machine", lambda: machine.check_processor(config), ("python",)),
    ]
    if config is None:
        checks.append(Check("gpu", lambda: machine.check_accelerator(None), ("python",)))
    else:
        checks += _run_checks(config)
    return [*checks, Check("sandbox", lambda: _sandbox(config), ("python",))]


def _sandbox(config: RunConfig | None) -> list[Finding]:
    from agent_rl.doctor.sandbox import check_sandbox

    return check_sandbox(SandboxSettings() if config is None else config.sandbox)


def _run_checks(config: RunConfig) -> list[Check]:
    from agent_rl.doctor import data, engine, machine, memory, model
    from agent_rl.doctor.subject import Subject

    subject = Subject(config)

    def check_model() -> list[Finding]:
        return [ok("model", f"{config.model.path}: {subject.shape.parameters / 1e6:.1f} M parameters")]

    def check_memory() -> list[Finding]:
        return memory.check_memory(config, subject.shape, *memory.memory_of_device(config.engine.device))

    return [
        Check("model", check_model, ("extras",)),
        Check("gpu", lambda: machine.check_accelerator(config, subject.shape.parameters), ("model",)),
        Check("memory", check_memory, ("model",)),
        Check("disk", lambda: machine.check_disk(config, subject.shape.parameters), ("model",)),
        Check("context", lambda: model.check_context(subject), ("model",)),
        Check("tokenizer", lambda: model.check_tokenizer(subject), ("model",)),
        Check("template", lambda: model.check_template(subject), ("tokenizer",)),
        Check("turn ends", lambda: model.check_turn_ends(subject), ("template",)),
        Check("control tokens", lambda: model.check_control_tokens(subject), ("tokenizer",)),
        Check("data", lambda: data.check_rows(subject), ("extras",)),
        Check("gold answers", lambda: data.check_golds(subject), ("data",)),
        Check("contamination", lambda: data.check_contamination(subject), ("data",)),
        Check("prompts", lambda: data.check_prompts(subject), ("data", "template")),
        Check("engine", lambda: engine.check_engine(config), ("extras",)),
        Check("weights", lambda: model.check_weights(subject), ("model", "tokenizer", "memory")),
    ]


def _guarded(check: Check) -> list[Finding]:
    """The check's findings; what its loaders raise, with a message for people, becomes a fault."""
    from agent_rl.types import InfrastructureError

    try:
        return check.run()
    except (ValueError, OSError, InfrastructureError, ImportError) as error:
        return [fault(check.name, str(error))]
