"""Generation speed of the embedded engine, as ratios within one run.

    OMP_NUM_THREADS=2 python -m benchmarks.engine [--episodes 8,64,256] [--model PATH] [--json FILE]

Three things generate the same number of tokens from the same prompts with the same model:

- `engine`: concurrent episodes of several turns with uneven lengths, eight samples a prompt, an observation behind
  each turn and a tool that sleeps 0, 0.02 or 0.3 s (half to one and a half of it), drawn at temperature 1;
- `raw`: the bare decode loop, one rectangular batch of one turn: a forward of the transformers model with its own
  dynamic cache and an argmax, prefill of the prompts included. No episode ends early, nothing is sampled, and
  nobody waits for a tool;
- `generate`: `model.generate(do_sample=True)` on the same rectangular batch.

`decode` is the raw loop without its prefill. Ratios are given by wall clock and by processor time; the latter holds
on a busy machine, too. Tools are hidden if `wall / max(generation alone, tools alone)` is
near 1: generation alone is the run whose tools take no time, tools alone the largest sum of one episode's sleeps.
Without `--model` the model is a random Llama of 4 layers x 128, head_dim 32 and 640 tokens of vocabulary.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agent_rl.engines.base import GenerationRequest
from agent_rl.engines.forward import cache_keyword
from agent_rl.engines.loading import load_model
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.transformers import TransformersEngine
from agent_rl.tir.fence import FenceScanner

PROMPT, OBSERVATION, SAMPLES, TURNS = 50, 20, 8, 2
TURN_TOKENS = (15, 35)


Instant = tuple[float, float]


def now() -> Instant:
    """Wall clock and processor time of this process."""
    return time.perf_counter(), time.process_time()


@dataclass(frozen=True)
class Run:
    """One way to generate, measured once."""

    tokens: int
    seconds: float
    cpu_seconds: float
    """Processor time of all threads: what other programs on the machine take does not count."""

    @property
    def cpu_speed(self) -> float:
        """Sampled tokens a second of processor time."""
        return self.tokens / self.cpu_seconds

    @classmethod
    def between(cls, tokens: int, began: Instant, ended: Instant) -> Run:
        return cls(tokens, ended[0] - began[0], ended[1] - began[1])

    @property
    def speed(self) -> float:
        """Sampled tokens a second."""
        return self.tokens / self.seconds


def tiny_model() -> tuple[Any, Any]:
    """The quickstart's shape, with random weights and a byte tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    config = LlamaConfig(
        vocab_size=640,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval(), PreTrainedTokenizerFast(tokenizer_object=backend)


def prompt(episode: int) -> list[int]:
    """The prompt of an episode; eight samples share one."""
    source = random.Random(episode // SAMPLES)
    return [source.randrange(256) for _ in range(PROMPT)]


async def episode(engine: TransformersEngine, number: int, sleep: float) -> tuple[int, float]:
    """Play one; sampled tokens, and seconds that its tools slept."""
    source, ids, tokens, slept = random.Random(number), prompt(number), 0, 0.0
    for turn in range(TURNS):
        request = GenerationRequest(
            str(number), tuple(ids), source.randint(*TURN_TOKENS), seed=number * TURNS + turn, stop_at_fence=True
        )
        generation = await engine.generate(request)
        tokens += len(generation.ids)
        ids += [*generation.ids, *range(OBSERVATION)]
        if turn < TURNS - 1 and sleep:
            pause = sleep * (0.5 + source.random())
            slept += pause
            await asyncio.sleep(pause)
    engine.release(str(number))
    return tokens, slept


async def engine_run(engine: TransformersEngine, episodes: int, sleep: float) -> tuple[Run, float]:
    """All episodes at once, and the longest time that one of them spent in tools."""
    began = now()
    results = await asyncio.gather(*(episode(engine, number, sleep) for number in range(episodes)))
    run = Run.between(sum(tokens for tokens, _ in results), began, now())
    return run, max(slept for _, slept in results)


def raw_run(model: Any, episodes: int, new: int) -> tuple[Run, Run]:
    """The bare loop with and without its prefill."""
    ids = torch.tensor([prompt(number) for number in range(episodes)])
    with torch.inference_mode():
        began = now()
        cache = {cache_keyword(model): DynamicCache(config=model.config)}
        last = model(input_ids=ids, use_cache=True, logits_to_keep=1, **cache).logits[:, -1].argmax(-1, keepdim=True)
        prefilled = now()
        for _ in range(new - 1):
            last = model(input_ids=last, use_cache=True, **cache).logits[:, -1].argmax(-1, keepdim=True)
        ended = now()
    return Run.between(episodes * new, began, ended), Run.between(episodes * (new - 1), prefilled, ended)


def generate_run(model: Any, episodes: int, new: int) -> Run:
    """`model.generate` on the same rectangle."""
    ids = torch.tensor([prompt(number) for number in range(episodes)])
    began = now()
    model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        min_new_tokens=new,
        max_new_tokens=new,
        pad_token_id=0,
    )
    return Run.between(episodes * new, began, now())


async def compare(model: Any, tokenizer: Any, episodes: int, repeats: int) -> dict[str, float]:
    """Medians over interleaved repeats, so that a busy moment of the machine falls on all alike."""
    settings = EngineSettings(max_rows=max(256, episodes))
    engine = TransformersEngine(model, tokenizer, settings=settings, scanner=FenceScanner, eos_ids=())
    new = TURNS * sum(TURN_TOKENS) // 2
    await engine_run(engine, min(episodes, 16), 0.0)
    rows: list[dict[str, float]] = []
    for _ in range(repeats):
        row: dict[str, float] = {}
        raw, decode = raw_run(model, episodes, new)
        plain, _ = await engine_run(engine, episodes, 0.0)
        row |= {"raw": raw.speed, "decode": decode.speed, "engine": plain.speed}
        generate = generate_run(model, episodes, new)
        row["generate"] = generate.speed
        for sleep in (0.02, 0.3):
            run, tools = await engine_run(engine, episodes, sleep)
            row[f"engine, tools {sleep} s"] = run.speed
            row[f"wall over larger alone, tools {sleep} s"] = run.seconds / max(plain.seconds, tools)
        for name, other in (("raw", raw), ("decode", decode), ("generate", generate)):
            row[f"engine over {name}, wall"] = plain.speed / other.speed
            row[f"engine over {name}, cpu"] = plain.cpu_speed / other.cpu_speed
        rows.append(row)
    await engine.close()
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", default="8,64,256", help="numbers of concurrent episodes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", help="a model instead of the random one (see agent_rl.engines.sources)")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    model, tokenizer = load_model(options.model, device="cpu") if options.model else tiny_model()
    found: dict[str, dict[str, float]] = {}
    print(f"{torch.get_num_threads()} threads, {sum(p.numel() for p in model.parameters()):,} parameters")
    for episodes in map(int, options.episodes.split(",")):
        found[str(episodes)] = figures = asyncio.run(compare(model, tokenizer, episodes, options.repeats))
        print(f"\n{episodes} episodes")
        for key, value in figures.items():
            print(f"  {key:36} {value:10,.2f}" if "over" in key else f"  {key:36} {value:10,.0f} tokens/s")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
