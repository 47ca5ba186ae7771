"""The policy behind the path that a user types, and the settings that were recorded beside it.

A policy is trained for one form of episode: its instruction, roles and answer marks. Asked in another form it looks
far worse than it is. So a run's own settings, or those of a warm-up, are the defaults wherever its policy is played.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from agent_rl.config import ConfigError, load
from agent_rl.engines.sources import ModelError, resolve_model
from agent_rl.play.settings import PlaySettings

Kind = TypeVar("Kind", bound=PlaySettings)

INHERITED = ("tir", "rewards", "engine", "rollout", "sandbox", "threads")
"""Sections of a run's configuration that its policy is played with."""


@dataclass(frozen=True)
class Policy:
    """A policy that was found.

    `path` is what `agent_rl.engines.loading.load_model` reads, `name` what people call it, `settings` what was
    recorded beside it (empty if nothing was).
    """

    path: str
    name: str
    settings: Mapping[str, Any]


def find_policy(path: str) -> Policy:
    """The policy at `path`: a run's folder (its newest whole checkpoint), a checkpoint, or any model.

    Raises:
        ConfigError: the run has no whole checkpoint, or what was recorded cannot be read.
        ModelError: nothing is there.
    """
    folder = Path(path).expanduser()
    if (folder / "config.yaml").is_file() and not (folder / "config.json").is_file():
        return _of_run(folder)
    if folder.name == "model" and (folder.parent / "complete.json").is_file():
        folder = folder.parent
    if (folder / "complete.json").is_file() and (folder / "model").is_dir():
        return _of_checkpoint(folder)
    source = resolve_model(path)
    recipe = Path(source.location) / "recipe.json"
    name = (source.gguf_file or Path(source.location).name).removesuffix(".gguf")
    return Policy(path, name, _of_recipe(recipe) if recipe.is_file() else {})


def _of_run(run: Path) -> Policy:
    from agent_rl.learner.checkpoint import newest_complete

    newest, passed = newest_complete(run / "checkpoints")
    if newest is None:
        why = f" ({passed[0].path.name}: {passed[0].reason})" if passed else ""
        raise ConfigError(f"the run {run} has no whole checkpoint{why}; train it first, or give another model")
    return _of_checkpoint(newest)


def _of_checkpoint(checkpoint: Path) -> Policy:
    run = checkpoint.resolve().parent.parent
    recorded = run / "config.yaml"
    settings = _of_configuration(recorded) if recorded.is_file() else {}
    return Policy(str(checkpoint / "model"), f"{run.name}-{checkpoint.name}", settings)


def _of_configuration(file: Path) -> dict[str, Any]:
    """The sections of a run's resolved configuration that matter here."""
    values = _mapping(file, yaml.safe_load)
    eos_ids = (values.get("model") or {}).get("eos_ids")
    kept = {name: values[name] for name in INHERITED if name in values}
    return kept | ({"model": {"eos_ids": eos_ids}} if eos_ids else {})


def _of_recipe(file: Path) -> dict[str, Any]:
    """The episode that a warm-up was meant for."""
    tir = (_mapping(file, json.loads).get("settings") or {}).get("tir")
    return {"tir": tir} if tir else {}


def _mapping(file: Path, parse: Any) -> dict[str, Any]:
    try:
        values = parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}, which was recorded beside the policy, cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{file}, which was recorded beside the policy, holds no mapping")
    return values


def settings_for(
    kind: type[Kind],
    *,
    model: str | None,
    config: Path | None,
    overrides: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
) -> tuple[Kind, Policy]:
    """Settings in layers, later ones winning: recorded beside the policy, `config`, `given`, `overrides`.

    Args:
        model: path of the policy; None takes `model.path` of the configuration or an override.
        given: values from options of the command line, nested as in a configuration.

    Raises:
        ConfigError, ModelError: what is wrong with policy or configuration.
    """
    named = any(o.startswith("model.path=") for o in overrides)
    if model is not None and named:
        raise ConfigError(f"the model is given twice: {model!r} and an override of model.path; leave one out")
    if model is None and config is None and not named:
        raise ConfigError("name a model: a run's folder, a checkpoint, a model folder, a .gguf file or a hub name")
    with tempfile.TemporaryDirectory(prefix="agent-rl-") as scratch:
        files = [str(config.resolve())] if config is not None else []
        if model is None:
            model = load(_layers(Path(scratch), files, given or {}), overrides, model=kind).model.path
        policy = find_policy(model)
        base = Path(scratch) / "recorded.yaml"
        base.write_text(yaml.safe_dump(dict(policy.settings)), encoding="utf-8")
        top = {**(given or {}), "model": {**(given or {}).get("model", {}), "path": policy.path}}
        kept = [o for o in overrides if not o.startswith("model.path=")]
        return load(_layers(Path(scratch), [str(base), *files], top), kept, model=kind), policy


def _layers(scratch: Path, files: Sequence[str], top: Mapping[str, Any]) -> Path:
    """A configuration that extends `files`, in order, with `top` above them."""
    path = scratch / "command.yaml"
    path.write_text(yaml.safe_dump({"extends": list(files), **top}), encoding="utf-8")
    return path


__all__ = ["ModelError", "Policy", "find_policy", "settings_for"]
