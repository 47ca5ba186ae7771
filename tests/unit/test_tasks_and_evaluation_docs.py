"""The settings and benchmark tables of the docs are those of the code. `python THIS_FILE` rewrites them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agent_rl.evaluation.presets import BENCHMARKS
from agent_rl.evaluation.settings import EvaluationSettings
from agent_rl.tasks.settings import DataSettings

DOCS = Path(__file__).parents[2] / "docs"


def settings_table(model) -> list[str]:
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        rows.append(f"| `{name}` | `{json.dumps(default)}` | {' '.join((field.description or '').split())} |")
    return rows


def benchmark_table() -> list[str]:
    head = ["| name | benchmark | problems | where to get it |", "|---|---|---|---|"]
    return head + [f"| `{b.name}` | {b.title} | {b.rows} | {b.origin} |" for b in BENCHMARKS.values()]


TABLES = [
    ("data.md", "settings", lambda: settings_table(DataSettings)),
    ("evaluation.md", "settings", lambda: settings_table(EvaluationSettings)),
    ("evaluation.md", "benchmarks", benchmark_table),
]


def found(page: str, mark: str) -> list[str]:
    text = (DOCS / page).read_text()
    match = re.search(rf"<!-- {mark} -->\n((?:\|.*\n)*)", text)
    assert match, f"docs/{page} has no mark <!-- {mark} -->"
    return match[1].splitlines()


@pytest.mark.parametrize(("page", "mark", "make"), TABLES)
def test_table_is_that_of_the_code(page, mark, make):
    assert found(page, mark) == make(), f"run python {Path(__file__).name} to rewrite the tables"


def rewrite() -> None:
    for page, mark, make in TABLES:
        text = (DOCS / page).read_text()
        table = "".join(line + "\n" for line in make())
        pattern = rf"<!-- {mark} -->\n(?:\|.*\n)*"
        (DOCS / page).write_text(re.sub(pattern, lambda _, m=mark, t=table: f"<!-- {m} -->\n{t}", text))


if __name__ == "__main__":
    rewrite()
