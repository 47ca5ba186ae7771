"""The learner's speed and memory, as ratios within one run.

    OMP_NUM_THREADS=2 AGENT_RL_TRL_PYTHON=/path/to/venv/bin/python python benchmarks/learner.py

Parts (name some to run only those):

    trl     one GRPO update of 256 trajectories against TRL's `GRPOTrainer` step: the same weights, token ids, masks
            and advantages, on uneven multi-turn lengths (`learner_lengths.json`) and on equal ones. TRL runs its own
            training loop in a venv of its own (`pip install torch trl`); only its generation is replaced by the
            given ids. Each side gets its best micro-batch size of those tried. Bars: >= 1.5x, and >= 1x when equal.
    naive   log-probs of 4096 tokens, forward and backward, against a plain log-softmax over all of them.
    memory  the same at 32k tokens x 150k vocabulary. Bar: peak extra memory <= 1/16 of the full logits.
    linear  time per token from 2k to 32k tokens of log-probs, and from 64 to 512 trajectories of an update.

Each measurement is a process of its own, so that its peak memory is its own; both sides take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VOCABULARY = 640
LARGE = 150_000
SIZES = ((4096, 32), (8192, 64), (2048, 16))
"""Micro-batches that are tried: tokens here, rows in TRL."""


# What is measured, in processes of their own --------------------------------------------------------------------


def peak_of(work: Callable[[], Any]) -> float:
    """MiB of resident memory that `work` needed beyond what was there before it (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    work()
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def timed(work: Callable[[], Any], repeats: int) -> float:
    """Median seconds."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def rows_of(shapes: list[list[int]]) -> list[dict[str, Any]]:
    """Token ids, mask and advantage of rows given as [prompt, model, tool, model, ...] lengths."""
    import random

    source = random.Random(0)
    rows = []
    for shape in shapes:
        mask = [part % 2 for part, length in enumerate(shape) for _ in range(length)]
        ids = [source.randrange(5, VOCABULARY) for _ in mask]
        rows.append({"ids": ids, "mask": mask, "prompt": shape[0], "advantage": source.choice((-1.0, 1.0))})
    return rows


def measure_ours(job: dict[str, Any]) -> dict[str, float]:
    import torch
    from transformers import AutoModelForCausalLM

    from agent_rl.algorithms.settings import MethodSettings, resolve
    from agent_rl.learner.batch import TrainBatch, TrainRow
    from agent_rl.learner.settings import LearnerSettings
    from agent_rl.learner.update import Learner

    rows = []
    for number, row in enumerate(rows_of(job["shapes"])):
        mask = torch.tensor(row["mask"], dtype=torch.bool)
        mu = torch.where(mask, -6.0, 0.0)
        versions = torch.zeros(len(row["ids"]), dtype=torch.int64)
        rows.append(
            TrainRow(f"{number}", f"{number // 8}", torch.tensor(row["ids"]), mask, mu, versions, row["advantage"])
        )
    settings = LearnerSettings(optimizer={"lr": 1e-6}, micro_batch_tokens=job["micro"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    learner = Learner(model, resolve(MethodSettings(preset="grpo")), settings)
    batch = TrainBatch(tuple(rows))
    learner.train_on(TrainBatch(tuple(rows[:16])), seed=0)
    peak = peak_of(lambda: learner.train_on(batch, seed=0))
    return {"seconds": timed(lambda: learner.train_on(batch, seed=0), 3), "peak_mib": peak, "tokens": batch.tokens}


def measure_logprobs(job: dict[str, Any]) -> dict[str, float]:
    import torch

    from agent_rl.learner.logprobs import token_logprobs

    tokens, vocabulary = job["tokens"], job["vocabulary"]
    hidden = torch.randn(tokens, job["width"], requires_grad=True)
    weight = torch.randn(vocabulary, job["width"], requires_grad=True)
    targets = torch.randint(0, vocabulary, (tokens,))

    def ours() -> None:
        token_logprobs(hidden, weight, targets)[0].sum().backward()

    def naive() -> None:
        (hidden @ weight.t()).log_softmax(-1).gather(1, targets[:, None]).sum().backward()

    work = naive if job["naive"] else ours
    token_logprobs(hidden[:8], weight, targets[:8])[0].sum().backward()
    started = time.perf_counter()
    peak = peak_of(work)
    first = time.perf_counter() - started
    return {"peak_mib": peak, "seconds": timed(work, job["repeats"]) if job["repeats"] else first}


MEASURES = {"ours": measure_ours, "logprobs": measure_logprobs}


# The parts -------------------------------------------------------------------------------------------------------


def run(measure: str, job: dict[str, Any], python: str = sys.executable, script: Path = HERE / "learner.py") -> Any:
    """Result of one measurement in a process of its own."""
    done = subprocess.run(
        [python, str(script), "--measure", measure],
        env={**os.environ, "PYTHONPATH": str(HERE.parent) if script.name == "learner.py" else "", "TQDM_DISABLE": "1"},
        input=json.dumps(job), capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{measure} {job.get('micro', '')} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def save_model(folder: str) -> str:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, intermediate_size=384,
        vocab_size=VOCABULARY, max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
        pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def part_trl(rounds: int, rows: int, sizes: int) -> dict[str, float]:
    python = os.environ.get("AGENT_RL_TRL_PYTHON")
    if not python:
        print("trl: left out; set AGENT_RL_TRL_PYTHON to the Python of a venv with `pip install torch trl`")
        return {}
    uneven = json.loads((HERE / "learner_lengths.json").read_text())[:rows]
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        model = save_model(folder)
        for name, shapes in (("uneven", uneven), ("equal", [[40, 30, 10, 24]] * len(uneven))):
            best: dict[str, dict[str, float]] = {}
            for _ in range(rounds):
                for ours, theirs in SIZES[:sizes]:
                    found = {
                        "ours": run("ours", {"model": model, "shapes": shapes, "micro": ours}),
                        "TRL": run(
                            "trl",
                            {"model": model, "rows": rows_of(shapes), "micro": theirs},
                            python,
                            HERE / "learner_trl.py",
                        ),
                    }
                    for side, result in found.items():
                        if side not in best or result["seconds"] < best[side]["seconds"]:
                            best[side] = {**result, "micro": ours if side == "ours" else theirs}
            tokens = best["ours"]["tokens"]
            for side, result in best.items():
                print(
                    f"trl/{name}: {side:5s} {tokens / result['seconds']:8.0f} tokens/s  {result['seconds']:6.2f} s  "
                    f"peak {result['peak_mib']:6.0f} MiB  (micro-batch {result['micro']:.0f} "
                    f"{'tokens' if side == 'ours' else 'rows'}; {tokens:.0f} tokens)"
                )
            figures[f"{name} speed"] = best["TRL"]["seconds"] / best["ours"]["seconds"]
            figures[f"{name} memory"] = best["ours"]["peak_mib"] / best["TRL"]["peak_mib"]
            print(
                f"trl/{name}: speed {figures[f'{name} speed']:.2f}x TRL (bar {1.5 if name == 'uneven' else 1.0}x), "
                f"peak memory {figures[f'{name} memory']:.2f} of TRL's"
            )
    return figures


def part_naive(rounds: int, *_: int) -> None:
    for vocabulary in (VOCABULARY, 32_000):
        job = {"tokens": 4096, "vocabulary": vocabulary, "width": 128, "repeats": 3}
        ours, naive = ([run("logprobs", {**job, "naive": side}) for _ in range(rounds)] for side in (False, True))
        seconds = [min(result["seconds"] for result in side) for side in (ours, naive)]
        peak = [min(result["peak_mib"] for result in side) for side in (ours, naive)]
        print(
            f"naive: 4096 tokens x {vocabulary}: {seconds[0]:.3f} s and {peak[0]:.0f} MiB; plain {seconds[1]:.3f} s "
            f"and {peak[1]:.0f} MiB: time {seconds[0] / seconds[1]:.2f}, memory {peak[0] / peak[1]:.3f} of it"
        )


def part_memory(*_: int) -> None:
    tokens = 32_768
    found = run("logprobs", {"tokens": tokens, "vocabulary": LARGE, "width": 16, "repeats": 0, "naive": False})
    full = tokens * LARGE * 4 / 2**20
    print(
        f"memory: {tokens} tokens x {LARGE}: forward and backward {found['seconds']:.1f} s, peak extra "
        f"{found['peak_mib']:.0f} MiB = 1/{full / found['peak_mib']:.0f} of the full logits' {full:.0f} MiB (bar 1/16)"
    )


def part_linear(rounds: int, *_: int) -> None:
    per_token = {}
    for tokens in (2048, 8192, 32_768):
        job = {"tokens": tokens, "vocabulary": 32_000, "width": 64, "repeats": 0, "naive": False}
        per_token[tokens] = min(run("logprobs", job)["seconds"] for _ in range(rounds)) / tokens * 1e6
    print("linear: log-probs, microseconds a token: " + ", ".join(f"{n}: {t:.1f}" for n, t in per_token.items()))
    uneven = json.loads((HERE / "learner_lengths.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        model, updates = save_model(folder), {}
        for number in (64, 128, 256, 512):
            shapes = (uneven * 2)[:number]
            found = [run("ours", {"model": model, "shapes": shapes, "micro": 4096}) for _ in range(rounds)]
            updates[number] = min(result["seconds"] / result["tokens"] for result in found) * 1e6
    print("linear: update, microseconds a token: " + ", ".join(f"{n} rows: {t:.1f}" for n, t in updates.items()))


PARTS = {"trl": part_trl, "naive": part_naive, "memory": part_memory, "linear": part_linear}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--rounds", type=int, default=2, help="times each side is measured; the best counts")
    parser.add_argument("--rows", type=int, default=256, help="trajectories of the part trl, a multiple of 64")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="micro-batch sizes that the part trl tries")
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(MEASURES[options.measure](json.load(sys.stdin))))
        return
    for name in options.parts or PARTS:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; choose of {', '.join(PARTS)}")
        PARTS[name](options.rounds, options.rows, options.sizes)


if __name__ == "__main__":
    main()
