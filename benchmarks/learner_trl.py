"""One GRPO update in TRL's own training loop, on given token ids; started by learner.py in TRL's venv."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

STEPS = 4
"""Optimiser steps; the first is a warm-up, the second also measures memory."""


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


class Stopwatch(TrainerCallback):
    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.peaks: list[float] = []
        self.started, self.before = 0.0, 0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self.before = status("VmRSS")
        self.started = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self.started)
        self.peaks.append((status("VmHWM") - self.before) / 1024)


class GivenIds(GRPOTrainer):
    """TRL's trainer with its generation replaced by a batch that is already there."""

    given: dict[str, torch.Tensor]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
        return dict(self.given)


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Prompts padded on the left and completions on the right, as TRL pads them."""
    longest_prompt = max(row["prompt"] for row in rows)
    longest = max(len(row["ids"]) - row["prompt"] for row in rows)
    shape, completion = (len(rows), longest_prompt), (len(rows), longest)
    found = {
        "prompt_ids": torch.zeros(shape, dtype=torch.long),
        "prompt_mask": torch.zeros(shape, dtype=torch.long),
        "completion_ids": torch.zeros(completion, dtype=torch.long),
        "completion_mask": torch.zeros(completion, dtype=torch.long),
        "tool_mask": torch.zeros(completion, dtype=torch.long),
        "advantages": torch.tensor([row["advantage"] for row in rows]),
    }
    for number, row in enumerate(rows):
        prompt, rest = row["ids"][: row["prompt"]], row["ids"][row["prompt"] :]
        found["prompt_ids"][number, longest_prompt - len(prompt) :] = torch.tensor(prompt)
        found["prompt_mask"][number, longest_prompt - len(prompt) :] = 1
        found["completion_ids"][number, : len(rest)] = torch.tensor(rest)
        found["completion_mask"][number, : len(rest)] = 1
        found["tool_mask"][number, : len(rest)] = torch.tensor(row["mask"][row["prompt"] :])
    found["num_items_in_batch"] = found["tool_mask"].sum()
    return found


def measure(job: dict[str, Any]) -> dict[str, float]:
    rows = job["rows"]
    vocabulary = {f"t{number}": number for number in range(640)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t3")),
        pad_token="t0", bos_token="t1", eos_token="t2",
    )  # fmt: skip
    passes = len(rows) // job["micro"]
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, per_device_train_batch_size=job["micro"],
            gradient_accumulation_steps=passes, steps_per_generation=passes, num_generations=8, max_steps=STEPS,
            learning_rate=1e-6, beta=0.0, loss_type="grpo", report_to=[], save_strategy="no", logging_steps=1000,
            gradient_checkpointing=False, disable_tqdm=True, max_completion_length=2048, dataloader_num_workers=0,
        )  # fmt: skip
        watch = Stopwatch()
        trainer = GivenIds(
            model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": ["t5"] * 64}),
            processing_class=tokenizer,
            callbacks=[watch],
        )
        trainer.given = padded(rows)
        trainer.train()
    return {"seconds": statistics.median(watch.seconds[1:]), "peak_mib": max(watch.peaks)}


if __name__ == "__main__":
    print(json.dumps(measure(json.load(sys.stdin))))
