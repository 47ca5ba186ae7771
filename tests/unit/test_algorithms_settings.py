"""From a configuration to a method: presets, overrides, refusals, methods by import path, no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError

from agent_rl.algorithms import choices
from agent_rl.algorithms.method import load_method, policy_loss
from agent_rl.algorithms.presets import PRESETS, register
from agent_rl.algorithms.settings import MethodSettings, resolve


def test_settings_and_resolution_import_no_torch() -> None:
    code = (
        "import sys; from agent_rl.algorithms.settings import MethodSettings, resolve\n"
        "print(resolve(MethodSettings()).name, 'torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.split() == ["ctpo_cppo", "False"]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_resolves_to_itself_and_cites_its_source(name) -> None:
    recipe = resolve(MethodSettings(preset=name))
    assert recipe == PRESETS[name] and recipe.source
    assert choices.Recipe(**recipe.model_dump()) == recipe


def test_an_override_changes_only_what_it_names() -> None:
    recipe = resolve(MethodSettings(preset="ctpo_cppo", clip={"eps_hi": 0.06}, prefix_budget={"adaptive": True}))
    assert recipe.clip == choices.SqrtClip(eps_lo=0.025, eps_hi=0.06, power=0.5, dual=0.05)
    assert recipe.prefix_budget == choices.PrefixBudget(adaptive=True)
    assert recipe.mismatch == PRESETS["ctpo_cppo"].mismatch


def test_null_switches_the_dual_clip_off() -> None:
    assert resolve(MethodSettings(preset="ctpo", clip={"dual": None})).clip == PRESETS["ctpo_paper"].clip


@pytest.mark.parametrize("off", [False, "off"])
def test_a_gate_is_switched_off_and_on(off) -> None:
    assert resolve(MethodSettings(preset="ctpo_cppo", prefix_budget=off)).prefix_budget is None
    assert resolve(MethodSettings(preset="ctpo", divergence_mask="on")).divergence_mask == choices.DivergenceMask()


def test_another_kind_starts_from_its_own_defaults() -> None:
    recipe = resolve(MethodSettings(preset="ctpo", clip={"kind": "ppo_clip", "eps_hi": 0.28}))
    assert recipe.clip == choices.PpoClip(eps_lo=0.2, eps_hi=0.28, dual=None)
    assert resolve(MethodSettings(preset="ctpo", mismatch={"kind": "none"})).mismatch == choices.Mismatch()


def test_settings_survive_a_dump() -> None:
    method = MethodSettings(preset="ctpo", clip={"dual": None, "eps_hi": 0.1}, prefix_budget=True)
    again = MethodSettings(**method.model_dump())
    assert again == method and resolve(again) == resolve(method)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preset": "ctppo"}, "did you mean 'ctpo'"),
        ({"preset": "zzz"}, "Known presets: cispo, cppo"),
        (
            {"clip": {"eps_high": 0.1}},
            r"method.clip \(kind sqrt_clip\) has no setting 'eps_high'; did you mean 'eps_hi'",
        ),
        ({"clip": {"eps_hi": -1}}, "method.clip.eps_hi=-1"),
        ({"clip": {"kind": "sqrt"}}, "did you mean 'sqrt_clip'"),
        ({"clip": {"kind": "soft", "eps_hi": 0.1}}, r"\(kind soft\) has no setting 'eps_hi'"),
        ({"preset": "grpo", "ratio": {"kind": "prefx"}}, "method.ratio.kind='prefx'"),
        ({"preset": "ctpo", "ratio": {"anchor": "mu"}}, "would count it twice"),
        ({"preset": "grpo", "mismatch": {"kind": "icepop"}}, "needs mismatch.lo or mismatch.hi"),
        ({"preset": "grpo", "mismatch": {"kind": "token_tis", "lo": 0.5}}, "are not read by kind=token_tis"),
        ({"preset": "grpo", "mismatch": {"kind": "icepop", "lo": 5, "hi": 0.5}}, "must be below"),
        ({"preset": "gmpo", "ratio": {"kind": "prefix"}}, "must be token"),
        ({"preset": "grpo", "options": {"x": 1}}, "reads none"),
        ({"advantge": {}}, "advantge"),
    ],
)
def test_mistakes_are_refused_with_a_remedy(given, message) -> None:
    with pytest.raises(ValidationError, match=message):
        MethodSettings(**given)


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(ValueError, match="registered already"):
        register(choices.Recipe(name="grpo"))


def half_loss(logp, logp_old, logp_mu, advantage, mask, segments, settings):
    """A method of one's own: half of the plain policy gradient."""
    keep = mask.bool()
    return torch.where(keep, -settings.options["scale"] * advantage * logp, 0.0), {"tokens": keep.sum()}


MY_RECIPE = PRESETS["ctpo"].model_copy(update={"name": "mine", "clip": choices.SqrtClip(eps_hi=0.5)})
NOT_A_METHOD = 3


def test_a_method_by_import_path_is_called_with_its_options(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "my_methods", sys.modules[__name__])
    settings = MethodSettings(preset="my_methods:half_loss", options={"scale": 0.5}, aggregation={"mode": "token_mean"})
    recipe = resolve(settings)
    assert recipe.aggregation.mode == "token_mean"
    ones = torch.ones(3)
    given = (ones, ones, ones, 2 * ones, torch.tensor([1, 0, 1]), torch.zeros(3, dtype=torch.int64))
    loss, diagnostics = load_method(recipe)(*given, recipe)
    assert loss.tolist() == [-1.0, 0.0, -1.0] and int(diagnostics["tokens"]) == 2


def test_a_recipe_by_import_path_can_be_overridden(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "my_methods", sys.modules[__name__])
    recipe = resolve(MethodSettings(preset="my_methods:MY_RECIPE", clip={"eps_lo": 0.1}))
    assert recipe.clip == choices.SqrtClip(eps_lo=0.1, eps_hi=0.5)
    assert load_method(recipe) is policy_loss


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("my_methods:NOT_A_METHOD", "is a int"),
        ("my_methods:absent", "cannot be imported"),
        ("no_such_module_here:loss", "cannot be imported"),
    ],
)
def test_a_bad_import_path_is_refused(monkeypatch, path, message) -> None:
    monkeypatch.setitem(sys.modules, "my_methods", sys.modules[__name__])
    with pytest.raises(ValueError, match=message):
        resolve(MethodSettings(preset=path))


def test_needs_say_which_log_probs_a_method_reads() -> None:
    needs = {name: (r.needs_old(), r.needs_mu(), r.needs_topk()) for name, r in PRESETS.items()}
    assert needs["grpo"] == (True, False, False)
    assert needs["ctpo_paper"] == (True, False, False)
    assert needs["cppo"] == (False, True, False)
    assert needs["ctpo"] == needs["ctpo_cppo"] == (True, True, False)
    topk = resolve(MethodSettings(preset="cppo", prefix_budget={"divergence": "topk_tv"}))
    assert topk.needs_topk()
