"""Prompt lengths in tokens, measured once per (tokenizer, prompt form, data) and kept on disk."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_rl.tasks.problems import Problems
from agent_rl.types import Problem

_BATCH = 1000


def question_only(problem: Problem) -> str:
    """The plainest prompt: the question itself."""
    return problem.question


def prompt_lengths(
    tokenizer: Any,
    *,
    render: Callable[[Problem], str] = question_only,
    render_name: str = "question",
    cache_dir: str | Path | None = None,
) -> Callable[[Problems], list[int]]:
    """A measure for `load_problems(..., lengths=...)`.

    Args:
        tokenizer: a transformers tokenizer; texts are encoded without special tokens, as prompts are.
        render: the prompt of a problem, with its template.
        render_name: names the prompt form in the cache; change it whenever `render` changes.
        cache_dir: folder of the cache; default `$XDG_CACHE_HOME/agent-rl`.
    """
    folder = Path(cache_dir or _default_cache()).expanduser() / "lengths"
    identity = _tokenizer_identity(tokenizer)

    def lengths(problems: Problems) -> list[int]:
        key = hashlib.sha256(f"{identity}/{render_name}/{problems.fingerprint}".encode()).hexdigest()[:32]
        file = folder / f"{key}.json"
        if file.is_file():
            cached = json.loads(file.read_text())
            if len(cached) == len(problems):
                return cached
        counts: list[int] = []
        for start in range(0, len(problems), _BATCH):
            texts = [render(p) for p in problems[start : start + _BATCH]]
            counts += [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
        _write(file, json.dumps(counts))
        return counts

    return lengths


def _tokenizer_identity(tokenizer: Any) -> str:
    """Changes when the tokenizer's vocabulary, merges or added tokens do."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        text = backend.to_str()
    else:
        text = json.dumps(sorted(tokenizer.get_vocab().items()), ensure_ascii=True)
    return hashlib.sha256(f"{type(tokenizer).__name__}/{text}".encode()).hexdigest()


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "agent-rl"


def _write(file: Path, text: str) -> None:
    """Replace a file in one step, so that two runs that start together never read half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as temporary:
        temporary.write(text)
    os.replace(temporary.name, file)
