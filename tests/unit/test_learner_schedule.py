"""Learning-rate schedules and the optimiser's parameter groups."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from agent_rl.learner.optimizer import adamw, clip_gradients, learning_rate
from agent_rl.learner.settings import LearnerSettings, OptimizerSettings


def test_warm_up_rises_linearly_to_the_peak():
    settings = OptimizerSettings(lr=1.0, warmup_updates=4)
    assert [learning_rate(i, settings, None) for i in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_falls_to_its_share_and_stays():
    settings = OptimizerSettings(lr=2.0, schedule="linear", final_lr_ratio=0.5)
    assert [learning_rate(i, settings, 4) for i in (0, 2, 4, 9)] == [2.0, 1.5, 1.0, 1.0]


def test_cosine_is_half_way_down_in_the_middle():
    settings = OptimizerSettings(lr=1.0, schedule="cosine", warmup_updates=2)
    assert learning_rate(2, settings, 10) == 1.0
    assert learning_rate(6, settings, 10) == pytest.approx(0.5)
    assert learning_rate(10, settings, 10) == pytest.approx(0.0)


def test_a_schedule_without_an_end_is_refused():
    with pytest.raises(ValueError, match=r"optimizer\.schedule=cosine needs optimizer.total_updates"):
        learning_rate(0, OptimizerSettings(schedule="cosine"), None)


def test_a_warm_up_longer_than_the_run_is_refused():
    with pytest.raises(ValidationError, match="warmup_updates=9 must be below"):
        LearnerSettings(optimizer=OptimizerSettings(warmup_updates=9, total_updates=5))


def test_only_matrices_decay_and_frozen_weights_are_left_out():
    layer, frozen = torch.nn.Linear(3, 2), torch.nn.Linear(2, 2).requires_grad_(False)
    optimizer = adamw([*layer.parameters(), *frozen.parameters()], OptimizerSettings(weight_decay=0.1))
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays == {id(layer.weight): 0.1, id(layer.bias): 0.0}


def test_a_model_without_trainable_weights_is_refused():
    with pytest.raises(ValueError, match="no parameter of the model is trainable"):
        adamw(torch.nn.Linear(2, 2).requires_grad_(False).parameters(), OptimizerSettings())


@pytest.mark.parametrize(("limit", "left"), [(1.0, 1.0), (None, 5.0), (10.0, 5.0)])
def test_clipping_reports_the_norm_before_it(limit, left):
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert clip_gradients([parameter], limit) == pytest.approx(5.0)
    assert float(parameter.grad.norm()) == pytest.approx(left, rel=1e-5)


def test_settings_import_nothing_heavy():
    import subprocess
    import sys

    code = "import agent_rl.learner.settings, sys; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "False"]
