"""The configuration of a training run: one file composes the settings that each package owns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agent_rl.algorithms.settings import MethodSettings
from agent_rl.cluster.settings import ClusterSettings
from agent_rl.engines.settings import EngineSettings
from agent_rl.learner.settings import LearnerSettings
from agent_rl.records.settings import RecordSettings
from agent_rl.rewards.settings import RewardSettings
from agent_rl.rollout.settings import ModelSettings, RolloutSettings, SandboxSettings
from agent_rl.scheduling.settings import AsyncSettings
from agent_rl.settings import Settings
from agent_rl.tasks.settings import DataSettings
from agent_rl.tir.settings import TirSettings
from agent_rl.training.hardware import HardwareSettings
from agent_rl.training.recovery import RecoverySettings
from agent_rl.weights.settings import SyncSettings


class EvalSettings(Settings):
    """One held-out set, measured with the episode code of training."""

    data: DataSettings
    """Its problems (of generated families, the evaluation split)."""
    samples: int = Field(1, ge=0)
    """Sampled attempts a problem, at the training temperature; 0 leaves out the sampled accuracy."""
    greedy: bool = True
    """Whether to measure one greedy attempt a problem too."""
    every: int = Field(10, ge=0)
    """Steps between measurements, besides one before and one after training; 0 = only those."""
    record: int | None = Field(None, ge=0)
    """Trajectories of each measurement that are kept in the run's folder, evenly spread; null = all."""


class TrackerSettings(Settings):
    """Where metrics go besides `metrics.jsonl`, which is always written."""

    tensorboard: bool = True
    """Write TensorBoard event files into the run's folder."""
    wandb: bool = False
    """Log to Weights & Biases (extra `trackers`)."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`offline` writes into the run's folder and needs no account; `wandb sync` uploads it."""
    trackio: bool = False
    """Log to trackio, in a local database (extra `trackers`)."""
    mlflow: bool = False
    """Log to MLflow (extra `trackers`)."""
    mlflow_uri: str | None = None
    """MLflow server or store; null = a store in the run's folder."""
    project: str = "agent-rl"
    """Project (W&B, trackio) or experiment (MLflow) that the run is filed under."""


class RunConfig(Settings):
    """A training run."""

    name: str = "run"
    """Name of the run's folder under `runs_dir`."""
    runs_dir: str = "runs"
    """Folder of all runs."""
    seed: int = 0
    """Seed of the order of data, of sampling and of mini-batches."""
    deterministic: bool = False
    """Lockstep generation, so that a run repeats bit for bit whatever the tools' latency; slower."""
    mode: Literal["sync", "async"] = "sync"
    """`sync`: play a batch, learn from it, hand the weights over. `async`: rollouts go on while the learner works."""
    asynchronous: AsyncSettings = AsyncSettings()
    """With `mode: async`: how old trajectories may be, and what is done about late ones."""
    threads: int = Field(0, ge=0)
    """Threads of tensor operations on the CPU; 0 = PyTorch's choice."""
    steps: int = Field(100, ge=1)
    """Rollout batches of the run."""
    problems_per_step: int = Field(32, ge=1)
    """Problems of one rollout batch."""
    samples_per_problem: int = Field(8, ge=2)
    """Attempts at each problem: a group."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of training; ratios are of the same tempered distribution."""
    void_filter: bool = True
    """Leave trajectories that end in a void turn out of the loss (SimpleTIR); their rewards stay in the group."""
    refill_rounds: int = Field(0, ge=0)
    """How often dead groups are replaced by fresh problems before the batch is trained on as it is."""
    model: ModelSettings = ModelSettings()
    data: DataSettings
    """Problems to train on."""
    evals: dict[str, EvalSettings] = Field(default_factory=dict)
    """Held-out sets by name; the names head their metrics (`eval/accuracy_sampled`)."""
    engine: EngineSettings = EngineSettings()
    tir: TirSettings = TirSettings()
    rewards: RewardSettings = RewardSettings()
    rollout: RolloutSettings = RolloutSettings()
    sandbox: SandboxSettings = SandboxSettings()
    method: MethodSettings = MethodSettings()
    learner: LearnerSettings = LearnerSettings()
    sync: SyncSettings = SyncSettings()
    records: RecordSettings = RecordSettings()
    trackers: TrackerSettings = TrackerSettings()
    cluster: ClusterSettings = ClusterSettings()
    hardware: HardwareSettings = HardwareSettings()
    recovery: RecoverySettings = RecoverySettings()

    @property
    def trajectories_per_step(self) -> int:
        return self.problems_per_step * self.samples_per_problem

    @model_validator(mode="after")
    def _one_order_of_events(self) -> RunConfig:
        if self.mode == "async" and self.deterministic:
            raise ValueError(
                "mode = async depends on when rollouts end, so that deterministic = true cannot be kept; use mode: sync"
            )
        if self.cluster.kind == "ray" and self.deterministic:
            raise ValueError(
                "deterministic = true needs lockstep batches of one engine; set it to false, or cluster.kind to none"
            )
        return self

    @model_validator(mode="after")
    def _divides(self) -> RunConfig:
        total, updates = self.trajectories_per_step, self.learner.updates_per_batch
        if total % updates:
            near = [u for u in range(1, total + 1) if total % u == 0]
            suggestion = min(near, key=lambda u: (abs(u - updates), u))
            raise ValueError(
                f"{self.problems_per_step} problems x {self.samples_per_problem} samples = {total} trajectories "
                f"cannot be cut into learner.updates_per_batch = {updates} equal updates; "
                f"{suggestion} updates of {total // suggestion} would do"
            )
        return self
