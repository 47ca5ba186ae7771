"""Public problem sets as they circulate: row counts as published, overlaps as known, gold answers that pass."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from agent_rl.evaluation.presets import BENCHMARKS, BenchmarkAbsent, load_benchmark
from agent_rl.tasks.check import check, verifier_audit
from agent_rl.tasks.cli import app
from agent_rl.tasks.load import load_problems
from agent_rl.tasks.overlap import find_overlaps
from agent_rl.tasks.settings import DataSettings

COUNTS = {
    "gsm8k/train.jsonl": (7473, "gsm8k"),
    "gsm8k/test.jsonl": (1319, "gsm8k"),
    "math500/test.jsonl": (500, "question-answer"),
    "amc23/test.jsonl": (40, "question-answer"),
    "olympiadbench/test.jsonl": (675, "olympiadbench"),
    "minerva/test.jsonl": (272, "math"),
    "hmmt25/test.jsonl": (30, "question-answer"),
    "aime26/test.jsonl": (30, "question-answer"),
    "simpletir/math500_verl.parquet": (500, "verl"),
    "simpletir/aime24.parquet": (30, "verl"),
    "simpletir/aime25.parquet": (30, "verl"),
    "ctpo/aime24.parquet": (30, "verl"),
    "ctpo/aime25.parquet": (30, "verl"),
    "ctpo/aime26.parquet": (30, "verl"),
    "ctpo/brumo_2025.parquet": (30, "verl"),
    "ctpo/cmimc_2025.parquet": (40, "verl"),
    "ctpo/hmmt_feb_2026.parquet": (33, "verl"),
    "ctpo/hmmt_nov_2025.parquet": (30, "verl"),
    "ctpo/smt_2025.parquet": (53, "verl"),
}
"""Published rows and the form; every row of these sets is usable."""

MATH_TRAIN = "simpletir/math_level3to5_train.parquet"

UNREADABLE_GOLDS = {"minerva/test.jsonl": {"np.arcsin(10/13)"}, "olympiadbench/test.jsonl": {"t(0,4]"}}
"""Gold answers that no verifier can be expected to read: program text, and a misprint for an interval."""


def load(data_dir, name, **fields):
    file = data_dir / name
    if not file.is_file():
        pytest.skip(f"{name} is not in the data folder")
    return load_problems(DataSettings(path=str(file), **fields), split="test")


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_the_published_ones(data_dir, name):
    problems = load(data_dir, name, deduplicate=False)
    assert len(problems) == COUNTS[name][0]
    assert problems.bad_rows == ()
    assert all(p.question and p.gold for p in problems)
    assert check([str(data_dir / name)]).files[0].schema == COUNTS[name][1]


def test_math_train_lists_its_two_rows_without_an_answer(data_dir):
    problems = load(data_dir, MATH_TRAIN, deduplicate=False)
    assert len(problems) + len(problems.bad_rows) == 8523
    assert [b.where for b in problems.bad_rows] == ["row 5055", "row 5159"]
    levels = [p.metadata["level"] for p in problems]
    assert {level: levels.count(level) for level in (3, 4, 5)} == {3: 2514, 4: 2648, 5: 3359}
    assert len(load(data_dir, MATH_TRAIN, difficulty=(4, 4), deduplicate=False)) == 2648


def test_numbers_of_data_frames_are_integers_again(data_dir):
    golds = [p.gold for p in load(data_dir, "amc23/test.jsonl")]
    assert golds[:4] == ["27", "36", "45", "3159"] and "-1" in golds


def test_gsm8k_train_and_test_do_not_overlap(data_dir):
    assert find_overlaps(load(data_dir, "gsm8k/train.jsonl"), {"test": load(data_dir, "gsm8k/test.jsonl")}) == []


def test_math_train_has_one_row_with_the_letters_and_digits_of_a_math500_row(data_dir):
    (overlap,) = find_overlaps(load(data_dir, MATH_TRAIN), {"math500": load(data_dir, "math500/test.jsonl")})
    # The one known row is a look-alike: z^4 - z^2 + 1 in training, z^4 + z^2 + 1 in MATH-500.
    assert (overlap.train.gold, overlap.evaluation.gold, overlap.same) == ("12", "6", False)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("ctpo/aime26.parquet", "aime26/test.jsonl", 30),
        ("ctpo/aime24.parquet", "simpletir/aime24.parquet", 30),
        ("ctpo/aime25.parquet", "simpletir/aime25.parquet", 30),
        ("math500/test.jsonl", "simpletir/math500_verl.parquet", 500),
    ],
)
def test_the_same_set_from_two_places_overlaps_wholly(data_dir, one, other, shared):
    overlaps = find_overlaps(load(data_dir, one), {"other": load(data_dir, other)})
    assert sum(o.same for o in overlaps) == shared


def test_check_command_reports_bad_rows_by_place(data_dir):
    file = data_dir / MATH_TRAIN
    if not file.is_file():
        pytest.skip(f"{MATH_TRAIN} is not in the data folder")
    result = CliRunner().invoke(app, ["check", "--no-audit", "--json", str(file)])
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert report["files"][0]["rows"] == 8523
    assert [f["where"] for f in report["files"][0]["bad_rows"]] == ["row 5055", "row 5159"]
    assert len(report["files"][0]["duplicates"]) == 4


AUDITED = [n for n in COUNTS if not n.startswith("gsm8k/train")]


def test_gold_answers_pass_their_own_verifier_or_are_listed(data_dir):
    problems, names = [], []
    for name in AUDITED:
        if (data_dir / name).is_file():
            loaded = load(data_dir, name, deduplicate=False)
            problems += loaded
            names += [name] * len(loaded)
    failures = verifier_audit(problems)
    unexpected = {
        f"{names[i]} {problems[i].id}: {reason}"
        for i, reason in failures.items()
        if problems[i].gold not in UNREADABLE_GOLDS.get(names[i], ())
    }
    assert not unexpected
    assert all(failures.values())


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_have_their_published_size(data_dir, name):
    try:
        problems = load_benchmark(name, data_dir)
    except BenchmarkAbsent as absent:
        pytest.skip(str(absent))
    assert len(problems) == BENCHMARKS[name].rows
