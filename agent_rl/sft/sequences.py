"""Dialogues as token ids with a loss mask, built from the same parts as an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_rl.sft.dialogue import Dialogue
from agent_rl.tir.formats import PromptFormat


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """Token ids, and for each whether the model is to learn to write it."""

    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    flawed: bool = False


def training_sequence(
    dialogue: Dialogue, tokenizer: Any, form: PromptFormat, *, end: int, max_observation_tokens: int
) -> TrainingSequence:
    """Render a dialogue as the episode would have recorded it.

    A turn that runs code ends with its closing fence, where generation stops; the tokens that close it for
    the template are not learnt. A last turn without code ends with `end`, which is.

    Args:
        end: the token that ends a turn.
        max_observation_tokens: as in the episode's settings.
    """
    ids: list[int] = []
    mask: list[bool] = []

    def append(part: Sequence[int], learnt: bool) -> None:
        ids.extend(part)
        mask.extend([learnt] * len(part))

    append(form.prompt(dialogue.question).ids, False)
    for turn in dialogue.turns:
        written = tuple(tokenizer.encode(turn.text, add_special_tokens=False))
        if turn.observation is None:
            written = (*written, end)
        append(written, True)
        if turn.observation is not None:
            last = turn is dialogue.turns[-1]
            for segment in form.observation(turn.observation, written, max_tokens=max_observation_tokens, last=last):
                append(segment.ids, False)
    return TrainingSequence(tuple(ids), tuple(mask), dialogue.flawed)
