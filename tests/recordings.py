"""Made-up recordings for tests and benchmarks: everything a real one has, without a model."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agent_rl.records.recorder import TrajectoryRecorder
from agent_rl.records.token_updates import Tokens
from agent_rl.types import (
    FinishReason,
    Origin,
    Problem,
    Segment,
    StopReason,
    ToolOutcome,
    ToolStatus,
    Trajectory,
    Turn,
    Verdict,
    VerdictKind,
)

VOCABULARY = 400


@dataclass
class MadeReport:
    """Looks like the learner's report."""

    update: int
    keys: tuple[str, ...]
    details: dict[str, dict[str, np.ndarray]]
    applied: bool = True
    loss: float = 0.125
    grad_norm: float = 1.5
    lr: float = 1e-3
    model_tokens: int = 0
    sequences: int = 0
    diagnostics: dict[str, float] = field(default_factory=dict)


def made_trajectory(problem: str, sample: int, tokens: int, rng: random.Random) -> Trajectory:
    """One with a tool call, about half of it sampled; one in five is void, one in seven timed out."""
    ids = lambda n: tuple(rng.randrange(VOCABULARY) for _ in range(n))  # noqa: E731
    part = max(tokens // 4, 1)
    sampled = lambda n: Segment(  # noqa: E731
        Origin.MODEL, ids(n), tuple(-abs(rng.gauss(0, 1)) for _ in range(n)), (3,) * n
    )
    void, late, right = rng.random() < 0.2, rng.random() < 0.15, rng.random() < 0.5
    status = ToolStatus.TIMEOUT if late else ToolStatus.OK
    outcome = ToolOutcome(status, stdout="17\n", exit_code=0, wall_ms=12.5, cpu_ms=3.0, tier="T3")
    turns = [
        Turn(
            "```python\nprint(8 + 9)\n```", FinishReason.FENCE, code="print(8 + 9)", outcome=outcome, observation="17"
        ),
        Turn("no", FinishReason.EOS, void=True) if void else Turn("\\boxed{17}", FinishReason.EOS, answer="17"),
    ]
    kind = VerdictKind.CORRECT if right and not void else VerdictKind.WRONG
    answer = None if void else "17"
    return Trajectory(
        Problem(problem, f"What is 8 + 9, asked as {problem}?", "17" if right else "18", source=f"family{sample % 3}"),
        sample,
        [Segment(Origin.PROMPT, ids(part)), sampled(part), Segment(Origin.SEPARATOR, ids(3)),
         Segment(Origin.TOOL, ids(max(part - 3, 1))), sampled(part)],
        turns,
        stop=StopReason.VOID if void else StopReason.ANSWER,
        answer=answer,
        verdict=Verdict(kind, "made up", answer, "17", "math/1"),
        reward=1.0 if kind is VerdictKind.CORRECT else 0.0,
        reward_parts={"verdict": 1.0 if kind is VerdictKind.CORRECT else 0.0},
        seconds=rng.random(),
    )  # fmt: skip


def made_details(n: int, length: int, mask: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Per-token quantities [length] of one trajectory with `n` model tokens."""
    t = np.arange(1, n + 1)
    log_ratio = rng.normal(0, 0.02, n).astype(np.float32)
    prefix = log_ratio.cumsum()
    divergence = np.abs(rng.normal(0, 0.01, n))
    found = {
        "logp": -np.abs(rng.normal(0, 1, n)), "logp_old": -np.abs(rng.normal(0, 1, n)),
        "ratio": np.exp(log_ratio), "log_ratio": log_ratio, "prefix_log_ratio": prefix,
        "window_lower": -0.025 * np.sqrt(t), "window_upper": 0.05 * np.sqrt(t), "divergence": divergence,
        "position_weight": 1 - 0.2 * (t - 1) / max(n - 1, 1), "budget": np.full(n, 0.15), "gate": np.ones(n),
        "weight": np.ones(n), "loss": rng.normal(0, 1, n), "entropy": np.abs(rng.normal(0, 1, n)),
        "reason": np.where(prefix > 0.05 * np.sqrt(t), 2, np.where(prefix < -0.025 * np.sqrt(t), 3, 1)),
    }  # fmt: skip
    spread = {}
    for name, values in found.items():
        whole = np.zeros(length, np.int64 if name == "reason" else np.float32)
        whole[mask] = values
        spread[name] = whole
    return spread


def make_run(
    run: Path, *, steps: int = 2, problems: int = 4, samples: int = 4, tokens: int = 60, seed: int = 0,
    level: str = "full", updates: bool = True,
) -> Path:  # fmt: skip
    """A run's folder with recorded training steps; returns the folder."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    recorder = TrajectoryRecorder(run / "trajectories", level=level, piece=lambda i: f"w{i}" if i % 9 else "\n")
    for step in range(1, steps + 1):
        made = [made_trajectory(f"p{step}-{p}", s, tokens, rng) for p in range(problems) for s in range(samples)]
        about: list[dict[str, Any]] = [
            {"advantage": 2 * t.reward - 1, "filters": ["void"] if t.void else []} for t in made
        ]
        recorder.append(f"train-{step:06}", made, about, step=step)
        if not updates:
            continue
        trained = [(t, a["advantage"]) for t, a in zip(made, about, strict=True) if not a["filters"]]
        masks = {t.key: np.array(t.loss_mask, bool) for t, _ in trained}
        details = {
            t.key: made_details(t.sampled_tokens, t.length, masks[t.key], numbers)
            | {"logp_mu": np.array(t.logprobs, np.float32)}
            for t, _ in trained
        }
        keys = tuple(details)
        halves = [keys[: len(keys) // 2], keys[len(keys) // 2 :]]
        reports = [MadeReport(n, half, {key: details[key] for key in half}) for n, half in enumerate(halves)]
        recorder.append_updates(step, reports, {t.key: Tokens(masks[t.key], a) for t, a in trained})
    return run
