"""Demonstrations from JSONL: both forms are read alike, and a row that no episode could have recorded is named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agent_rl.sft.dialogue import Dialogue, DialogueTurn
from agent_rl.sft.jsonl import RowError, jsonl_dialogues
from agent_rl.sft.settings import JsonlDemonstrations
from agent_rl.tir.settings import TirSettings

CODE = "```python\nprint(2)\n```"
TIR = TirSettings(instruction_role="none")
EXPECTED = Dialogue("1+1?", (DialogueTurn(CODE, "2"), DialogueTurn("\\boxed{2}")))


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def read(path: Path, *rows: Any, tir: TirSettings = TIR, limit: int | None = None) -> Any:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return jsonl_dialogues(JsonlDemonstrations(path=str(path), limit=limit), tir)


CHAT = [message("user", "1+1?"), message("assistant", CODE), message("tool", "2"), message("assistant", "\\boxed{2}")]
STEPS = {"question": "1+1?", "steps": [{"text": CODE, "observation": "2"}, {"text": "\\boxed{2}"}]}


def test_messages_and_steps_are_the_same_dialogue(tmp_path: Path) -> None:
    dialogues, counts = read(tmp_path / "d.jsonl", {"messages": CHAT}, "", STEPS)
    assert dialogues == [EXPECTED, EXPECTED]
    assert counts == {"rows": 2, "cut_after_program": 0}


def test_compressed_files_and_limits(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write("\n".join(json.dumps(STEPS) for _ in range(5)))
    assert len(jsonl_dialogues(JsonlDemonstrations(path=str(path), limit=3), TIR)[0]) == 3


def test_text_after_a_program_is_left_out_and_counted(tmp_path: Path) -> None:
    row = {"question": "1+1?", "steps": [{"text": f"{CODE}\nso it is 2", "observation": "2"}, {"text": "\\boxed{2}"}]}
    assert read(tmp_path / "d.jsonl", row) == ([EXPECTED], {"rows": 1, "cut_after_program": 1})


def test_a_conversation_may_end_with_an_observation(tmp_path: Path) -> None:
    dialogues, _ = read(tmp_path / "d.jsonl", {"messages": CHAT[:3]})
    assert dialogues[0].turns == (DialogueTurn(CODE, "2"),)


def test_the_instruction_of_the_episode_is_accepted_as_system_message(tmp_path: Path) -> None:
    tir = TirSettings(instruction="Be right.", instruction_role="system")
    row = {"messages": [message("system", "Be right."), *CHAT]}
    assert read(tmp_path / "d.jsonl", row, tir=tir)[0] == [EXPECTED]
    with pytest.raises(RowError, match=r"line 1: its system message .*tir\.instruction"):
        read(tmp_path / "d.jsonl", row)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("{", "line 2: not valid JSON"),
        ([1], "JSON object, not list"),
        ({"prompt": "x"}, "it has prompt"),
        ({"messages": CHAT[1:]}, "roles must be"),
        ({"messages": [*CHAT, message("user", "and now?")]}, "roles must be"),
        ({"messages": "hi"}, "roles must be"),
        ({"question": "q", "steps": []}, "at least one turn"),
        ({"question": "q", "steps": [{"text": "a"}, {"text": "b"}]}, "only the last turn"),
        ({"question": "q", "steps": [{"text": "no code", "observation": "2"}]}, "no complete"),
        ({"question": "q", "steps": [{"text": 3}]}, "must be strings"),
    ],
)
def test_rows_that_are_no_demonstration_are_named(tmp_path: Path, row: Any, fault: str) -> None:
    with pytest.raises(RowError, match=fault) as raised:
        read(tmp_path / "d.jsonl", STEPS, row)
    assert "line 2" in str(raised.value)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="no demonstrations"):
        read(tmp_path / "d.jsonl", "")
