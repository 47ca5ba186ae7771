"""Benchmarks by name: found in the user's folder, refused with directions when absent or of another size."""

from __future__ import annotations

import json

import pytest

from agent_rl.evaluation.presets import BENCHMARKS, BenchmarkAbsent, find_benchmark, load_benchmark


def write(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({"question": f"q{i}", "answer": f"{i}"}) + "\n" for i in range(rows)))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_absent_benchmark_says_where_to_get_it(name, tmp_path):
    with pytest.raises(BenchmarkAbsent) as error:
        load_benchmark(name, tmp_path)
    message = str(error.value)
    assert BENCHMARKS[name].origin in message and str(BENCHMARKS[name].rows) in message and f"{name}.jsonl" in message
    assert "hub data set" in message or "github.com/" in message


@pytest.mark.parametrize("place", ["aime24.jsonl", "aime24/test.jsonl", "more/AIME_2024.jsonl", "a/aime24/test.jsonl"])
def test_usual_places_are_found(place, tmp_path):
    write(tmp_path / place, 30)
    write(tmp_path / "aime24" / "train.jsonl", 3)
    assert find_benchmark("aime24", tmp_path) == tmp_path / place
    assert len(load_benchmark("aime24", tmp_path)) == 30
    assert len(load_benchmark("aime24", tmp_path, limit=4)) == 4


def test_another_number_of_problems_is_refused(tmp_path):
    write(tmp_path / "aime24.jsonl", 29)
    with pytest.raises(ValueError, match=r"has 30 problems.*has 29"):
        load_benchmark("aime24", tmp_path)


def test_bad_rows_are_refused(tmp_path):
    write(tmp_path / "aime24.jsonl", 30)
    with (tmp_path / "aime24.jsonl").open("a") as file:
        file.write("{torn\n")
    with pytest.raises(ValueError, match="line 31"):
        load_benchmark("aime24", tmp_path)


def test_unknown_benchmark_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"'aime99'.*aime24"):
        find_benchmark("aime99", tmp_path)
