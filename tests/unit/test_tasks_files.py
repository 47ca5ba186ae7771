"""Every file form is read row by row, and every row that cannot be read is reported with its place."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from agent_rl.tasks.files import BadRow, Row, read_rows, resolve, split_of
from agent_rl.tasks.load import load_problems, source_of
from agent_rl.tasks.settings import DataSettings

ROWS = [{"question": f"{i}+1?", "answer": str(i + 1)} for i in range(5)]
LINES = "".join(json.dumps(r) + "\n" for r in ROWS)


def _write(tmp_path, form):
    file = tmp_path / f"data.{form}"
    if form == "jsonl":
        file.write_bytes(b"\xef\xbb\xbf" + LINES.replace("\n", "\r\n").encode())
    elif form == "jsonl.gz":
        file.write_bytes(gzip.compress(LINES.encode()))
    elif form == "jsonl.zst":
        file.write_bytes(zstandard.compress(LINES.encode()))
    elif form == "json":
        file.write_text(json.dumps(ROWS))
    elif form == "csv":
        file.write_text("question,answer\n" + "".join(f"{r['question']},{r['answer']}\n" for r in ROWS))
    elif form == "tsv":
        file.write_text("question\tanswer\n" + "".join(f"{r['question']}\t{r['answer']}\n" for r in ROWS))
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), file)
    elif form == "arrow":
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, pa.Table.from_pylist(ROWS).schema) as out:
            out.write_table(pa.Table.from_pylist(ROWS))
    return file


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "jsonl.zst", "json", "csv", "tsv", "parquet", "arrow"])
def test_every_form_gives_the_same_problems(tmp_path, form):
    problems = load_problems(DataSettings(path=str(_write(tmp_path, form))))
    assert [(p.question, p.gold) for p in problems] == [(r["question"], r["answer"]) for r in ROWS]


def test_arrow_file_form_and_json_of_columns(tmp_path):
    file = tmp_path / "data.arrow"
    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)
    assert [r.data for r in read_rows(file)] == ROWS
    wrapped = tmp_path / "wrapped.json"
    wrapped.write_text(json.dumps({"version": 1, "data": ROWS}))
    assert [r.data for r in read_rows(wrapped)] == ROWS
    lines = tmp_path / "lines.json"
    lines.write_text(LINES)
    assert [r.data for r in read_rows(lines)] == ROWS


def test_line_separator_inside_a_question_does_not_break_the_line(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"question": "a\u2028b\x85c", "answer": "1"}, ensure_ascii=False), encoding="utf-8")
    (problem,) = load_problems(DataSettings(path=str(file)))
    assert problem.question == "a\u2028b\x85c"


def test_bad_lines_are_listed_with_number_and_reason(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(
        b'{"question": "q", "answer": "1"}\n\n{"question": "torn\n[1]\n{"question": "q2"}\n\xff\xfe\n'
        b'{"question": "q3", "answer": ""}\n{"question": "q4", "answer": "4"}\n'
    )
    problems = load_problems(DataSettings(path=str(file)))
    assert [p.question for p in problems] == ["q", "q4"]
    assert [b.where for b in problems.bad_rows] == ["line 3", "line 4", "line 5", "line 6", "line 7"]
    reasons = " | ".join(b.reason for b in problems.bad_rows)
    for word in ("not JSON", "found a list", "missing"):
        assert word in reasons
    with pytest.raises(ValueError, match=r"max_bad_rows = 2.*line 5"):
        load_problems(DataSettings(path=str(file), max_bad_rows=2))


def test_csv_with_too_few_cells_and_long_cells(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('question,answer\n"two\nlines",1\nonly\n' + "x" * 200_000 + ",3\n")
    rows = list(read_rows(file))
    assert isinstance(rows[0], Row) and rows[0].data == {"question": "two\nlines", "answer": "1"}
    assert isinstance(rows[1], BadRow) and rows[1].where == "line 4"
    assert isinstance(rows[2], Row) and len(rows[2].data["question"]) == 200_000


def test_folder_gives_the_files_of_its_split_and_never_the_other(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"question": split, "answer": "1"}))
    (tmp_path / "README.md").write_text("#")
    assert [p.question for p in load_problems(DataSettings(path=str(tmp_path)), split="train")] == ["train"]
    assert [p.question for p in load_problems(DataSettings(path=str(tmp_path)), split="eval")] == ["test"]
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"'train'.*test\.jsonl"):
        load_problems(DataSettings(path=str(tmp_path)), split="train")


def test_globs_and_lists_of_paths(tmp_path):
    for name in "bca":
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": name, "answer": "1"}))
    assert [p.question for p in load_problems(DataSettings(path=f"{tmp_path}/*.jsonl"))] == ["a", "b", "c"]
    paths = [str(tmp_path / "c.jsonl"), str(tmp_path / "a.jsonl")]
    assert [p.question for p in load_problems(DataSettings(path=paths))] == ["c", "a"]
    with pytest.raises(FileNotFoundError, match="matches no file"):
        load_problems(DataSettings(path=f"{tmp_path}/*.csv"))


def test_names_that_are_no_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve("openai/gsm8k", "train") is None
    assert resolve("openai/gsm8k:main", "train") is None
    for path in ("no/such.jsonl", "missing.jsonl", "/no/such/folder"):
        with pytest.raises(FileNotFoundError, match="no such file"):
            resolve(path, "train")


def test_unreadable_forms_name_what_is_known(tmp_path):
    file = tmp_path / "a.xlsx"
    file.write_text("")
    with pytest.raises(ValueError, match=r"\.xlsx.*\.jsonl"):
        load_problems(DataSettings(path=str(file)))
    (tmp_path / "a.json").write_text("{broken")
    with pytest.raises(ValueError, match="not JSON"):
        load_problems(DataSettings(path=str(tmp_path / "a.json")))


def test_source_is_the_file_or_its_folder(tmp_path):
    assert source_of(tmp_path / "gsm8k" / "test.jsonl") == "gsm8k"
    assert source_of(tmp_path / "gsm8k" / "aime24.jsonl.gz") == "aime24"
    assert source_of(tmp_path / "x" / "math_train.parquet") == "math_train"


def test_split_words():
    from pathlib import Path

    assert split_of(Path("data/train-00000-of-00002.parquet")) == "train"
    assert split_of(Path("validation.jsonl")) == "test"
    assert split_of(Path("test/a.jsonl")) == "test"
    assert split_of(Path("latest.jsonl")) is None
