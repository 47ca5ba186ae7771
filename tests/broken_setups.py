"""A small run that is fit, and one way after the other to break it."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.toys import CHATML, chatml_tokenizer, tiny_llama

FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'].split('</think>')[-1] if m['role'] == 'assistant' and not loop.last else m['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# knows tool #}"
)
"""Strips earlier thinking, as the templates of some model families do."""


def good(folder: Path) -> Path:
    """A model folder, data and a configuration that suits them; the path of the configuration."""
    save_model(folder / "model")
    rows = [{"question": f"What is {a} * {b}?", "answer": str(a * b)} for a in range(2, 10) for b in range(11, 16)]
    write_rows(folder / "train.jsonl", rows)
    write_rows(folder / "eval.jsonl", [{"question": f"What is {a} + 100?", "answer": str(a + 100)} for a in range(8)])
    config = {
        "runs_dir": str(folder / "runs"),
        "problems_per_step": 4,
        "samples_per_problem": 4,
        "steps": 2,
        "threads": 1,
        "model": {"path": str(folder / "model")},
        "data": {"path": str(folder / "train.jsonl")},
        "evals": {"eval": {"data": {"path": str(folder / "eval.jsonl")}}},
        "engine": {"device": "cpu", "kv_budget_mb": 64},
        "tir": {"instruction": "Think.", "max_turns": 2, "max_turn_tokens": 64, "max_total_tokens": 256},
        "sandbox": {"slots": 1},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def save_model(folder: Path, *, vocabulary: int | None = None, tokenizer=None) -> None:
    """A random Llama of two layers and a ChatML tokenizer."""
    tokenizer = tokenizer or chatml_tokenizer()
    tiny_llama(vocabulary or len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def strip_history(folder: Path) -> None:
    chatml_tokenizer(FORGETFUL).save_pretrained(folder / "model")


def drop_template(folder: Path) -> None:
    chatml_tokenizer("").save_pretrained(folder / "model")
    (folder / "model" / "chat_template.jinja").unlink(missing_ok=True)


def pad_is_eos(folder: Path) -> None:
    chatml_tokenizer(CHATML, pad="<|im_end|>").save_pretrained(folder / "model")


def small_embedding(folder: Path) -> None:
    save_model(folder / "model", vocabulary=300)


def one_character_control_token(folder: Path) -> None:
    edit_tokenizer(folder, lambda t: t.add_special_tokens({"additional_special_tokens": ["\N{PILCROW SIGN}"]}))


def edit_tokenizer(folder: Path, edit) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    edit(tokenizer)
    save_model(folder / "model", tokenizer=tokenizer)


def lower_case(folder: Path) -> None:
    def edit(tokenizer) -> None:
        from tokenizers import normalizers

        tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\t", " ")

    edit_tokenizer(folder, edit)


def broken_weights(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})


def unreadable_rows(folder: Path) -> None:
    with open(folder / "train.jsonl", "a") as file:
        file.write('{"question": "cut off in the midd\n' * 4)


def failing_golds(folder: Path) -> None:
    rows = [{"question": f"What is {a} over zero?", "answer": "\\frac{" + str(a)} for a in range(20)]
    with open(folder / "train.jsonl", "a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def contaminated(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    write_rows(folder / "eval.jsonl", rows[:3])


def few_problems(folder: Path) -> None:
    lines = (folder / "train.jsonl").read_text().splitlines(keepends=True)
    (folder / "train.jsonl").write_text("".join(lines[:3]))


def long_prompts(folder: Path) -> None:
    rows = [{"question": f"Add {' and '.join(map(str, range(i, i + 90)))}.", "answer": "1"} for i in range(20)]
    with open(folder / "train.jsonl", "a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def no_data(folder: Path) -> None:
    (folder / "train.jsonl").unlink()


def no_model(folder: Path) -> None:
    (folder / "model" / "config.json").unlink()


def nothing(folder: Path) -> None:
    """The fault is in the overrides."""
