"""Prompt formats: how a problem, a turn's end and an observation become token ids, without re-rendering.

A chat template is used only on placeholders: the prompt and the text between the model's turn and the next
one are read off two renders and encoded once. Sampled ids are never rendered, so the context of turn k + 1
is, by construction, the context of turn k, then the ids that were sampled, then freshly encoded ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from agent_rl.tir.observation import cut_in_the_middle, text_encoder
from agent_rl.tir.settings import TirSettings
from agent_rl.types import Origin, Segment

_QUESTION, _REPLY, _OUTPUT, _LATER = "qslotzq1", "qslotzq2", "qslotzq3", "qslotzq4"


class TemplateError(ValueError):
    """The chat template cannot carry a multi-turn trajectory; the message says why and what to set."""


class PromptFormat(Protocol):
    """Turns problems and observations into segments."""

    eos_ids: frozenset[int]
    """Ids that end a turn when sampled."""

    def prompt(self, question: str) -> Segment:
        """The first context."""
        ...

    def observation(self, text: str, sampled: tuple[int, ...], *, max_tokens: int, last: bool) -> list[Segment]:
        """What follows a turn that ran code: `separator`, `tool` and, unless `last`, another `separator`."""
        ...

    def decode(self, ids: tuple[int, ...]) -> str:
        """Text of sampled ids, for parsing and display, without the tokens that ended the turn."""
        ...

    def overhead(self) -> int:
        """Tokens that an observation adds besides its body, at most."""
        ...


@dataclass(frozen=True)
class _Frame:
    """Ids around an observation: `before` starts with what closes the model's turn."""

    before: tuple[int, ...]
    after: tuple[int, ...]


class _Format:
    """What both formats share."""

    def __init__(self, tokenizer: Any, settings: TirSettings, eos_ids: frozenset[int]):
        self._tokenizer = tokenizer
        self._settings = settings
        self._encode_foreign = text_encoder(tokenizer)
        self.eos_ids = eos_ids
        self._frame: _Frame

    def _encode_own(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: tuple[int, ...]) -> str:
        end = len(ids)
        while end and ids[end - 1] in self.eos_ids:
            end -= 1
        return self._tokenizer.decode(list(ids[:end]), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def observation(self, text: str, sampled: tuple[int, ...], *, max_tokens: int, last: bool) -> list[Segment]:
        before = self._frame.before
        if sampled and before and sampled[-1] == before[0] and sampled[-1] in self.eos_ids:
            before = before[1:]  # the model closed its turn itself
        body = cut_in_the_middle(text, max_tokens, self._encode_foreign)
        segments = [Segment(Origin.SEPARATOR, before), Segment(Origin.TOOL, tuple(body))]
        if not last:
            segments.append(Segment(Origin.SEPARATOR, self._frame.after))
        return [segment for segment in segments if segment.ids]

    def overhead(self) -> int:
        """Tokens that an observation adds besides its body."""
        return len(self._frame.before) + len(self._frame.after)


class PlainFormat(_Format):
    """No template: instruction, question, and observations under a header (base models)."""

    def __init__(self, tokenizer: Any, settings: TirSettings, eos_ids: frozenset[int]):
        super().__init__(tokenizer, settings, eos_ids)
        bos = (tokenizer.bos_token_id,) if getattr(tokenizer, "add_bos_token", False) else ()
        instruction = "" if settings.instruction_role == "none" else f"{settings.instruction}\n\n"
        self._head = bos + self._encode_own(f"{instruction}Problem: ")
        self._tail = self._encode_own("\nSolution:\n")
        self._frame = _Frame(self._encode_own(settings.observation_header), self._encode_own("\n"))

    def prompt(self, question: str) -> Segment:
        return Segment(Origin.PROMPT, (*self._head, *self._encode_foreign(question), *self._tail))


class ChatFormat(_Format):
    """The tokenizer's chat template, read off renders of placeholders.

    Raises:
        TemplateError: there is no template, it loses a message, or its later renders do not extend earlier
            ones (Qwen3-like templates strip earlier thinking) and the settings do not choose concatenation.
    """

    def __init__(self, tokenizer: Any, settings: TirSettings, eos_ids: frozenset[int]):
        super().__init__(tokenizer, settings, eos_ids)
        if not getattr(tokenizer, "chat_template", None):
            raise TemplateError("the tokenizer has no chat template; set tir.format = plain")
        self._tool_role = self._choose_tool_role()
        first = self._render(self._opening(), generate=True)
        later = self._render([*self._opening(), _assistant(_REPLY), self._tool(_OUTPUT)], generate=True)
        head, tail = _split(first, _QUESTION, "the user's message")
        if settings.non_extending_template == "refuse":
            self._refuse_unless_extending(first, later)
        self._head, self._tail = self._encode_own(head), self._encode_own(tail)
        before, after = _split(_split(later, _REPLY, "the assistant's message")[1], _OUTPUT, "the observation")
        self._frame = _Frame(self._encode_own(before), self._encode_own(after))

    def prompt(self, question: str) -> Segment:
        return Segment(Origin.PROMPT, (*self._head, *self._encode_foreign(question), *self._tail))

    def _opening(self) -> list[dict[str, str]]:
        instruction, role = self._settings.instruction, self._settings.instruction_role
        if role == "system":
            return [{"role": "system", "content": instruction}, {"role": "user", "content": _QUESTION}]
        prefix = f"{instruction}\n\n" if role == "user" else ""
        return [{"role": "user", "content": prefix + _QUESTION}]

    def _tool(self, content: str) -> dict[str, str]:
        return {"role": self._tool_role, "content": content}

    def _render(self, messages: list[dict[str, str]], *, generate: bool) -> str:
        try:
            return self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generate, **self._settings.template_kwargs
            )
        except Exception as error:
            roles = " -> ".join(m["role"] for m in messages)
            raise TemplateError(
                f"the chat template cannot render {roles}: {error}; try tir.tool_role = user, "
                "tir.instruction_role = user, or tir.format = plain"
            ) from error

    def _choose_tool_role(self) -> str:
        if self._settings.tool_role != "auto":
            return self._settings.tool_role
        self._tool_role = "tool"
        try:
            rendered = self._render([*self._opening(), _assistant(_REPLY), self._tool(_OUTPUT)], generate=True)
        except TemplateError:
            return "user"
        # A template that prints any role it is given does not know `tool`; its model has never seen it.
        return "tool" if _OUTPUT in rendered and "tool" in str(self._tokenizer.chat_template) else "user"

    def _refuse_unless_extending(self, first: str, later: str) -> None:
        thought = f"<think>\nx\n</think>\n\n{_REPLY}"
        turns = [*self._opening(), _assistant(thought), self._tool(_OUTPUT), _assistant(_LATER), self._tool(_OUTPUT)]
        even_later = self._render(turns, generate=True)
        if not later.startswith(first + _REPLY) or thought not in even_later:
            raise TemplateError(
                "the chat template rewrites earlier turns (a later render does not extend an earlier one), so a "
                "trajectory would not be what was sampled; set tir.non_extending_template = concatenate to append "
                "observations to the sampled ids all the same, or use another template"
            )


def _assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def _split(text: str, slot: str, what: str) -> tuple[str, str]:
    before, found, after = text.partition(slot)
    if not found:
        raise TemplateError(f"the chat template leaves out {what}; set tir.format = plain or use another template")
    return before, after


def prompt_format(tokenizer: Any, settings: TirSettings, eos_ids: frozenset[int] | None = None) -> _Format:
    """The format that the settings name, over this tokenizer.

    Args:
        eos_ids: ids that end a turn; by default the tokenizer's own end-of-sequence token. A model's
            generation config may name several.
    """
    if eos_ids is None:
        eos_ids = frozenset() if tokenizer.eos_token_id is None else frozenset({tokenizer.eos_token_id})
    build: Callable[..., _Format] = ChatFormat if settings.format == "chat" else PlainFormat
    return build(tokenizer, settings, eos_ids)
