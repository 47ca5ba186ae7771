"""What is measured, how attempts are sampled, and how intervals are made."""

from __future__ import annotations

import re

from pydantic import Field, model_validator

from agent_rl.settings import Settings
from agent_rl.tasks.settings import DataSettings
from agent_rl.tir.settings import TirSettings


class EvaluationSettings(Settings):
    """A measurement of one policy on one or more problem sets."""

    data: dict[str, DataSettings] = Field(default_factory=dict)
    """Problem sets of the user's own, by the name that the report gives them."""
    benchmarks: list[str] = Field(default_factory=list)
    """Known problem sets, such as `aime24` or `math500` (`agent-rl tasks benchmarks` lists them)."""
    benchmark_dir: str = "data"
    """Folder with the files of `benchmarks`."""
    samples: int = Field(8, ge=1)
    """Attempts at each problem: the k of avg@k and maj@k."""
    pass_at: list[int] | None = None
    """The k of pass@k; null = the powers of two up to `samples`, and `samples`."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: smallest set of tokens with so much probability."""
    top_k: int = Field(0, ge=0)
    """Sample among so many tokens only; 0 = all."""
    seed: int = 0
    """Seed of sampling and of the bootstrap."""
    limit: int | None = Field(None, ge=1)
    """Only the first so many problems of each set."""
    max_turns: int | None = Field(None, ge=1)
    """Generations of one episode; null = as in `tir`."""
    max_turn_tokens: int | None = Field(None, ge=1)
    """Cap on sampled tokens of one turn; null = as in `tir`."""
    max_total_tokens: int | None = Field(None, ge=2)
    """Cap on all tokens of a trajectory; null = as in `tir`."""
    max_failed_share: float = Field(0.25, gt=0, le=1)
    """A larger share of attempts that failed for reasons of ours stops the measurement."""
    confidence: float = Field(0.95, gt=0, lt=1)
    """Coverage of the bootstrap intervals over problems."""
    resamples: int = Field(2000, ge=100)
    """Bootstrap resamples."""

    @model_validator(mode="after")
    def _consistent(self) -> EvaluationSettings:
        if both := set(self.data) & set(self.benchmarks):
            raise ValueError(f"evaluation.data and evaluation.benchmarks both name {', '.join(sorted(both))}")
        if odd := [n for n in (*self.data, *self.benchmarks) if not re.fullmatch(r"[\w.-]+", n)]:
            raise ValueError(f"problem set name {odd[0]!r}: use letters, digits, '.', '_' and '-' (it names a folder)")
        if bad := [k for k in self.pass_at or [] if not 1 <= k <= self.samples]:
            raise ValueError(
                f"evaluation.pass_at names {bad[0]}, but samples = {self.samples}: pass@k needs k <= samples"
            )
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(
                f"evaluation.temperature = 0 makes all {self.samples} attempts equal: set samples = 1, or a temperature"
            )
        return self

    @property
    def pass_ks(self) -> list[int]:
        """The k of pass@k, in order, without repetition."""
        if self.pass_at is not None:
            return sorted(set(self.pass_at))
        powers = [1 << i for i in range(self.samples.bit_length()) if 1 << i <= self.samples]
        return sorted({*powers, self.samples})

    def episode(self, tir: TirSettings) -> TirSettings:
        """The episode's settings with the limits of this measurement."""
        names = ("max_turns", "max_turn_tokens", "max_total_tokens")
        own = {n: getattr(self, n) for n in names if getattr(self, n) is not None}
        return TirSettings(**{**tir.model_dump(), **own})
