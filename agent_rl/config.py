"""Configuration files: YAML with `extends`, dotted overrides, unknown keys refused with the nearest name.

A configuration is one YAML mapping. `extends: other.yaml` (or a list; later ones win) merges it over other
files, relative to its own folder; an override such as `tir.max_turns=5` replaces what stands under its key.
What comes out is a frozen pydantic model, and `dump` writes it in full, so that a run's folder says exactly
what ran.
"""

from __future__ import annotations

import difflib
import types as pytypes
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key, the value and the remedy."""


def load(path: str | Path, overrides: Sequence[str] = (), *, model: type[Model]) -> Model:
    """Read a configuration file, apply overrides, validate.

    Raises:
        ConfigError: missing file, broken YAML, an `extends` cycle, an unknown key, or a bad value.
    """
    values = _read(Path(path), ())
    for override in overrides:
        _apply(values, override)
    return validate(values, model=model)


def validate(values: Mapping[str, Any], *, model: type[Model]) -> Model:
    """Build the model; every fault found is told in one message."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(fault, model) for fault in error.errors())) from None


def dump(config: BaseModel) -> str:
    """The resolved configuration as YAML, every default spelled out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _read(path: Path, chain: tuple[Path, ...]) -> dict[str, Any]:
    path = path.resolve()
    if path in chain:
        raise ConfigError("extends goes in a circle: " + " -> ".join(str(p) for p in (*chain, path)))
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror or error}") from None
    try:
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of keys to values, not a {type(values).__name__}")
    bases = values.pop("extends", [])
    merged: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        _merge(merged, _read(path.parent / base, (*chain, path)))
    _merge(merged, values)
    return merged


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _apply(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"override {override!r} must look like key.subkey=value")
    try:
        value = yaml.safe_load(text) if text else ""
    except yaml.YAMLError as error:
        raise ConfigError(f"the value of override {override!r} is not valid YAML: {error}") from None
    *parents, leaf = key.split(".")
    for parent in parents:
        child = values.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"override {override!r}: {parent} is the value {child!r}, not a section")
        values = child
    values[leaf] = value


def _explain(fault: Any, model: type[BaseModel]) -> str:
    path = [str(part) for part in fault["loc"]]
    name = ".".join(path) or "configuration"
    if fault["type"] != "extra_forbidden":
        value = "" if isinstance(fault["input"], dict) else f" = {fault['input']!r}"
        return f"{name}{value}: {fault['msg'].removeprefix('Value error, ')}"
    return f"unknown key {name!r}{_suggestion(path, model)}"


def _suggestion(path: list[str], model: type[BaseModel]) -> str:
    """` (did you mean tir.max_turns?)`: the nearest name in the same section, else anywhere."""
    section = _section(model, path[:-1])
    known = sorted(section.model_fields) if section else []
    near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {'.'.join([*path[:-1], near[0]])!r}?"
    everywhere = {key.rsplit(".", 1)[-1]: key for key in keys(model)}
    near = difflib.get_close_matches(path[-1], everywhere, n=1, cutoff=0.75)
    if near:
        return f"; did you mean {everywhere[near[0]]!r}?"
    return f"; known here: {', '.join(known)}" if known else ""


def _section(model: type[BaseModel], path: Sequence[str]) -> type[BaseModel] | None:
    section: type[BaseModel] | None = model
    for part in path:
        field = section.model_fields.get(part) if section else None
        section = _model_in(field.annotation) if field else None
    return section


def keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every dotted key that a configuration of this model may hold."""
    found: list[str] = []
    for name, field in model.model_fields.items():
        found.append(prefix + name)
        if inner := _model_in(field.annotation):
            found += keys(inner, f"{prefix}{name}.")
    return found


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, pytypes.UnionType):
        return next((m for m in map(_model_in, typing.get_args(annotation)) if m), None)
    return None
