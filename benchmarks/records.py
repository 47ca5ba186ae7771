"""What recording costs, and whether its page and lists stay quick. Ratios within one run.

python -m benchmarks.records cost [--config configs/quickstart.yaml] [--steps 3] [key=value ...]
python -m benchmarks.records list [--trajectories 100000]
python -m benchmarks.records page [--trajectories 5000] [--tokens 200]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from agent_rl.records import summaries
from tests.recordings import make_run


def seconds_of(work: Callable[[], Any], repeats: int = 3) -> float:
    """The shortest of some tries."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def cost(config: str, steps: int, overrides: list[str]) -> None:
    """A run that records in full: writing against the step, and what explaining tokens adds to an update."""
    from agent_rl.config import load
    from agent_rl.training.entry import train
    from agent_rl.training.run_dir import RunDir
    from agent_rl.training.settings import RunConfig

    with tempfile.TemporaryDirectory() as scratch:
        settings = load(
            config, [f"steps={steps}", f"runs_dir={scratch}", "name=cost", "evals={}", *overrides], model=RunConfig
        )
        if train(settings) != 0:
            raise SystemExit("the run failed")
        run = RunDir(Path(scratch) / "cost")
        rows = [row for row in run.metrics() if "time/step" in row]
        step = statistics.median(row["time/step"] for row in rows)
        writing = statistics.median(row["time/recording"] for row in rows)
        listed = summaries(run.path)
        tokens, sampled = sum(r.length for r in listed), sum(r.sampled_tokens for r in listed if not r.filters)
        shards = sum(p.stat().st_size for p in run.trajectories.glob("*.jsonl.zst"))
        updates = sum(p.stat().st_size for p in run.trajectories.glob("*.parquet"))
        print(f"step {step:.3f} s, writing {writing:.3f} s = {writing / step:.2%} of it (medians of {len(rows)} steps)")
        print(f"trajectories {shards / tokens:.2f} bytes a token ({tokens} tokens)")
        print(f"updates {updates / max(sampled, 1):.2f} bytes a trained token ({sampled} tokens)")
        _explaining(run.path, settings, step)


def _explaining(run: Path, config: Any, step: float) -> None:
    """The same updates with and without per-token details."""
    from agent_rl.records.replay.command import batches_of
    from agent_rl.records.replay.learning import batch_seed, learner_at

    batch = next((b for b in batches_of(run, 1) if b.updates), None)
    if batch is None:
        print("no update to explain: all groups of step 1 are dead")
        return
    trained, seed = batch.trained(), batch_seed(config, 1)
    measured = {}
    for details in (False, True):
        learner = learner_at(config, run, 1)[0]
        measured[details] = seconds_of(partial(learner.train_on, trained, seed, with_details=details))
    more = measured[True] - measured[False]
    print(f"updates {measured[False]:.3f} s, explained {measured[True]:.3f} s: {more / step:.2%} of the step more")


def listing(trajectories: int) -> None:
    """All rows of a large recording."""
    with tempfile.TemporaryDirectory() as scratch:
        whole = make_run(Path(scratch), steps=1, problems=32, samples=8, tokens=40, updates=False)
        _multiply(whole / "trajectories", -(-trajectories // 256))
        rows: list[Any] = []
        spent = seconds_of(lambda: (rows.clear(), rows.extend(summaries(whole))))
        start = time.process_time()
        summaries(whole)
        busy = time.process_time() - start
        print(f"{len(rows)} trajectories listed in {spent:.2f} s ({busy:.2f} s of processor time)")


def _multiply(folder: Path, copies: int) -> None:
    """Copies of the first shard under later steps, with their lines of the index."""
    (shard,) = folder.glob("*.jsonl.zst")
    index = folder / "index.jsonl"
    line = index.read_text()
    with open(index, "a") as file:
        for step in range(2, copies + 1):
            name = f"train-{step:06}.jsonl.zst"
            shutil.copyfile(shard, folder / name)
            file.write(line.replace(shard.name, name).replace('["train",1,', f'["train",{step},'))


def page(trajectories: int, tokens: int) -> None:
    """Size of the page, and how long a browser takes to open it, filter it and show a trajectory."""
    from agent_rl.records.inspect.command import run_page
    from tests.browser import Browser

    with tempfile.TemporaryDirectory() as scratch:
        run = make_run(Path(scratch), steps=max(trajectories // 250, 1), problems=25, samples=10, tokens=tokens)
        rows = summaries(run)
        built = seconds_of(lambda: run_page(run / "page.html", run, rows), 1)
        size = (run / "page.html").stat().st_size / 1e6
        print(f"{len(rows)} trajectories x {tokens} tokens: {size:.1f} MB, built in {built:.1f} s")
        binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if binary is None:
            print("no Chromium: the page was not opened")
            return
        with Browser(binary) as browser:
            opened = seconds_of(lambda: browser.open(run / "page.html", "list"), 1)
            time_of = "(async () => {{ const t = performance.now(); {0}; return performance.now() - t; }})()"
            filtered = browser.script(time_of.format("filters.add('void'); choose(); filters.clear(); choose()")) / 2
            scrolled = browser.script(time_of.format("document.querySelector('#scroll').scrollTop = 60000; draw()"))
            showing = [browser.script(time_of.format(f"await open({i})")) for i in range(0, len(rows), len(rows) // 9)]
            print(
                f"opened in {opened:.1f} s; filter {filtered:.0f} ms, scroll {scrolled:.0f} ms, "
                f"a trajectory {statistics.median(showing):.0f} ms (largest {max(showing):.0f})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=["cost", "list", "page"])
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--config", default="configs/quickstart.yaml")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--trajectories", type=int)
    parser.add_argument("--tokens", type=int, default=200)
    asked = parser.parse_intermixed_args()
    if asked.subject == "cost":
        cost(asked.config, asked.steps, asked.overrides)
    elif asked.subject == "list":
        listing(asked.trajectories or 100_000)
    else:
        page(asked.trajectories or 5000, asked.tokens)


if __name__ == "__main__":
    main()
