"""The cost of a loss against GRPO's, and against a whole update, as ratios within one run.

    OMP_NUM_THREADS=1 python benchmarks/losses.py

Bars: every method at most 4x GRPO's loss, linear in tokens from 10k to 1M (time per token at 1M at most twice
that at 100k, where everything still fits the cache), and at most 1% of an update (forward and backward of a
4-layer, 128-wide Llama with 640 tokens of vocabulary over the same number of tokens). A loss is timed forward
and backward: once with its diagnostics, the way the learner calls it, and once without them, so that the ratio
is not flattered by work that all methods share. `bare grpo` is GRPO's formula in four lines with no mask, no
trajectories and no checks. Times are processor seconds of this process, so that a busy machine does not count.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import torch
from torch import Tensor

from agent_rl.algorithms.aggregation import aggregate, count
from agent_rl.algorithms.evaluation import evaluate
from agent_rl.algorithms.method import policy_loss
from agent_rl.algorithms.settings import MethodSettings, resolve
from agent_rl.algorithms.tokens import model_tokens

SEQUENCE = 1000
"""Tokens of a trajectory in the loss benchmark, a third of them tool tokens."""
MODEL_BATCH, MODEL_LENGTH = 16, 512
"""Shape of the batch whose update is timed; its time per token is scaled to each size."""


def batch(tokens: int) -> tuple[Tensor, ...]:
    """logp, logp_old, logp_mu, advantage, mask, segments of `tokens` tokens."""
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(tokens, generator=generator) for _ in range(3)]
    mu = -torch.rand(tokens, generator=generator).clamp(min=1e-3) * 3
    old = mu + 0.01 * noise[0]
    logp = old + 0.04 * noise[1]
    segments = torch.arange(tokens) // SEQUENCE
    sign = torch.randn(int(segments[-1]) + 1, generator=generator)
    mask = torch.arange(tokens) % 300 >= 100
    return logp, old, mu, sign[segments], mask, segments


def method_step(preset: str, inputs: tuple[Tensor, ...], diagnostics: bool) -> Callable[[], None]:
    """One forward and backward of a preset's loss, with or without its diagnostics."""
    recipe = resolve(MethodSettings(preset=preset))
    counts = count(inputs[4], inputs[5], horizon=float(SEQUENCE))

    def step() -> None:
        logp = inputs[0].clone().requires_grad_(True)
        if diagnostics:
            loss, _ = policy_loss(logp, *inputs[1:], recipe)
        else:
            found = evaluate(model_tokens(logp, *inputs[1:]), recipe, None, None, None)
            loss = found.tokens.put(found.loss)
        aggregate(loss, inputs[4], inputs[5], recipe.aggregation.mode, counts).backward()

    return step


def bare_grpo_step(inputs: tuple[Tensor, ...]) -> Callable[[], None]:
    """GRPO's clipped loss and a token mean, as short as it can be written."""
    old, advantage = inputs[1], inputs[3]

    def step() -> None:
        logp = inputs[0].clone().requires_grad_(True)
        ratio = (logp - old).exp()
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
        loss.mean().backward()

    return step


def update_step() -> tuple[Callable[[], None], int]:
    """Forward and backward of the quickstart-sized model, and its number of tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=640,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    model = LlamaForCausalLM(config)
    ids = torch.randint(0, 640, (MODEL_BATCH, MODEL_LENGTH))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        logits = model(input_ids=ids).logits[:, :-1]
        logp = logits.float().log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1))
        logp.mean().backward()

    return step, MODEL_BATCH * MODEL_LENGTH


def interleaved(steps: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Least processor seconds of each step; steps take turns, so that neighbours disturb all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    names, draw = list(steps), random.Random(0)
    for _ in range(repeats):
        # A new order each time: whoever follows the update finds its caches cold.
        draw.shuffle(names)
        for name in names:
            step = steps[name]
            start = time.process_time()
            step()
            times[name].append(time.process_time() - start)
    return {name: min(values) for name, values in times.items()}


def main() -> None:
    """Print the tables and the verdict on each bar."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--presets", nargs="+", default=["grpo", "ctpo", "cppo", "ctpo_cppo"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=11)
    chosen = parser.parse_args()
    presets = list(dict.fromkeys(["grpo", *chosen.presets]))
    update, update_tokens = update_step()
    per_token: dict[str, dict[int, float]] = {preset: {} for preset in presets}
    worst_ratio = worst_share = 0.0
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {chosen.repeats} repeats, best of each")
    print("| tokens | loss | ms | x grpo | ms, no diagnostics | x grpo, no diagnostics | ns / token | % of an update |")
    print("|---|---|---|---|---|---|---|---|")
    for tokens in chosen.tokens:
        inputs = batch(tokens)
        full = {preset: method_step(preset, inputs, True) for preset in presets}
        lean = {f"{preset} lean": method_step(preset, inputs, False) for preset in presets}
        found = interleaved({**full, **lean, "bare": bare_grpo_step(inputs), "update": update}, chosen.repeats)
        whole = found["update"] * tokens / update_tokens
        for name in presets:
            seconds, without = found[name], found[f"{name} lean"]
            ratio, lean_ratio, share = seconds / found["grpo"], without / found["grpo lean"], seconds / whole
            per_token[name][tokens] = seconds / tokens
            worst_ratio, worst_share = max(worst_ratio, ratio, lean_ratio), max(worst_share, share)
            print(
                f"| {tokens} | {name} | {1e3 * seconds:.2f} | {ratio:.2f} | {1e3 * without:.2f} | {lean_ratio:.2f} "
                f"| {1e9 * seconds / tokens:.0f} | {100 * share:.2f} |"
            )
        bare = found["bare"]
        print(f"| {tokens} | bare grpo | | | {1e3 * bare:.2f} | {bare / found['grpo lean']:.2f} | | |")
    print(
        f"largest ratio to grpo {worst_ratio:.2f} (bar 4), largest share of an update {100 * worst_share:.2f}% (bar 1%)"
    )
    for name, costs in per_token.items():
        sizes = sorted(costs)
        growth = costs[sizes[-1]] / costs[sizes[-2]] if len(sizes) > 1 else 1.0
        print(f"{name}: time per token at {sizes[-1]} tokens is {growth:.2f}x that at {sizes[-2:][0]} (linear = 1)")


if __name__ == "__main__":
    main()
