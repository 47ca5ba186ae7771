"""Known benchmarks: what each is, how many problems it has, where its file is to be had.

Problems of contests belong to their authors, so none is shipped. A preset reads the user's own copy and refuses one
with another number of problems, since a score on part of a benchmark is no score on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent_rl.tasks.files import SUFFIXES, base_suffix
from agent_rl.tasks.load import load_problems
from agent_rl.tasks.problems import Problems
from agent_rl.tasks.settings import DataSettings


class BenchmarkAbsent(FileNotFoundError):
    """The file of a benchmark is not in the folder; the message says where to get it."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark. `files` are the names that its file or folder goes by, without suffix."""

    name: str
    title: str
    rows: int
    origin: str
    """Project or hub data set, and the path in it."""
    files: tuple[str, ...]


_MATHARENA = (
    "hub data set MathArena/{0}; verl columns: github.com/horizon-llm/CTPO, dataset/competition_benchmarks/{0}.parquet"
)
_QWEN = "github.com/QwenLM/Qwen2.5-Math, evaluation/data/{}/test.jsonl"

BENCHMARKS: dict[str, Benchmark] = {
    b.name: b
    for b in (
        Benchmark(
            "aime24", "AIME 2024 (I and II)", 30,
            "github.com/ltzheng/SimpleTIR, datasets/deepscaler/aime.parquet; or hub data set math-ai/aime24",
            ("aime24", "aime_2024", "aime2024"),
        ),
        Benchmark(
            "aime25", "AIME 2025 (I and II)", 30,
            "github.com/ltzheng/SimpleTIR, datasets/deepscaler/aime25.parquet; or hub data set math-ai/aime25",
            ("aime25", "aime_2025", "aime2025"),
        ),
        Benchmark(
            "aime26", "AIME 2026 (I and II)", 30,
            "hub data set math-ai/aime26; or "
            "github.com/horizon-llm/CTPO, dataset/competition_benchmarks/aime26.parquet",
            ("aime26", "aime_2026", "aime2026"),
        ),
        Benchmark("amc23", "AMC 12 2023", 40, _QWEN.format("amc23"), ("amc23", "amc_2023")),
        Benchmark(
            "math500", "MATH-500", 500,
            "github.com/openai/prm800k, prm800k/math_splits/test.jsonl; or hub data set HuggingFaceH4/MATH-500",
            ("math500", "MATH-500", "math_500", "math500_verl"),
        ),
        Benchmark(
            "olympiadbench", "OlympiadBench (English, mathematics, text only)", 675,
            _QWEN.format("olympiadbench"), ("olympiadbench",),
        ),
        Benchmark("minerva", "Minerva (OCWCourses)", 272, _QWEN.format("minerva_math"), ("minerva", "minerva_math")),
        Benchmark(
            "hmmt25", "HMMT February 2025", 30,
            "hub data set MathArena/hmmt_feb_2025; or github.com/jianzhnie/LLMEval, data/hmmt25.jsonl",
            ("hmmt25", "hmmt_feb_2025"),
        ),
        Benchmark(
            "hmmt_nov25", "HMMT November 2025", 30, _MATHARENA.format("hmmt_nov_2025"), ("hmmt_nov25", "hmmt_nov_2025")
        ),
        Benchmark("hmmt26", "HMMT February 2026", 33, _MATHARENA.format("hmmt_feb_2026"), ("hmmt26", "hmmt_feb_2026")),
        Benchmark("brumo25", "BRUMO 2025", 30, _MATHARENA.format("brumo_2025"), ("brumo25", "brumo_2025")),
        Benchmark("cmimc25", "CMIMC 2025", 40, _MATHARENA.format("cmimc_2025"), ("cmimc25", "cmimc_2025")),
        Benchmark("smt25", "SMT 2025", 53, _MATHARENA.format("smt_2025"), ("smt25", "smt_2025")),
        Benchmark(
            "gsm8k", "GSM8K test", 1319,
            "github.com/openai/grade-school-math, grade_school_math/data/test.jsonl; or hub data set openai/gsm8k:main",
            ("gsm8k", "gsm8k_test"),
        ),
    )
}  # fmt: skip
"""All presets by name."""


def find_benchmark(name: str, folder: str | Path) -> Path:
    """The file of a benchmark: `NAME.jsonl`, `NAME/test.jsonl` or either one folder deeper, any known suffix.

    Raises:
        ValueError: no such preset.
        BenchmarkAbsent: no file in the folder.
    """
    if name not in BENCHMARKS:
        raise ValueError(f"unknown benchmark {name!r}; known: {', '.join(BENCHMARKS)}")
    benchmark = BENCHMARKS[name]
    for path in _candidates(Path(folder).expanduser(), benchmark.files):
        return path
    raise BenchmarkAbsent(
        f"benchmark {name!r} ({benchmark.title}, {benchmark.rows} problems) is not in {str(folder)!r}. "
        f"Get it from {benchmark.origin}, and save it as {Path(folder) / name!s}.jsonl (or .parquet, .json, .csv)"
    )


def _candidates(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    wanted = {n.lower() for n in names}
    for depth in ("*", "*/*", "*/*/*"):
        for path in sorted(folder.glob(depth)):
            if not path.is_file() or base_suffix(path) not in SUFFIXES:
                continue
            stem = path.name.split(".")[0].lower()
            if stem in wanted or (stem == "test" and path.parent.name.lower() in wanted):
                yield path


def load_benchmark(name: str, folder: str | Path, *, limit: int | None = None) -> Problems:
    """The problems of a benchmark, all of them unless `limit` says otherwise.

    Raises:
        BenchmarkAbsent: no file in the folder.
        ValueError: the file has another number of problems than the benchmark, or rows that cannot be used.
    """
    path = find_benchmark(name, folder)
    expected = BENCHMARKS[name].rows
    problems = load_problems(DataSettings(path=str(path), deduplicate=False, max_bad_rows=0), split="test")
    if len(problems) != expected:
        raise ValueError(
            f"benchmark {name!r} has {expected} problems, {str(path)!r} has {len(problems)}: it is another set, or a "
            f"part of it. Get it from {BENCHMARKS[name].origin}, or evaluate the file under a name of its own (data)"
        )
    return problems if limit is None else Problems(problems.items[:limit])
