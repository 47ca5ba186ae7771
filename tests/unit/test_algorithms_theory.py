"""The exact enumeration behind the statement about CTPO's bias, checked by what must hold on any tree."""

from __future__ import annotations

import numpy as np
import pytest

from agent_rl.algorithms import theory

TREE = theory.random_tree(depth=4, branching=3, drift=0.5, seed=3)


def test_the_true_gradient_is_the_slope_of_the_expected_reward() -> None:
    rng = np.random.default_rng(0)
    direction = [rng.normal(size=level.shape) for level in TREE.pi]
    predicted = sum((g * d).sum() for g, d in zip(theory.true_gradient(TREE), direction, strict=True))

    def expected_reward(step: float) -> float:
        moved = [p * np.exp(step * d) for p, d in zip(TREE.pi, direction, strict=True)]
        policy = [p / p.sum(1, keepdims=True) for p in moved]
        return float(theory.values(theory.Tree(policy, TREE.mu, TREE.reward))[0][0])

    slope = (expected_reward(1e-5) - expected_reward(-1e-5)) / 2e-5
    assert slope == pytest.approx(predicted, rel=1e-6)


def test_what_is_unbiased_and_when() -> None:
    bias = {(a, r): theory.estimate(TREE, r, a).bias for a in theory.ADVANTAGES for r in theory.RATIOS}
    assert bias["exact", "full"] == pytest.approx(0, abs=1e-12)
    assert bias["exact", "prefix"] == pytest.approx(0, abs=1e-12)
    assert bias["terminal", "full"] == pytest.approx(0, abs=1e-12)
    assert bias["exact", "token"] > 0.05
    assert bias["terminal", "prefix"] > 0.05
    assert bias["terminal", "token"] > bias["terminal", "prefix"]


def test_the_prefix_ratio_has_the_smaller_spread() -> None:
    for advantage in theory.ADVANTAGES:
        prefix, full = (theory.estimate(TREE, ratio, advantage).spread for ratio in ("prefix", "full"))
        assert prefix < full


def test_without_drift_every_ratio_is_the_same_and_unbiased() -> None:
    still = theory.random_tree(depth=3, branching=3, drift=0.0, seed=1)
    found = [theory.estimate(still, ratio, advantage) for ratio in theory.RATIOS for advantage in theory.ADVANTAGES]
    assert max(estimate.bias for estimate in found) < 1e-12


def test_the_command_prints_its_table_and_draws_its_plot(tmp_path, capsys) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "figures" / "bias.png"
    theory.main(["--depth", "3", "--trees", "2", "--out", str(out)])
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "| terminal | prefix |" in capsys.readouterr().out
