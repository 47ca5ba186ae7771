"""The table of a study: mean and spread over seeds, missing figures, progress by seed."""

from __future__ import annotations

import pytest

from agent_rl.study.run import members
from agent_rl.study.settings import StudySettings
from agent_rl.study.table import Result, markdown, spread, summarise


def test_seeds_of_a_variant_become_mean_and_deviation():
    rows = summarise(
        [
            Result("grpo", 0, {"start a": 0.1, "a": 0.5, "minutes": 2.0}),
            Result("ctpo", 0, {"start a": 0.1, "a": 0.9, "minutes": 4.0}),
            Result("grpo", 1, {"start a": 0.1, "a": 0.7, "minutes": 3.0}),
        ]
    )
    assert [(row.variant, row.runs) for row in rows] == [("grpo", 2), ("ctpo", 1)]
    assert rows[0].figures["a"].mean == pytest.approx(0.6)
    assert rows[0].figures["a"].deviation == pytest.approx(0.1 * 2**0.5)
    text = markdown(rows, varied="method.preset", seeds=[0, 1])
    assert "| grpo | 2 | 60.0 ± 14.1 % | 2.5 ± 0.7 |" in text
    assert "| ctpo | 1 | 90.0 % | 4.0 |" in text
    assert "start a" not in text.split("|", 1)[1] and "a 10.0 ± 0.0 %" in text


def test_a_figure_that_a_variant_lacks_is_a_dash():
    rows = summarise([Result("x", 0, {"a": 0.5}), Result("y", 0, {"b": 0.5})])
    assert "| y | 1 | - | 50.0 % |" in markdown(rows, varied="k", seeds=[0])


def test_one_value_has_no_deviation():
    assert spread([0.5]).deviation is None


def test_every_combination_is_run_with_the_first_seed_before_any_with_the_second():
    settings = StudySettings(
        base="b.yaml", output="out", vary={"method.preset": ["grpo", "ctpo"], "temperature": [1.0, 0.7]}, seeds=[3, 4]
    )
    found = members(settings)
    assert [m.seed for m in found] == [3] * 4 + [4] * 4
    assert [m.folder.name for m in found[:2]] == ["grpo-1_0-seed3", "grpo-0_7-seed3"]
    assert len({m.folder for m in found}) == 8
