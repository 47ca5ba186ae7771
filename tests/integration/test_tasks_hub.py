"""Hub names go through the `datasets` library; what it cannot reach is refused with the remedy."""

from __future__ import annotations

import pytest

from agent_rl.tasks.hub import hub_rows
from agent_rl.tasks.load import load_problems
from agent_rl.tasks.settings import DataSettings


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """The libraries as if started with HF_HUB_OFFLINE=1, with a cache of their own."""
    import datasets
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def test_rows_of_the_wanted_split_are_streamed(tmp_path, offline):
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    (folder / "validation.jsonl").write_text('{"question": "1+2?", "answer": "3"}\n')
    assert [r.data["answer"] for r in hub_rows(str(folder), "train")] == ["2"]
    (row,) = hub_rows(str(folder), "eval")
    assert (row.data["answer"], row.where) == ("3", "row 1") and "[validation]" in row.file
    (folder / "validation.jsonl").unlink()
    with pytest.raises(ValueError, match=r"no split 'test' \(found: train\)"):
        list(hub_rows(str(folder), "test"))


def test_unreachable_data_set_names_the_remedy(offline, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"'owner/no-such-set' is no file.* cannot be read .* local file"):
        load_problems(DataSettings(path="owner/no-such-set"))
