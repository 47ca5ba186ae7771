"""Runs inside an environment with verl: registers the documented losses and compares them with verl's own.

    python algorithms_in_verl_script.py SNIPPET.py

SNIPPET registers `ctpo` and `cppo` (docs/algorithms.md). Prints one JSON line: per method the largest difference
of loss and gradient over padded batches with tool tokens, with and without weights and global counts.
"""

from __future__ import annotations

import json
import runpy
import sys

import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

from agent_rl.algorithms.adapters import verl_policy_loss
from agent_rl.algorithms.settings import MethodSettings, resolve

ROWS, WIDTH = 6, 40
DUAL = {"clip": {"dual": 3.0}}
CASES: dict[str, tuple[dict, str, str, dict]] = {
    "vanilla": ({"preset": "grpo", **DUAL}, "trainer", "token-mean", {"clip_ratio": 0.2}),
    "vanilla, sequence means": ({"preset": "grpo", **DUAL}, "trainer", "seq-mean-token-mean", {"clip_ratio": 0.2}),
    "vanilla, sums": ({"preset": "dr_grpo", **DUAL}, "trainer", "seq-mean-token-sum-norm", {"clip_ratio": 0.2}),
    "gspo": (
        {"preset": "gspo", "ratio": {"kind": "sequence_token"}},
        "trainer",
        "seq-mean-token-mean",
        {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4},
    ),
    "sapo": ({"preset": "sapo"}, "trainer", "seq-mean-token-mean", {"tau_pos": 1.0, "tau_neg": 1.05}),
    "cispo": (
        {"preset": "cispo", "clip": {"ratio_min": 0.0, "ratio_max": 1.2}},
        "trainer",
        "token-mean",
        {"clip_ratio_low": 10.0, "clip_ratio_high": 0.2},
    ),
    "geo_mean": ({"preset": "gmpo"}, "trainer", "seq-mean-token-mean", {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}),
    "dppo_tv": (
        {"preset": "dppo_tv"},
        "sampler",
        "token-mean",
        {"clip_ratio_low": 0.15, "clip_ratio_high": 0.15, "clip_ratio_c": 20.0},
    ),
    "dppo_kl": (
        {"preset": "dppo_kl"},
        "sampler",
        "token-mean",
        {"clip_ratio_low": 0.05, "clip_ratio_high": 0.05, "clip_ratio_c": 20.0},
    ),
}


def config(**fields) -> ActorConfig:
    return ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, **fields)


def batch(seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(ROWS, WIDTH, generator=draw, dtype=torch.float64)
    logp = (old + 0.2 * torch.randn(ROWS, WIDTH, generator=draw, dtype=torch.float64)).clamp(max=-1e-3)
    mask = (torch.rand(ROWS, WIDTH, generator=draw) > 0.3).double()
    advantage = torch.randn(ROWS, 1, generator=draw, dtype=torch.float64).expand(ROWS, WIDTH)
    return {"old_log_prob": old, "log_prob": logp, "advantages": advantage, "response_mask": mask}


def run(function, inputs, mode, settings, weights) -> tuple[torch.Tensor, torch.Tensor]:
    logp = inputs["log_prob"].clone().requires_grad_(True)
    given = {**inputs, "log_prob": logp}
    loss, _ = function(**given, loss_agg_mode=mode, config=settings, rollout_is_weights=weights)
    loss.backward()
    return loss.detach(), logp.grad


def compare(name: str) -> float:
    method, anchor, mode, fields = CASES[name]
    ours = verl_policy_loss(resolve(MethodSettings(**method)), old_log_prob_is=anchor)
    theirs = get_policy_loss_fn(name.split(",")[0])
    worst = 0.0
    for seed in range(8):
        inputs, settings = batch(seed), config(**fields)
        if seed % 2 and name != "geo_mean":
            step = {"dp_size": 2, "batch_num_tokens": 900, "global_batch_size": 24, "loss_scale_factor": 50}
            settings.global_batch_info.update(step)
        weights = torch.rand(ROWS, WIDTH, dtype=torch.float64) + 0.5 if seed % 3 == 0 and name != "geo_mean" else None
        (a, da), (b, db) = (run(f, inputs, mode, settings, weights) for f in (ours, theirs))
        worst = max(worst, float((a - b).abs()), float((da - db).abs().max()))
    return worst


def main() -> None:
    runpy.run_path(sys.argv[1])
    found: dict[str, object] = {name: compare(name) for name in CASES}
    for name in ("ctpo", "cppo", "ctpo_cppo"):
        loss, gradient = run(get_policy_loss_fn(name), batch(1), "seq-mean-token-mean", config(), None)
        found[name] = bool(loss.isfinite()) and bool((gradient != 0).any())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
