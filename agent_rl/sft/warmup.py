"""`agent-rl sft`: demonstrations, model, training, and the folder that holds the result."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from agent_rl import __version__
from agent_rl.sft.dialogue import Dialogue, family_dialogues
from agent_rl.sft.gsm8k import gsm8k_dialogues
from agent_rl.sft.jsonl import jsonl_dialogues
from agent_rl.sft.model import from_folder, from_nothing
from agent_rl.sft.sequences import TrainingSequence, training_sequence
from agent_rl.sft.settings import SftSettings
from agent_rl.sft.train import Progress, train
from agent_rl.tir.formats import prompt_format

_LINE_EVERY_S = 15.0


def run(config: SftSettings, console: Console | None = None) -> Path:
    """Train a policy on demonstrations and save it as a Hugging Face folder with its recipe.

    Returns:
        The output folder: `model.safetensors`, configuration, tokenizer, `chat_template.jinja`, `recipe.json`.

    Raises:
        FileExistsError: the output folder holds something and `overwrite` is off.
        ValueError: demonstrations or model cannot be used; the message names the setting.
    """
    console = console or Console()
    output = Path(config.output)
    if not config.overwrite and output.is_dir() and any(output.iterdir()):
        raise FileExistsError(f"output = {output} holds files already; set overwrite = true or name another folder")
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    dialogues, counts = _demonstrations(config)
    model, tokenizer = from_folder(config.init) if config.init else from_nothing(config.shape, dialogues, config.seed)
    sequences = _sequences(dialogues, tokenizer, config)
    counts["too_long"] = len(dialogues) - len(sequences)
    tokens = sum(len(s.ids) for s in sequences)
    console.print(
        f"{len(sequences)} demonstrations of {tokens / len(sequences):.0f} tokens, "
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {config.steps} steps of "
        f"{config.batch_size} = {config.steps * config.batch_size / len(sequences):.2f} epochs"
    )
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    last = _train_with_bar(model, sequences, config, pad, console)
    output.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(output)
    for weights in output.glob("*.safetensors"):
        weights.chmod(0o644)  # written through a private temporary file; a package's data is for everyone
    tokenizer.save_pretrained(output)
    recipe = _recipe(config, counts, tokens, last)
    (output / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    console.print(f"loss {last.loss:.4f} after {last.seconds:.0f} s; saved to {output}")
    return output


def _demonstrations(config: SftSettings) -> tuple[list[Dialogue], dict[str, int]]:
    if config.source == "jsonl":
        assert config.jsonl is not None  # checked by the settings
        return jsonl_dialogues(config.jsonl, config.tir)
    if config.source == "gsm8k":
        assert config.gsm8k is not None  # checked by the settings
        return gsm8k_dialogues(config.gsm8k)
    return family_dialogues(config.families)


def _sequences(dialogues: Sequence[Dialogue], tokenizer: Any, config: SftSettings) -> list[TrainingSequence]:
    form = prompt_format(tokenizer, config.tir)
    sequences = [
        training_sequence(
            d,
            tokenizer,
            form,
            end=tokenizer.eos_token_id,
            max_observation_tokens=config.tir.max_observation_tokens,
        )
        for d in dialogues
    ]
    fitting = [s for s in sequences if len(s.ids) <= config.max_tokens]
    if not fitting:
        raise ValueError(f"max_tokens = {config.max_tokens}: every demonstration is longer; raise it")
    return fitting


def _train_with_bar(
    model: Any, sequences: Sequence[TrainingSequence], config: SftSettings, pad: int, console: Console
) -> Progress:
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}  {task.fields[speed]:.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    with ProgressBar(*columns, console=console) as bar:
        task = bar.add_task("sft", total=config.steps, loss=float("nan"), speed=0.0)
        seen, told = 0, 0.0

        def report(progress: Progress) -> None:
            nonlocal seen, told
            seen += progress.tokens
            speed = seen / progress.seconds
            bar.update(task, completed=progress.step, loss=progress.loss, speed=speed)
            if not console.is_terminal and progress.seconds - told >= _LINE_EVERY_S:  # a bar is not drawn in a log
                told = progress.seconds
                console.print(f"step {progress.step}/{config.steps} loss {progress.loss:.3f} {speed:.0f} tokens/s")

        return train(model, sequences, config, pad, report)


def _recipe(config: SftSettings, counts: dict[str, int], tokens: int, last: Progress) -> dict[str, Any]:
    """What made the folder: settings in full, demonstrations by kind, versions, how it ended."""
    return {
        "settings": config.model_dump(mode="json"),
        "demonstrations": counts,
        "tokens": tokens,
        "final_loss": round(last.loss, 5),
        "versions": {
            "agent_rl": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
