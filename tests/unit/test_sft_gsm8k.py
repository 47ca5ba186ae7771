"""Programs made from GSM8K's calculator marks."""

from __future__ import annotations

import json

import pytest

from agent_rl.config import ConfigError, validate
from agent_rl.sft.gsm8k import gsm8k_dialogues, program_of
from agent_rl.sft.settings import Gsm8kDemonstrations, SftSettings


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Gsm8kDemonstrations(path=str(path))


def row(solution: str, gold: str) -> dict[str, str]:
    return {"question": "How many?", "answer": f"{solution}\n#### {gold}"}


def test_later_marks_use_the_variables_of_earlier_ones():
    solution = "Half is 48/2=<<48/2=24>>24, so 48+24=<<48+24=72>>72."
    assert program_of(solution) == "v1 = 48/2\nv2 = 48+v1\nprint(v2)"


def test_a_part_of_a_longer_number_is_not_taken_for_a_result():
    assert program_of("<<1+1=2>>2 <<12*2.5=30>>30") == "v1 = 1+1\nv2 = 12*2.5\nprint(v2)"


@pytest.mark.parametrize("mark", ["<<2**9**9=1>>", "<<x*2=4>>", "<<open('f')=1>>", "<<3 apples=3>>"])
def test_marks_that_are_more_than_arithmetic_make_no_program(mark):
    assert program_of(f"So {mark}1") is None


def test_only_programs_that_print_the_gold_answer_are_kept(tmp_path):
    settings = write(
        tmp_path / "train.jsonl",
        row("<<1,000*2=2000>>2000", "2,000"),
        row("<<1+1=2>>2", "5"),
        row("By thought alone.", "5"),
        row("<<1/3=0.33>>.33 <<0.33*3=1>>1", "1"),
    )
    dialogues, counts = gsm8k_dialogues(settings)
    assert counts == {"rows": 4, "no_marks": 1, "other_answer": 1, "kept": 2}
    program, answer = dialogues[0].turns
    assert program.text == "```python\nv1 = 1000*2\nprint(v1)\n```"
    assert program.observation == "2000"
    assert answer.text == "The answer is \\boxed{2000}."
    assert dialogues[1].turns[0].observation == "1.0"


def test_a_row_of_another_form_is_named_by_its_line(tmp_path):
    settings = write(tmp_path / "train.jsonl", row("<<1+1=2>>2", "2"), {"question": "q", "answer": "2"})
    with pytest.raises(ValueError, match=r"train\.jsonl, line 2: its answer has no `####`"):
        gsm8k_dialogues(settings)


def test_the_source_needs_its_path_and_a_model():
    with pytest.raises(ConfigError, match="source = gsm8k needs the section gsm8k"):
        validate({"output": "o", "source": "gsm8k", "init": "m"}, model=SftSettings)
    with pytest.raises(ConfigError, match="source = gsm8k needs init"):
        validate({"output": "o", "source": "gsm8k", "gsm8k": {"path": "p"}}, model=SftSettings)


def test_the_published_files_give_7001_and_1208_programs(data_dir):
    kept = {}
    for split in ("train", "test"):
        _, counts = gsm8k_dialogues(Gsm8kDemonstrations(path=str(data_dir / "gsm8k" / f"{split}.jsonl")))
        kept[split] = counts["kept"]
    assert kept == {"train": 7001, "test": 1208}
