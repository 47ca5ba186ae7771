"""The shipped policy: small, complete, made by the shipped recipe, and fit for the episode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import agent_rl
from agent_rl.sft.settings import SftSettings
from agent_rl.tasks.families import generate
from agent_rl.tir.formats import prompt_format
from agent_rl.tir.settings import TirSettings
from agent_rl.types import Origin

PACKAGE = Path(agent_rl.__file__).parent
POLICY = PACKAGE / "assets" / "quickstart"
RECIPE = PACKAGE.parent / "configs" / "quickstart_seed.yaml"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(POLICY)


def test_it_is_at_most_4_mb_with_all_its_files() -> None:
    files = {f.name: f.stat().st_size for f in POLICY.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "recipe.json"} <= set(files)
    assert sum(files.values()) <= 4_000_000


def test_its_recipe_is_the_shipped_configuration() -> None:
    if not RECIPE.is_file():
        pytest.skip("configs/ is part of the source tree, not of an installed package")
    told = SftSettings.model_validate(yaml.safe_load(RECIPE.read_text()))
    made_by = SftSettings.model_validate(json.loads((POLICY / "recipe.json").read_text())["settings"])
    placement = {"output": told.output, "overwrite": told.overwrite, "threads": told.threads}
    assert made_by.model_copy(update=placement) == told


def test_it_is_a_small_llama_with_heads_that_engines_serve(tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32)
    assert model.config.model_type == "llama" and model.config.head_dim == 32
    assert 0.7e6 < sum(p.numel() for p in model.parameters()) < 1.1e6
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id


def test_prompts_of_every_family_are_short_and_come_back_as_they_were(tokenizer: Any) -> None:
    form = prompt_format(tokenizer, TirSettings(instruction_role="none"))
    for problem in generate(None, 0, 200, "eval"):
        segment = form.prompt(problem.question)
        assert segment.origin is Origin.PROMPT and len(segment.ids) < 80
        text = tokenizer.decode(list(segment.ids), skip_special_tokens=False)
        assert text == f"<|im_start|>user\n{problem.question}<|im_end|>\n<|im_start|>assistant\n"


def test_it_answers_most_problems_of_a_held_out_split_with_a_program_that_runs(tokenizer: Any) -> None:
    """Forced to begin with a program, it copies the numbers of the question into it."""
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32).eval()
    form = prompt_format(tokenizer, TirSettings(instruction_role="none"))
    opening = tokenizer.encode("```python\n", add_special_tokens=False)
    close = tokenizer.encode("```", add_special_tokens=False)[-1]
    right = 0
    problems = generate(["linear_equation", "power_mod", "travel", "gcd"], 5, 32, "eval")
    for problem in problems:
        prompt = [*form.prompt(problem.question).ids, *opening]
        with torch.no_grad():
            output = model.generate(
                torch.tensor([prompt]), do_sample=False, temperature=None, max_new_tokens=48, eos_token_id=close
            )[0, len(prompt) :]
        program = tokenizer.decode(output[:-1])
        numbers = {word for word in _words(problem.question) if word.isdigit()}
        right += numbers <= set(_words(program))
    assert right >= 0.7 * len(problems)


def _words(text: str) -> list[str]:
    return "".join(c if c.isdigit() else " " for c in text).split()
