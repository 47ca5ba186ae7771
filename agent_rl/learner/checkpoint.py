"""Checkpoints: one directory each, there as a whole or not at all.

    step-00000042/
      model/                 weights, configuration and tokenizer, loadable by `from_pretrained`
      trainable.safetensors  adapters, when adapters are what is trained
      optimizer.safetensors  AdamW's moments by parameter name
      state.json             counters, random-number states, fingerprints, and the trainer's own `progress`
      complete.json          written last: schema version, size and SHA-256 of every other file

Everything is written and flushed under a temporary name and renamed at the end, so that a process killed at
any moment leaves either the whole checkpoint or none.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import safe_open
from safetensors.torch import save_file

from agent_rl.learner import sharding
from agent_rl.learner.durable import flush_directory, flush_tree, sha256_of
from agent_rl.learner.randomness import random_state, restore_random_state
from agent_rl.learner.settings import CheckpointSettings
from agent_rl.learner.update import Learner

SCHEMA = 1
MARKER = "complete.json"
_NAME = re.compile(r"step-(\d{8,})")


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used; the message says why and what to do."""


class Tokenizer(Protocol):
    """What is asked of a tokenizer here."""

    def save_pretrained(self, save_directory: str) -> Any:
        """Write the tokenizer's files into a folder."""
        ...


@dataclass(frozen=True, slots=True)
class Ignored:
    """A directory that was not used, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Restored:
    """What `load` hands back to the trainer."""

    step: int
    progress: dict[str, Any]


def save(
    directory: Path,
    step: int,
    learner: Learner,
    tokenizer: Tokenizer | None,
    progress: Mapping[str, Any],
    *,
    fingerprints: Mapping[str, str],
    score: float | None = None,
    retention: CheckpointSettings | None = None,
) -> Path:
    """Write `directory/step-NNNNNNNN`, then drop what `retention` does not keep. All ranks call it.

    Args:
        progress: JSON of the trainer's: data order, step, weight version, recorder position.
        fingerprints: name -> fingerprint of what a resumed run must find unchanged (data, base model).
        score: larger is better, for `keep_best`.
    """
    target = directory / f"step-{step:08d}"
    randomness = sharding.gather(random_state())
    weights = {name: _portable(tensor) for name, tensor in learner.full_state()}
    trainable = _trainable(learner) if learner.settings.lora is not None else {}
    moments = _moments(learner)
    if sharding.rank() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(directory)
        draft = directory / f".draft-{target.name}-{uuid.uuid4().hex[:8]}"
        draft.mkdir()
        _write_model(draft / "model", learner, tokenizer, weights)
        if trainable:
            save_file(trainable, draft / "trainable.safetensors")
        save_file(moments, draft / "optimizer.safetensors")
        state = {
            "step": step,
            "updates": learner.updates,
            "skipped": learner.skipped,
            "skipped_in_row": learner.skipped_in_row,
            "fingerprints": dict(fingerprints),
            "random": randomness,
            "score": score,
            "progress": dict(progress),
        }
        (draft / "state.json").write_text(json.dumps(state))
        _publish(draft, target)
        if retention is not None:
            retire(directory, retention)
    sharding.gather(None)
    return target


def newest_complete(directory: Path) -> tuple[Path | None, list[Ignored]]:
    """The checkpoint with the highest step that is whole, and what was passed over, newest first, with reasons.

    Sizes and SHA-256 of every file are checked against the marker.
    """
    ignored: list[Ignored] = []
    for path in _drafts(directory):
        ignored.append(Ignored(path, "it was still being written when its process ended"))
    for _, path in sorted(_named(directory), reverse=True):
        reason = _flaw(path)
        if reason is None:
            return path, ignored
        ignored.append(Ignored(path, reason))
    return None, ignored


def load(path: Path, learner: Learner, fingerprints: Mapping[str, str]) -> Restored:
    """Put weights, moments, counters and random-number states of `path` back. All ranks call it.

    Raises CheckpointError if the checkpoint is not whole, if a fingerprint differs from the one it was made
    with, if the number of ranks differs, or if its parameters are not the learner's.
    """
    flaw = _flaw(path)
    if flaw is not None:
        raise CheckpointError(f"checkpoint {path}: {flaw}")
    state = json.loads((path / "state.json").read_text())
    _compare_fingerprints(path, state["fingerprints"], fingerprints)
    if len(state["random"]) != sharding.ranks():
        raise CheckpointError(
            f"checkpoint {path} was made by {len(state['random'])} ranks and is resumed by {sharding.ranks()}; "
            "use as many"
        )
    _load_weights(path, learner)
    _load_moments(path, learner)
    learner.updates = state["updates"]
    learner.skipped = state["skipped"]
    learner.skipped_in_row = state["skipped_in_row"]
    restore_random_state(state["random"][sharding.rank()])
    return Restored(state["step"], state["progress"])


def retire(directory: Path, settings: CheckpointSettings) -> list[Path]:
    """Remove the complete checkpoints that `settings` does not keep, oldest first; returns those removed."""
    whole = sorted((step, path) for step, path in _named(directory) if (path / MARKER).is_file())
    keep = {path for _, path in whole[-settings.keep_last :]}
    if settings.keep_every is not None:
        keep |= {path for step, path in whole if step % settings.keep_every == 0}
    scores = {path: json.loads((path / "state.json").read_text())["score"] for _, path in whole}
    scored = [path for _, path in whole if scores[path] is not None]
    if settings.keep_best and scored:
        keep.add(max(scored, key=lambda path: scores[path]))
    removed = [path for _, path in whole if path not in keep]
    for path in removed:
        _remove(path)
    return removed


def _publish(draft: Path, target: Path) -> None:
    """Mark `draft` complete, flush it to disk, and give it its name, replacing an older one of that name."""
    files = {
        str(file.relative_to(draft)): {"bytes": file.stat().st_size, "sha256": sha256_of(file)}
        for file in sorted(draft.rglob("*"))
        if file.is_file()
    }
    (draft / MARKER).write_text(json.dumps({"schema": SCHEMA, "files": files}, indent=1))
    flush_tree(draft)
    if target.exists():
        _remove(target)
    draft.rename(target)
    flush_directory(target.parent)


def _remove(path: Path) -> None:
    """Rename first, so that a half-removed checkpoint never carries a checkpoint's name."""
    doomed = path.with_name(f".draft-removed-{path.name}-{uuid.uuid4().hex[:8]}")
    path.rename(doomed)
    shutil.rmtree(doomed)


def _drafts(directory: Path) -> list[Path]:
    return sorted(directory.glob(".draft-step-*")) if directory.is_dir() else []


def _clear_leftovers(directory: Path) -> None:
    """A run directory has one writer, so whatever is still a draft belongs to a process that is gone."""
    for path in directory.glob(".draft-*"):
        shutil.rmtree(path)


def _named(directory: Path) -> list[tuple[int, Path]]:
    if not directory.is_dir():
        return []
    matches = [(_NAME.fullmatch(path.name), path) for path in directory.iterdir() if path.is_dir()]
    return [(int(match.group(1)), path) for match, path in matches if match]


def _flaw(path: Path) -> str | None:
    """Why `path` is no usable checkpoint, or None."""
    marker = path / MARKER
    if not marker.is_file():
        return f"it has no {MARKER}: it is not whole"
    try:
        described = json.loads(marker.read_text())
        schema, files = described["schema"], described["files"]
    except (ValueError, KeyError, TypeError) as error:
        return f"its {MARKER} cannot be read ({error})"
    if schema != SCHEMA:
        other = "a newer" if schema > SCHEMA else "an older"
        return (
            f"it was written by {other} version (schema {schema}; this one reads {SCHEMA}): "
            "use the version that wrote it"
        )
    for name, expected in files.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != expected["bytes"]:
            return f"its file {name} is missing or has another size"
        if sha256_of(file) != expected["sha256"]:
            return f"its file {name} has another SHA-256 than when it was written"
    return None


def _compare_fingerprints(path: Path, then: Mapping[str, str], now: Mapping[str, str]) -> None:
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            raise CheckpointError(
                f"checkpoint {path} was made with another {name} (fingerprint {then.get(name)}, now {now.get(name)}); "
                f"resume with the {name} it was made with, or start a new run"
            )


def _write_model(folder: Path, learner: Learner, tokenizer: Tokenizer | None, weights: dict[str, torch.Tensor]) -> None:
    config = copy.deepcopy(learner.model.config)
    config.architectures = [type(learner.model).__name__]
    config.dtype = torch.float32
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config  # the weights are no longer quantised
    folder.mkdir()
    config.save_pretrained(folder)
    if learner.model.generation_config is not None:
        learner.model.generation_config.save_pretrained(folder)
    save_torch_state_dict(weights, folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(str(folder))


def _portable(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, with a storage of its own size (a gathered one may be padded). Only rank 0 keeps it."""
    if sharding.rank() != 0:
        return tensor.new_empty(0)
    found = tensor.cpu().contiguous()
    return found if found.untyped_storage().nbytes() == found.nbytes else found.clone()


def _parameters(learner: Learner) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in learner.model.named_parameters() if p.requires_grad}


def _trainable(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: _portable(sharding.whole(p)) for name, p in _parameters(learner).items()}


def _moments(learner: Learner) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, parameter in _parameters(learner).items():
        for kind, value in learner.optimizer.state.get(parameter, {}).items():
            found[f"{name}/{kind}"] = _portable(sharding.whole(value))
    return found


def _load_weights(path: Path, learner: Learner) -> None:
    if learner.settings.lora is not None:
        files, wanted = [path / "trainable.safetensors"], _parameters(learner)
    else:
        files = sorted((path / "model").glob("*.safetensors"))
        wanted = {name: t for name, t in learner.model.state_dict(keep_vars=True).items()}
    loaded: set[str] = set()
    owners = {id(tensor) for tensor in wanted.values()}
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                if name not in wanted:
                    raise CheckpointError(f"checkpoint {path} holds {name!r}, which the model does not have")
                full = tensors.get_tensor(name)
                if full.shape != wanted[name].shape:
                    raise CheckpointError(
                        f"checkpoint {path}: {name} has shape {tuple(full.shape)}, "
                        f"the model's {tuple(wanted[name].shape)}"
                    )
                with torch.no_grad():
                    wanted[name].copy_(sharding.like(full, wanted[name]))
                loaded.add(name)
                owners.discard(id(wanted[name]))
    if owners:
        missing = sorted(name for name, tensor in wanted.items() if id(tensor) in owners)
        raise CheckpointError(f"checkpoint {path} lacks {len(missing)} of the model's weights, {missing[0]!r} first")


def _load_moments(path: Path, learner: Learner) -> None:
    parameters = _parameters(learner)
    learner.optimizer.state.clear()
    with safe_open(path / "optimizer.safetensors", framework="pt") as tensors:
        for key in tensors.keys():  # noqa: SIM118 - not a mapping
            name, _, kind = key.rpartition("/")
            if name not in parameters:
                raise CheckpointError(f"checkpoint {path} has optimiser state of {name!r}, which is not trained now")
            value, parameter = tensors.get_tensor(key), parameters[name]
            placed = value.to(parameter.device) if kind == "step" else sharding.like(value, parameter)
            learner.optimizer.state[parameter][kind] = placed
