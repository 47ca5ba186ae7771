"""Runs inside an environment with TRL: trains a tiny model with the documented trainer.

    python algorithms_in_trl_script.py SNIPPET.py

SNIPPET defines `OurTrainer` (docs/algorithms.md). On every step and for several methods its loss is compared
with TRL's own implementation of the same method on the same inputs, a tool mask included. Prints one JSON line.
"""

from __future__ import annotations

import json
import runpy
import sys
import tempfile

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig

from agent_rl.algorithms.settings import MethodSettings, resolve

WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(29))]
OurTrainer = runpy.run_path(sys.argv[1])["OurTrainer"]


def tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    return LlamaForCausalLM(config)


class Compared(OurTrainer):
    """Computes both losses on the same inputs and trains on ours."""

    gaps: list[float]

    def _compute_loss(self, model, inputs):
        seed = torch.Generator().manual_seed(int(inputs["completion_ids"].sum()))
        inputs["tool_mask"] = (torch.rand(inputs["completion_ids"].shape, generator=seed) > 0.3).long()
        with torch.no_grad():
            theirs = super(OurTrainer, self)._compute_loss(model, inputs)
        ours = super()._compute_loss(model, inputs)
        self.gaps.append(abs(float(ours.detach()) - float(theirs)))
        return ours


def reward(completions, **_) -> list[float]:
    return [float(text.count("w1")) for text in completions]


def train(cls: type, method: dict, **arguments) -> tuple[list[dict], object]:
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=4,
            num_iterations=2,
            max_completion_length=12,
            max_steps=6,
            learning_rate=2e-2,
            beta=0.0,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            **arguments,
        )
        prompts = Dataset.from_dict({"prompt": [f"w{i} w{i + 1}" for i in range(16)]})
        trainer = cls(
            model=model(), reward_funcs=reward, args=settings, train_dataset=prompts, processing_class=tokenizer()
        )
        trainer.recipe = resolve(MethodSettings(**method))
        trainer.gaps = []
        trainer.train()
        return trainer.state.log_history, trainer


def main() -> None:
    found: dict[str, object] = {"trl": trl.__version__}
    compared = {
        "grpo": ({"preset": "grpo"}, {"loss_type": "grpo"}),
        "dapo": ({"preset": "dapo"}, {"loss_type": "grpo", "epsilon_high": 0.28}),
        "gspo": (
            {"preset": "gspo"},
            {
                "loss_type": "grpo",
                "importance_sampling_level": "sequence",
                "epsilon": 3e-4,
                "epsilon_high": 4e-4,
            },
        ),
        "sapo": ({"preset": "sapo"}, {"loss_type": "sapo"}),
        "dr_grpo": (
            {"preset": "dr_grpo", "aggregation": {"horizon": 12}},
            {"loss_type": "dr_grpo", "scale_rewards": "none"},
        ),
    }
    for name, (method, arguments) in compared.items():
        if name == "dapo":
            method = {**method, "aggregation": {"mode": "seq_mean_token_mean"}}
        _, trainer = train(Compared, method, **arguments)
        found[name] = {"losses": len(trainer.gaps), "largest_gap": max(trainer.gaps)}
    history, trainer = train(OurTrainer, {"preset": "ctpo_cppo"}, loss_type="grpo")
    steps = [entry for entry in history if "clip_rate" in entry]
    found["ctpo_cppo"] = {
        "steps": len(steps),
        "finite": all(bool(p.isfinite().all()) for p in trainer.model.parameters()),
        "clip_rate": [entry["clip_rate"] for entry in steps],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
