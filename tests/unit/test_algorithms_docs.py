"""docs/algorithms.md against the code: presets, defaults, theory numbers, diagnostics, examples."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
import torch
import yaml

from agent_rl.algorithms import choices, theory
from agent_rl.algorithms.diagnostics import summarise
from agent_rl.algorithms.evaluation import CLIPS
from agent_rl.algorithms.method import explain, load_method, policy_loss
from agent_rl.algorithms.mismatch import _TOTALS
from agent_rl.algorithms.presets import PRESETS
from agent_rl.algorithms.ratios import KINDS
from agent_rl.algorithms.settings import MethodSettings, resolve

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()


def section(title: str) -> str:
    """The text under a heading, up to the next heading of the same or a higher level."""
    level = title.split(" ")[0]
    body = PAGE.split(f"\n{title}\n", 1)[1]
    return re.split(rf"\n#{{2,{len(level)}}} ", body, maxsplit=1)[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def first_column(text: str) -> list[str]:
    return re.findall(r"^\| `([^`.]+)` \|", text, flags=re.MULTILINE)


def test_every_preset_has_a_section_and_every_section_a_preset() -> None:
    assert re.findall(r"^### `([^`]+)`$", PAGE, flags=re.MULTILINE) == list(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_its_block_says(name) -> None:
    (block,) = blocks(section(f"### `{name}`"), "yaml")
    written = yaml.safe_load(block)
    built = resolve(MethodSettings(preset="none", **written))
    same_name = {"name": name, "source": PRESETS[name].source}
    assert built.model_copy(update=same_name) == PRESETS[name]
    gates = [key for key in ("prefix_budget", "divergence_mask", "sequence_mask") if getattr(built, key) is not None]
    for part in ("ratio", "clip", *gates):
        assert list(written[part]) == list(type(getattr(built, part)).model_fields), "every field is written out"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_links_the_paper_that_its_code_cites(name) -> None:
    text = section(f"### `{name}`")
    for paper in re.findall(r"\d{4}\.\d{5}", PRESETS[name].source):
        assert paper in text or f"arXiv {paper}](" in PAGE


def test_defaults_outside_the_presets() -> None:
    recipe = choices.Recipe(name="default")
    table = section("## Settings that no preset above shows")
    rows = dict(re.findall(r"^\| `([^`]+)` \| (\S+) \|", table, flags=re.MULTILINE))
    for path, value in rows.items():
        found = recipe
        for part in path.split("."):
            found = getattr(found, part)
        assert found == yaml.safe_load(value), path
    shown = {"ratio", "clip", "prefix_budget", "divergence_mask", "sequence_mask"}
    other = {"name", "source", "function", "options", "kind", "mode"}
    expected = set()
    for field in set(choices.Recipe.model_fields) - shown - other:
        value = getattr(recipe, field)
        nested = getattr(type(value), "model_fields", None)
        expected |= {field} if nested is None else {f"{field}.{inner}" for inner in nested if inner not in other}
    assert set(rows) == expected


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("## Ratios", list(KINDS)),
        ("## Mismatch between sampler and trainer", ["none", *_TOTALS]),
        ("## Advantages and dead groups", list(choices.Advantage.model_fields["kind"].annotation.__args__)),
        ("## Aggregation", list(choices.Aggregation.model_fields["mode"].annotation.__args__)),
    ],
)
def test_every_kind_has_its_row(title, names) -> None:
    assert first_column(section(title)) == names


def test_every_clip_is_used_by_a_preset_on_the_page() -> None:
    assert {recipe.clip.kind for recipe in PRESETS.values()} == set(CLIPS)


def test_the_theory_table_is_what_the_command_prints(capsys) -> None:
    theory.main([])
    assert capsys.readouterr().out.strip() in PAGE
    assert (Path(__file__).parents[2] / "docs" / "images" / "ratio-bias-variance.png").stat().st_size > 10_000


def _tokens(settings: dict) -> dict:
    shape = torch.full((6,), -1.0)
    return {
        "logp": shape + 0.1,
        "logp_old": shape,
        "logp_mu": shape,
        "advantage": torch.tensor([1.0, 1, 1, -1, -1, 0]),
        "mask": torch.ones(6),
        "segments": torch.tensor([0, 0, 0, 1, 1, 2]),
        "settings": resolve(MethodSettings(**settings)),
        "logp_ref": shape,
        "entropy": torch.ones(6),
    }


@pytest.mark.parametrize(
    "settings",
    [{"preset": name} for name in PRESETS] + [{"preset": "ctpo_cppo", "reference_kl": {"beta": 0.1}}],
)
def test_every_diagnostic_is_explained(settings) -> None:
    text = section("## Diagnostics")
    given = _tokens(settings)
    for name in summarise(policy_loss(**given)[1]):
        stem = re.sub(r"/(neg|zero|pos|t[<>].*)", "", name).removesuffix("_trajectory").removesuffix("_position")
        assert f"`{stem}`" in text, name
    for name in explain(**given):
        assert f"`{name}`" in text, name


def test_the_plain_example_runs() -> None:
    (code,) = [block for block in blocks(PAGE, "python") if "numbers = summarise" in block]
    space: dict = {}
    exec(code, space)
    assert space["logp"].grad[2] == 0 and bool((space["logp"].grad[[0, 1, 3]] != 0).all())
    assert space["numbers"]["tokens"] == 3


def test_the_example_of_a_method_of_ones_own_runs(monkeypatch) -> None:
    text = section("### A method of your own")
    module = types.ModuleType("my_package.losses")
    exec(blocks(text, "python")[0], module.__dict__)
    monkeypatch.setitem(sys.modules, "my_package", types.ModuleType("my_package"))
    monkeypatch.setitem(sys.modules, "my_package.losses", module)
    settings = yaml.safe_load(blocks(text, "yaml")[0])["method"]
    given = _tokens(settings)
    recipe = given.pop("settings")
    positional = [given[k] for k in ("logp", "logp_old", "logp_mu", "advantage", "mask", "segments")]
    loss, _ = load_method(recipe)(*positional, recipe)
    ratio = float(torch.tensor(0.1).exp())
    assert loss.tolist() == pytest.approx([-ratio] * 3 + [ratio / 2] * 2 + [0.0])


def test_the_overrides_at_the_top_are_accepted() -> None:
    settings = yaml.safe_load(blocks(PAGE, "yaml")[0])["method"]
    recipe = resolve(MethodSettings(**settings))
    assert recipe.clip.eps_hi == 0.06 and recipe.prefix_budget.adaptive
