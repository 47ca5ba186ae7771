"""What it takes to play episodes of a policy outside training."""

from __future__ import annotations

from pydantic import Field

from agent_rl.engines.settings import EngineSettings
from agent_rl.rewards.settings import RewardSettings
from agent_rl.rollout.settings import ModelSettings, RolloutSettings, SandboxSettings
from agent_rl.settings import Settings
from agent_rl.tir.settings import TirSettings


class PlaySettings(Settings):
    """A policy and its surroundings. What a run or a warm-up recorded beside the policy is the default."""

    model: ModelSettings = ModelSettings()
    threads: int = Field(0, ge=0)
    """Threads of tensor operations on the CPU; 0 = PyTorch's choice."""
    deterministic: bool = False
    """Lockstep generation, so that a measurement repeats bit for bit whatever the tools' latency; slower."""
    engine: EngineSettings = EngineSettings()
    tir: TirSettings = TirSettings()
    rewards: RewardSettings = RewardSettings()
    rollout: RolloutSettings = RolloutSettings()
    sandbox: SandboxSettings = SandboxSettings()
