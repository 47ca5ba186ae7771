"""What is examined: a run's configuration, and what it names, each loaded once and only when a check asks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from agent_rl.engines.sources import ModelError, ModelSource, resolve_model
from agent_rl.tasks.problems import Problems
from agent_rl.training.plan import ModelShape
from agent_rl.training.settings import RunConfig


@dataclass
class Subject:
    """A configuration under examination. Loading raises what the loaders raise; a check's caller tells it."""

    config: RunConfig

    @cached_property
    def source(self) -> ModelSource:
        """Where the model comes from; ModelError if it is nowhere."""
        return resolve_model(self.config.model.path)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self.source.location, **self._options)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ModelError(f"the tokenizer of {self.config.model.path!r} cannot be loaded: {error}") from error

    @cached_property
    def model_config(self) -> Any:
        """The model's configuration, without its weights."""
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(self.source.location, **self._options)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ModelError(f"the configuration of {self.config.model.path!r} cannot be read: {error}") from error

    @cached_property
    def shape(self) -> ModelShape:
        """The model's sizes."""
        from agent_rl.training.preview import model_shape

        return model_shape(self.model_config)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a turn, as the run will take them."""
        from transformers import GenerationConfig

        from agent_rl.engines.transformers import default_eos_ids

        if self.config.model.eos_ids:
            return frozenset(self.config.model.eos_ids)
        try:
            generation = GenerationConfig.from_pretrained(self.source.location)
        except OSError:  # no generation_config.json: transformers takes the model's own configuration
            generation = GenerationConfig.from_model_config(self.model_config)
        return default_eos_ids(SimpleNamespace(generation_config=generation), self.tokenizer)

    @cached_property
    def form(self) -> Any:
        """The prompt format; TemplateError if the template will not do."""
        from agent_rl.tir.formats import prompt_format

        return prompt_format(self.tokenizer, self.config.tir, self.eos_ids)

    @cached_property
    def train(self) -> Problems:
        """The problems to train on, before evaluation problems are taken out."""
        return self._problems(self.config.data, "train")

    @cached_property
    def held_out(self) -> dict[str, Problems]:
        """The held-out sets by name."""
        return {name: self._problems(settings.data, "eval") for name, settings in self.config.evals.items()}

    @cached_property
    def model(self) -> Any:
        """The model with its weights, on the CPU, in float32."""
        from transformers.utils.logging import disable_progress_bar

        from agent_rl.engines.loading import load_model

        disable_progress_bar()
        return load_model(self.config.model.path, dtype="float32", device="cpu")[0]

    @property
    def _options(self) -> dict[str, Any]:
        return {} if self.source.gguf_file is None else {"gguf_file": self.source.gguf_file}

    def _problems(self, settings: Any, split: str) -> Problems:
        from agent_rl.tasks.lengths import prompt_lengths
        from agent_rl.tasks.load import load_problems

        lengths = None
        if settings.max_prompt_tokens is not None:
            lengths = prompt_lengths(self.tokenizer, cache_dir=settings.cache_dir)
        return load_problems(settings, split=split, lengths=lengths)
