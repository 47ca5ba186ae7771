"""What a recording was made with, as hashes: a replay says at once which of them is another now."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

from agent_rl import __version__
from agent_rl.records.shards import SCHEMA

MANIFEST = "manifest.json"


def describe(*, tokenizer: Any, config: str, level: str, model: str, fingerprints: dict[str, str]) -> dict[str, Any]:
    """Versions and hashes of everything that a trajectory depends on.

    Args:
        tokenizer: a Hugging Face tokenizer.
        config: the resolved configuration as text.
        model: path or name of the policy at the start.
        fingerprints: of the model's weights and of the data.
    """
    import torch

    from agent_rl.rewards.verifier import VERSION

    return {
        "schema": SCHEMA,
        "level": level,
        "model": model,
        "agent_rl": __version__,
        "hashes": {
            "code": code_hash(),
            "config": _hash(config),
            "tokenizer": tokenizer_hash(tokenizer),
            "template": _hash(str(getattr(tokenizer, "chat_template", None))),
            **fingerprints,
        },
        "verifier": VERSION,
        "versions": _versions(),
        "threads": torch.get_num_threads(),
    }


def write(folder: Path, found: dict[str, Any]) -> None:
    """Write the manifest; when a resumed run has another one, the earlier ones are kept under `before`."""
    old = read(folder)
    if old is not None:
        before = old.pop("before", [])
        if old != found:
            before = [*before, old]
        found = {**found, **({"before": before} if before else {})}
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / (MANIFEST + ".draft")
    draft.write_text(json.dumps(found, indent=1), encoding="utf-8")
    os.replace(draft, folder / MANIFEST)


def read(folder: Path) -> dict[str, Any] | None:
    """The manifest, None if there is none."""
    path = folder / MANIFEST
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def tokenizer_hash(tokenizer: Any) -> str:
    """Of the whole tokenizer where it can be written down, else of its vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
    return _hash(text)


@cache
def code_hash() -> str:
    """Of all Python sources of `agent_rl` and `sandbox`."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for package in ("agent_rl", "sandbox"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    names = ("torch", "transformers", "tokenizers", "numpy", "sympy")
    return {"python": platform.python_version(), "machine": platform.machine(), **{n: version(n) for n in names}}
