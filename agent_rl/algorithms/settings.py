"""What a configuration says about policy optimisation: a preset and the deviations from it (no torch here).

    method: {preset: ctpo_cppo, clip: {eps_hi: 0.06}, prefix_budget: {adaptive: true, delta_b: 0.02}}

An override names only what differs. Giving another `kind` starts from that kind's own defaults; a key that
the chosen kind does not read is refused. A gate is switched off with `prefix_budget: off` and on with `on`.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any, get_args

from pydantic import Field, JsonValue, ValidationError, field_validator, model_validator

from agent_rl.algorithms import choices
from agent_rl.algorithms.choices import Recipe
from agent_rl.algorithms.presets import PRESETS
from agent_rl.settings import Settings

Overrides = dict[str, JsonValue]

_CLIPS: dict[str, type[Settings]] = {
    member.model_fields["kind"].default: member for member in get_args(get_args(choices.Clip)[0])
}
_GATES: dict[str, type[Settings]] = {
    "prefix_budget": choices.PrefixBudget,
    "divergence_mask": choices.DivergenceMask,
    "sequence_mask": choices.SequenceMask,
}
_PARTS: dict[str, type[Settings]] = {
    "ratio": choices.Ratio,
    "mismatch": choices.Mismatch,
    "advantage": choices.Advantage,
    "aggregation": choices.Aggregation,
    "reference_kl": choices.ReferenceKl,
    "entropy": choices.Entropy,
}


class MethodSettings(Settings):
    """A method by name, with optional overrides of its parts. See docs/algorithms.md for every field."""

    preset: str = "ctpo_cppo"
    """Preset name, or `package.module:name` of a loss function or `Recipe` of your own."""
    ratio: Overrides | None = None
    """Overrides of the ratio: kind, anchor."""
    clip: Overrides | None = None
    """Overrides of the clip: kind and that kind's own fields (eps_lo, eps_hi, dual, ...)."""
    prefix_budget: Overrides | bool | None = None
    """Overrides of CPPO's gate; `off` removes it, `on` adds it with its defaults."""
    divergence_mask: Overrides | bool | None = None
    """Overrides of DPPO's gate; `off` removes it, `on` adds it with its defaults."""
    sequence_mask: Overrides | bool | None = None
    """Overrides of TRM's gate; `off` removes it, `on` adds it with its defaults."""
    mismatch: Overrides | None = None
    """Overrides of the sampler-trainer correction: kind, cap, lo, hi."""
    advantage: Overrides | None = None
    """Overrides of the advantage estimator: kind, eps, void_in_statistics, drop_dead_groups."""
    aggregation: Overrides | None = None
    """Overrides of the aggregation: mode, horizon."""
    reference_kl: Overrides | None = None
    """Overrides of the reference KL penalty: beta, estimator."""
    entropy: Overrides | None = None
    """Overrides of the entropy bonus: coefficient."""
    log_ratio_clamp: float | None = Field(None, gt=0)
    """Bound on a token's log-ratio; null = the preset's."""
    cumulative_clamp: float | None = Field(None, gt=0)
    """Upper bound of the cumulative log-ratio; null = the preset's."""
    options: Overrides = Field(default_factory=dict)
    """Free settings handed to a loss function of your own as `settings.options`."""

    @field_validator("prefix_budget", "divergence_mask", "sequence_mask", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return {"off": False, "on": True}.get(value, value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _known(self) -> MethodSettings:
        if ":" not in self.preset:
            resolve(self)
        return self


def resolve(method: MethodSettings) -> Recipe:
    """The whole method behind a configuration. Imports no torch unless an import path does.

    Raises ValueError for an unknown preset (with the nearest name), an unknown key, a value out of range or a
    combination that contradicts itself.
    """
    base = _imported(method.preset) if ":" in method.preset else _preset(method.preset)
    changed: dict[str, Any] = {}
    if method.clip is not None:
        changed["clip"] = _merged_clip(base, method.clip)
    for name, cls in _PARTS.items():
        override = getattr(method, name)
        if override is not None:
            changed[name] = _merged(name, cls, getattr(base, name), override)
    for name, cls in _GATES.items():
        override = getattr(method, name)
        if override is not None:
            changed[name] = _gate(name, cls, getattr(base, name), override)
    for name in ("log_ratio_clamp", "cumulative_clamp"):
        if getattr(method, name) is not None:
            changed[name] = getattr(method, name)
    if method.options:
        if base.function is None:
            raise ValueError(f"method.options are read by loss functions of your own; {base.name!r} reads none")
        changed["options"] = {**base.options, **method.options}
    return Recipe(**{**{name: getattr(base, name) for name in Recipe.model_fields}, **changed})


def _preset(name: str) -> Recipe:
    if name not in PRESETS:
        raise ValueError(
            f"method.preset={name!r} is not known{_nearest(name, PRESETS)} "
            f"Known presets: {', '.join(sorted(PRESETS))}; a method of your own is given as 'package.module:name'."
        )
    return PRESETS[name]


def _imported(path: str) -> Recipe:
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"method.preset={path!r} cannot be imported: {error}") from error
    if isinstance(found, Recipe):
        return found
    if not callable(found):
        raise ValueError(f"method.preset={path!r} is a {type(found).__name__}; expected a loss function or a Recipe")
    return Recipe(name=path, source="given by import path", function=path)


def _merged_clip(base: Recipe, override: Overrides) -> Settings:
    kind = override.get("kind", base.clip.kind)
    if kind not in _CLIPS:
        near = _nearest(str(kind), _CLIPS)
        raise ValueError(f"method.clip.kind={kind!r} is not known{near} One of: {', '.join(_CLIPS)}")
    return _merged("clip", _CLIPS[kind], base.clip, override)


def _gate(name: str, cls: type[Settings], current: Settings | None, override: Overrides | bool) -> Settings | None:
    if override is False:
        return None
    return _merged(name, cls, current, {} if override is True else override)


def _merged(name: str, cls: type[Settings], current: Settings | None, override: Overrides) -> Settings:
    for key in override:
        if key not in cls.model_fields:
            kind = cls.model_fields["kind"].default if name == "clip" else None
            where = f"method.{name}" + (f" (kind {kind})" if kind else "")
            raise ValueError(
                f"{where} has no setting {key!r}{_nearest(key, cls.model_fields)} It has: {', '.join(cls.model_fields)}"
            )
    keeps = isinstance(current, cls) and override.get("kind", getattr(current, "kind", None)) == getattr(
        current, "kind", None
    )
    values = {**(current.model_dump() if keeps else {}), **override}
    try:
        return cls(**values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["method", name, *map(str, first["loc"])])
        raise ValueError(f"{where}={first['input']!r}: {first['msg']}") from error


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else "."
