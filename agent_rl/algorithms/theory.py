"""Bias and variance of importance ratios, by exact enumeration of a small tree MDP.

    python -m agent_rl.algorithms.theory --out docs/images/ratio-bias-variance.png

States are the prefixes of a `branching`-ary tree of `depth` steps, as token sequences are; pi and mu are tabular
softmax policies, and the reward sits on the leaves. Every path is enumerated, so there is no sampling error:
the printed bias is |E_mu[g] - grad J| / |grad J| and the spread is sqrt(E_mu|g - E_mu[g]|^2) / |grad J|, where
g = sum_t w_t A_t grad log pi(y_t|s_t) and w_t is the ratio under study.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

RATIOS = ("token", "prefix", "full")
ADVANTAGES = ("exact", "terminal")


@dataclass(frozen=True)
class Tree:
    """A tree MDP with two policies. States of level t are numbered by their prefix, base `branching`."""

    pi: list[np.ndarray]
    """Per level: [branching**t, branching] action probabilities of the policy being optimised."""
    mu: list[np.ndarray]
    """The same for the policy that sampled."""
    reward: np.ndarray
    """[branching**depth] of each leaf."""


@dataclass(frozen=True)
class Estimate:
    """Of one ratio with one advantage, relative to the length of the true gradient."""

    ratio: str
    advantage: str
    bias: float
    spread: float


def random_tree(depth: int, branching: int, drift: float, seed: int) -> Tree:
    """Random logits for mu, the same plus `drift` times normal noise for pi, 0/1 rewards on a third of the leaves."""
    rng = np.random.default_rng(seed)
    base = [rng.normal(size=(branching**t, branching)) for t in range(depth)]
    moved = [logits + drift * rng.normal(size=logits.shape) for logits in base]
    reward = (rng.random(branching**depth) < 1 / 3).astype(float)
    return Tree([_softmax(x) for x in moved], [_softmax(x) for x in base], reward)


def values(tree: Tree) -> list[np.ndarray]:
    """V^pi per level, from the root ([1]) to the leaves ([branching**depth])."""
    levels = [tree.reward]
    for probabilities in reversed(tree.pi):
        levels.append((probabilities * levels[-1].reshape(probabilities.shape)).sum(1))
    return levels[::-1]


def true_gradient(tree: Tree) -> list[np.ndarray]:
    """Per level [states, branching]: gradient of E_pi[reward] in the logits, d_pi(s) pi(a|s) A^pi(s, a)."""
    reach, gradient, level_values = np.ones(1), [], values(tree)
    for level, probabilities in enumerate(tree.pi):
        ahead = level_values[level + 1].reshape(probabilities.shape)
        gradient.append(reach[:, None] * probabilities * (ahead - level_values[level][:, None]))
        reach = (reach[:, None] * probabilities).reshape(-1)
    return gradient


def estimate(tree: Tree, ratio: str, advantage: str) -> Estimate:
    """Exact mean and spread of the estimator with `ratio` (RATIOS) and `advantage` (ADVANTAGES).

    `exact` is A^pi(s_t, y_t); `terminal` is the leaf's reward minus V^pi(root), the same for all tokens of a path.
    """
    depth, branching = len(tree.pi), tree.pi[0].shape[1]
    leaves = np.arange(branching**depth)
    level_values = values(tree)
    token, scores, states = [], [], []
    probability = np.ones(len(leaves))
    for level in range(depth):
        state = leaves // branching ** (depth - level)
        action = leaves // branching ** (depth - level - 1) % branching
        chosen_mu = tree.mu[level][state, action]
        probability = probability * chosen_mu
        token.append(tree.pi[level][state, action] / chosen_mu)
        scores.append(np.eye(branching)[action] - tree.pi[level][state])
        states.append(state)
    weights = _weights(np.stack(token), ratio)
    target = true_gradient(tree)
    mean, square = [], 0.0
    for level in range(depth):
        if advantage == "exact":
            child = leaves // branching ** (depth - level - 1)
            gain = level_values[level + 1][child] - level_values[level][states[level]]
        else:
            gain = tree.reward - level_values[0][0]
        # A path visits one state per level, so the squared length of g is a sum over levels.
        term = (weights[level] * gain)[:, None] * scores[level]
        square += float((probability * (term**2).sum(1)).sum())
        expected = np.zeros_like(target[level])
        np.add.at(expected, states[level], probability[:, None] * term)
        mean.append(expected)
    length = _norm(target)
    bias = _norm([a - b for a, b in zip(mean, target, strict=True)]) / length
    return Estimate(ratio, advantage, bias, float(np.sqrt(max(square - _norm(mean) ** 2, 0.0))) / length)


def table(depth: int, branching: int, drift: float, seeds: Sequence[int]) -> list[Estimate]:
    """Every ratio with every advantage, averaged over random trees."""
    rows = []
    for advantage in ADVANTAGES:
        for ratio in RATIOS:
            found = [estimate(random_tree(depth, branching, drift, seed), ratio, advantage) for seed in seeds]
            bias, spread = np.mean([e.bias for e in found]), np.mean([e.spread for e in found])
            rows.append(Estimate(ratio, advantage, float(bias), float(spread)))
    return rows


def plot(out: Path, depth: int, branching: int, drifts: Sequence[float], seeds: Sequence[int]) -> None:
    """Bias and spread against the distance between the policies, written to `out` (needs matplotlib)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = {drift: {(e.advantage, e.ratio): e for e in table(depth, branching, drift, seeds)} for drift in drifts}
    figure, axes = plt.subplots(2, 2, figsize=(9, 6), sharex=True, layout="constrained")
    titles = {"exact": "exact token advantage", "terminal": "terminal reward on every token"}
    for column, advantage in enumerate(ADVANTAGES):
        for ratio, style in zip(RATIOS, ("o-", "s-", "^--"), strict=True):
            found = [rows[drift][advantage, ratio] for drift in drifts]
            axes[0, column].plot(drifts, [e.bias for e in found], style, label=f"{ratio} ratio")
            axes[1, column].plot(drifts, [e.spread for e in found], style, label=f"{ratio} ratio")
        axes[0, column].set_title(titles[advantage])
        axes[1, column].set_xlabel("drift of the logits (standard deviation)")
    axes[0, 0].set_ylabel("relative bias of the gradient")
    axes[1, 0].set_ylabel("relative standard deviation")
    axes[0, 0].legend()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=90)
    plt.close(figure)


def _weights(token: np.ndarray, ratio: str) -> np.ndarray:
    """[depth, leaves] weight of each step from its token ratios."""
    if ratio == "token":
        return token
    prefix = np.cumprod(token, axis=0)
    return prefix if ratio == "prefix" else np.broadcast_to(prefix[-1], token.shape)


def _softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def _norm(parts: Sequence[np.ndarray]) -> float:
    return float(np.sqrt(sum((part**2).sum() for part in parts)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table as Markdown and, with --out, draw the plot."""
    parser = argparse.ArgumentParser(prog="python -m agent_rl.algorithms.theory", description=__doc__.split("\n")[0])
    parser.add_argument("--depth", type=int, default=6, help="steps of a path")
    parser.add_argument("--branching", type=int, default=3, help="actions per state")
    parser.add_argument("--drift", type=float, default=0.5, help="logit noise between mu and pi, for the table")
    parser.add_argument("--trees", type=int, default=20, help="random trees averaged over")
    parser.add_argument("--out", type=Path, help="write the plot here (PNG)")
    chosen = parser.parse_args(arguments)
    print("| advantage | ratio | relative bias | relative std |\n|---|---|---|---|")
    for row in table(chosen.depth, chosen.branching, chosen.drift, range(chosen.trees)):
        print(f"| {row.advantage} | {row.ratio} | {row.bias:.3f} | {row.spread:.2f} |")
    if chosen.out is not None:
        drifts = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
        plot(chosen.out, chosen.depth, chosen.branching, drifts, range(chosen.trees))
        print(f"wrote {chosen.out}")


if __name__ == "__main__":
    main()
