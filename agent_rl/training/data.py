"""The problems of a run: those to train on, those held out, and nothing in both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent_rl.tasks.lengths import prompt_lengths
from agent_rl.tasks.load import load_problems
from agent_rl.tasks.overlap import separate
from agent_rl.tasks.problems import Problems
from agent_rl.tir.formats import PromptFormat
from agent_rl.training.evaluate import HeldOut
from agent_rl.training.settings import RunConfig


@dataclass(frozen=True)
class RunData:
    """What a run trains on and is measured on."""

    train: Problems
    held_out: tuple[HeldOut, ...]


def load_run_data(config: RunConfig, tokenizer: Any) -> RunData:
    """Load, filter and keep apart.

    Raises:
        FileNotFoundError, ValueError: see `agent_rl.tasks.load.load_problems`.
    """
    lengths = prompt_lengths(tokenizer, cache_dir=config.data.cache_dir)
    train = load_problems(config.data, split="train", lengths=lengths)
    held_out = tuple(
        HeldOut(name, settings, load_problems(settings.data, split="eval", lengths=lengths))
        for name, settings in config.evals.items()
    )
    train = separate(train, {h.name: h.problems for h in held_out}, config.data.on_overlap)
    return RunData(train, held_out)


def without_long_prompts(problems: Problems, form: PromptFormat, config: RunConfig) -> Problems:
    """Leave out problems whose prompt leaves no room for a turn; they are counted in `dropped`."""
    room = config.tir.max_total_tokens - config.tir.max_turn_tokens
    long = {p.id for p in problems if len(form.prompt(p.question).ids) > room}
    if not long:
        return problems
    return problems.without(long, f"prompt of more than {room} tokens leaves no room for a turn (tir.max_total_tokens)")
