"""Settings of supervised warm-up: what is shown, to which model, for how long."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agent_rl.settings import Settings
from agent_rl.tir.settings import TirSettings


class FlawShares(Settings):
    """Share of the generated demonstrations that go wrong, by kind; the rest is right."""

    mistake: float = Field(0.10, ge=0, le=1)
    """A plausible wrong program, a chain left half-way or an error left as it is; its result in a box."""
    guess: float = Field(0.20, ge=0, le=1)
    """A number in a box, no program."""
    void: float = Field(0.12, ge=0, le=1)
    """Words with neither a program nor an answer."""
    syntax: float = Field(0.05, ge=0, le=1)
    """A program that does not compile, then 0 in a box."""

    @model_validator(mode="after")
    def _at_most_all(self) -> FlawShares:
        total = self.mistake + self.guess + self.void + self.syntax
        if total > 1:
            raise ValueError(f"the shares of flawed demonstrations add up to {total:g}; lower them to at most 1")
        return self


class FamilyDemonstrations(Settings):
    """Demonstrations on generated problem families; their programs are really run."""

    families: list[str] = Field(default_factory=list)
    """Names of families; empty means all trained ones."""
    count: int = Field(48_000, ge=1)
    """How many problems, all different, of the `train` split."""
    seed: int = 0
    """Names the stream of problems and flaws."""
    flaws: FlawShares = FlawShares()
    """How many of them go wrong."""


class JsonlDemonstrations(Settings):
    """Demonstrations from a file: one JSON object a line.

    Either `messages` (roles user, assistant, tool, as chat data has them) or `question` and `steps`
    (`text`, and `observation` where a program was run).
    """

    path: str
    """The file; `.gz` is read too."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first so many rows."""


class Gsm8kDemonstrations(Settings):
    """Demonstrations made from GSM8K's calculator marks; their programs are really run."""

    path: str
    """GSM8K's `train.jsonl`."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first so many demonstrations."""


class LlamaShape(Settings):
    """A Llama of random weights. The defaults make about 0.9 M parameters with 700 tokens."""

    hidden: int = Field(128, ge=8)
    """Width; a multiple of `heads`."""
    layers: int = Field(4, ge=1)
    heads: int = Field(4, ge=1)
    """Attention heads, each `hidden / heads` wide; serving engines want a width of 32 or more."""
    intermediate: int = Field(352, ge=8)
    """Width inside the feed-forward layers."""
    positions: int = Field(1024, ge=16)
    """Longest sequence."""
    initializer_range: float = Field(0.06, gt=0)
    """Standard deviation of initial weights. About `0.7 / sqrt(hidden)`: with the 0.02 that suits wide models,
    attention of so narrow a one begins nearly uniform, and copying numbers is learnt much later."""
    vocabulary: int = Field(704, ge=300)
    """Tokens of the byte-level tokenizer that is trained along with it, control tokens included."""

    @model_validator(mode="after")
    def _heads_divide(self) -> LlamaShape:
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError(
                f"hidden = {self.hidden} must be an even multiple of heads = {self.heads}; try hidden = "
                f"{32 * self.heads}"
            )
        return self


class SftSettings(Settings):
    """Supervised warm-up. Give `families`, `jsonl` or `gsm8k` as demonstrations, and `init` or `shape` as model."""

    output: str
    """Folder that is written: weights, tokenizer, chat template, `recipe.json`."""
    overwrite: bool = False
    """Replace files of an output folder that holds something already."""
    source: Literal["families", "jsonl", "gsm8k"] = "families"
    """Where the demonstrations come from; the section of the same name says more."""
    families: FamilyDemonstrations = FamilyDemonstrations()
    jsonl: JsonlDemonstrations | None = None
    gsm8k: Gsm8kDemonstrations | None = None
    init: str | None = None
    """Model and tokenizer to start from: folder, hub name, GGUF file or `package://PACKAGE/FILE`; None starts from
    nothing with `shape`."""
    shape: LlamaShape = LlamaShape()
    """Model and tokenizer that are made when `init` is not given."""
    tir: TirSettings = TirSettings()
    """The episode that the policy is meant for: prompts and observations are rendered exactly as there."""
    steps: int = Field(700, ge=1)
    """Optimiser steps; the length of a run is never counted in minutes, so that it can be repeated."""
    clean_steps: int = Field(0, ge=0)
    """The first so many steps show right demonstrations only: how to do things is learnt before what to choose."""
    batch_size: int = Field(64, ge=1)
    """Demonstrations a step."""
    micro_batch_size: int = Field(16, ge=1)
    """Demonstrations a forward pass, of like length; gradients of a batch's passes are added up."""
    lr: float = Field(2e-3, gt=0)
    """Highest learning rate."""
    final_lr_share: float = Field(0.05, ge=0, le=1)
    """The learning rate falls linearly to this share of `lr`."""
    warmup_steps: int = Field(20, ge=0)
    """Steps over which the learning rate rises linearly from 0."""
    weight_decay: float = Field(0.01, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    max_tokens: int = Field(1024, ge=16)
    """Longer demonstrations are left out and counted."""
    seed: int = 0
    """Seeds weights and the order of batches."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the forward pass (autocast); weights and optimiser stay in float32."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; None leaves torch's choice."""

    @model_validator(mode="after")
    def _complete(self) -> SftSettings:
        if self.clean_steps > self.steps:
            raise ValueError(f"clean_steps = {self.clean_steps} exceeds steps = {self.steps}; lower it")
        if self.source in ("jsonl", "gsm8k"):
            if getattr(self, self.source) is None:
                raise ValueError(f"source = {self.source} needs the section {self.source} with a path")
            if self.init is None:
                raise ValueError(f"source = {self.source} needs init: the model to start from")
        if self.init is None and self.max_tokens > self.shape.positions:
            raise ValueError(
                f"max_tokens = {self.max_tokens} exceeds shape.positions = {self.shape.positions}; lower the first "
                "or raise the second"
            )
        if self.init is None and self.tir.format != "chat":
            raise ValueError("a tokenizer from nothing has a chat template: use tir.format = chat, or give init")
        return self
