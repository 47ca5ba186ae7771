"""The small choices a policy-optimisation method is made of, as frozen settings (no torch here).

A `Recipe` is one ratio, one clip, up to three gates, one mismatch correction, one advantage estimator and
one aggregation. `agent_rl.algorithms.presets` names the combinations that papers have published.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from agent_rl.settings import Settings

Anchor = Literal["old", "mu"]
Divergence = Literal["binary_tv", "binary_kl", "topk_tv", "topk_kl"]


class Ratio(Settings):
    """Which likelihood ratio stands in front of the advantage."""

    kind: Literal["token", "prefix", "prefix_geomean", "sequence", "sequence_token", "prefix_min"] = "token"
    """`token` pi/b, `prefix` cumulative product (CTPO), `prefix_geomean` its t-th root (PNPO), `sequence`
    geometric mean of the whole response (GSPO), `sequence_token` the same value with a per-token gradient
    (GSPO-token), `prefix_min` smallest earlier ratio times this one (MinPRO)."""
    anchor: Anchor = "old"
    """Denominator b: `old` = recomputed by the trainer, `mu` = stored by the sampler."""


class PpoClip(Settings):
    """PPO's clip with separate sides (clip-higher) and an optional dual clip."""

    kind: Literal["ppo_clip"] = "ppo_clip"
    eps_lo: float = Field(0.2, ge=0)
    """Lower side: the ratio is clipped at 1 - eps_lo."""
    eps_hi: float = Field(0.2, ge=0)
    """Upper side: the ratio is clipped at 1 + eps_hi."""
    dual: float | None = Field(None, gt=1)
    """For A < 0 the loss is at most -A * dual; null = no dual clip."""


class SqrtClip(Settings):
    """CTPO's window on the log-ratio, growing with the model-token index t."""

    kind: Literal["sqrt_clip"] = "sqrt_clip"
    eps_lo: float = Field(0.025, ge=0)
    """Lower bound of the log-ratio: -eps_lo * t**power."""
    eps_hi: float = Field(0.05, ge=0)
    """Upper bound of the log-ratio: +eps_hi * t**power."""
    power: float = Field(0.5, ge=-1, le=1)
    """Exponent of t: 0.5 follows a random walk, 0 is a fixed window."""
    dual: float | None = Field(0.05, gt=0)
    """For A < 0 the loss is at most -A * exp(dual * t**power); null = no dual clip."""


class Soft(Settings):
    """SAPO's sigmoid gate in place of a hard clip."""

    kind: Literal["soft"] = "soft"
    tau_pos: float = Field(1.0, gt=0)
    """Temperature for A > 0."""
    tau_neg: float = Field(1.05, gt=0)
    """Temperature for A <= 0."""


class Cispo(Settings):
    """CISPO: a clipped, detached ratio times log pi, so every token keeps a gradient."""

    kind: Literal["cispo"] = "cispo"
    ratio_min: float = Field(0.0, ge=0)
    """Smallest weight."""
    ratio_max: float = Field(5.0, gt=0)
    """Largest weight."""


class Gmpo(Settings):
    """GMPO: token log-ratios clipped on the side of the advantage's sign, then a geometric mean."""

    kind: Literal["gmpo"] = "gmpo"
    eps_lo: float = Field(0.4, ge=0)
    """For A < 0 the token's log-ratio is at least -eps_lo."""
    eps_hi: float = Field(0.4, ge=0)
    """For A > 0 the token's log-ratio is at most +eps_hi."""


class NoClip(Settings):
    """No clip: the importance-weighted policy gradient."""

    kind: Literal["none"] = "none"
    ratio_cap: float | None = Field(None, gt=0)
    """Upper bound of the ratio; null = unbounded (up to the log-ratio clamp)."""
    gradient: Literal["ratio", "log_prob"] = "ratio"
    """`ratio`: -A r, a capped ratio has no gradient. `log_prob`: -A sg(r) log pi, a capped ratio keeps one."""


Clip = Annotated[PpoClip | SqrtClip | Soft | Cispo | Gmpo | NoClip, Field(discriminator="kind")]


class PrefixBudget(Settings):
    """CPPO's gate: a position-weighted token test and a budget on the prefix's running divergence."""

    delta: float = Field(0.15, gt=0)
    """Largest weighted divergence of one token, and the budget's initial slack."""
    delta_b: float = Field(0.015, ge=0)
    """Budget per unit of position weight (its floor when `adaptive`)."""
    adaptive: bool = False
    """Per trajectory: delta_b = min(ceiling * delta_b, max(delta_b, quantile of its divergences))."""
    ceiling: float = Field(2.0, ge=1)
    """Upper end of the adaptive budget as a multiple of delta_b."""
    quantile: float = Field(0.9, gt=0, lt=1)
    """Quantile of the trajectory's token divergences used by the adaptive budget."""
    w_min: float = Field(0.8, gt=0, le=1)
    """Position weight of the last model token (the first has 1)."""
    soft: bool = False
    """Scale outward updates by min(1, 1/x) instead of dropping them."""
    divergence: Divergence = "binary_tv"
    """Token divergence between sampler and policy."""
    anchor: Anchor = "mu"
    """The policy that divergence and direction are measured against."""


class DivergenceMask(Settings):
    """DPPO's gate: drop outward updates of tokens whose divergence is above delta."""

    delta: float = Field(0.15, gt=0)
    """Largest divergence of a token that may still move outward."""
    divergence: Divergence = "binary_tv"
    """Token divergence between sampler and policy."""
    anchor: Anchor = "mu"
    """The policy that divergence and direction are measured against."""


class SequenceMask(Settings):
    """TRM's gate: drop a whole trajectory whose divergence is above delta."""

    statistic: Literal["max", "mean"] = "max"
    """Over the trajectory's model tokens."""
    delta: float = Field(0.1, gt=0)
    """Bound on the statistic of KL(anchor || pi)."""
    divergence: Literal["k2", "k3", "binary_kl", "topk_kl"] = "k3"
    """Per-token estimate of KL(anchor || pi)."""
    anchor: Anchor = "mu"
    """The policy that the divergence is measured against."""


class Mismatch(Settings):
    """Correction for the gap between sampler (mu) and trainer snapshot (pi_old)."""

    kind: Literal["none", "token_tis", "prefix_tis", "sequence_tis", "icepop", "sequence_mask", "geometric_mask"] = (
        "none"
    )
    """Weights: token / prefix / sequence truncated importance sampling, IcePop. Masks: whole trajectories."""
    cap: float = Field(5.0, gt=0)
    """Truncation C of the three TIS weights."""
    lo: float | None = Field(None, ge=0)
    """Lower bound of IcePop (token ratio) or of a mask (product, or geometric mean); null = none."""
    hi: float | None = Field(None, gt=0)
    """Upper bound of IcePop or of a mask; null = none."""

    @model_validator(mode="after")
    def _bounds(self) -> Mismatch:
        bounded = self.kind in ("icepop", "sequence_mask", "geometric_mask")
        if bounded and self.lo is None and self.hi is None:
            raise ValueError(f"mismatch.kind={self.kind} needs mismatch.lo or mismatch.hi (or both)")
        if not bounded and (self.lo is not None or self.hi is not None):
            raise ValueError(f"mismatch.lo / mismatch.hi are not read by kind={self.kind}; use mismatch.cap")
        if self.lo is not None and self.hi is not None and self.lo >= self.hi:
            raise ValueError(f"mismatch.lo={self.lo} must be below mismatch.hi={self.hi}")
        return self

    @property
    def is_weight(self) -> bool:
        """Whether the correction multiplies by pi_old / mu (a mask only drops)."""
        return self.kind in ("token_tis", "prefix_tis", "sequence_tis", "icepop")


class Advantage(Settings):
    """How a reward becomes an advantage."""

    kind: Literal["group_mean_std", "group_mean", "rloo", "reinforce_pp", "reinforce_pp_baseline"] = "group_mean_std"
    """GRPO, Dr. GRPO, leave-one-out, REINFORCE++ (whitened reward), and its group-baseline form."""
    eps: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""
    void_in_statistics: bool = True
    """Whether rewards of void members enter the group's mean and std."""
    drop_dead_groups: bool = True
    """Leave groups whose rewards are all equal out of the loss and its counts."""


class Aggregation(Settings):
    """How per-token losses become one number."""

    mode: Literal["seq_mean_token_mean", "token_mean", "seq_mean_token_sum_norm"] = "seq_mean_token_mean"
    """Mean of per-trajectory means; mean over all tokens; mean of per-trajectory sums over a constant."""
    horizon: int | None = Field(None, gt=0)
    """The constant of `seq_mean_token_sum_norm` in tokens; null = the trainer's response budget."""


class ReferenceKl(Settings):
    """Penalty beta * KL(pi || reference), estimated per token."""

    beta: float = Field(0.0, ge=0)
    """Coefficient; 0 = off (no reference model needed)."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d, where d = log pi - log reference."""


class Entropy(Settings):
    """Entropy bonus."""

    coefficient: float = Field(0.0, ge=0)
    """The loss gets -coefficient * entropy per token; 0 = off."""


class Recipe(Settings):
    """A whole method: what `resolve` returns, what a loss function receives as `settings`."""

    name: str
    """Preset name, or import path."""
    source: str = ""
    """Where the combination was published."""
    function: str | None = None
    """Import path of a loss function of one's own; null = composed from the choices below."""
    ratio: Ratio = Ratio()
    clip: Clip = PpoClip()
    prefix_budget: PrefixBudget | None = None
    divergence_mask: DivergenceMask | None = None
    sequence_mask: SequenceMask | None = None
    mismatch: Mismatch = Mismatch()
    advantage: Advantage = Advantage()
    aggregation: Aggregation = Aggregation()
    reference_kl: ReferenceKl = ReferenceKl()
    entropy: Entropy = Entropy()
    log_ratio_clamp: float = Field(20.0, gt=0)
    """Bound on the magnitude of a token's log-ratio; hits are counted."""
    cumulative_clamp: float = Field(10.0, gt=0)
    """Upper bound of the cumulative log-ratio before the exponential; hits are counted."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Free settings for a loss function of one's own."""

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.ratio.anchor == "mu" and self.mismatch.is_weight:
            raise ValueError(
                f"ratio.anchor=mu already contains the mismatch; mismatch.kind={self.mismatch.kind} would count it "
                "twice. Use ratio.anchor=old, or mismatch.kind=none."
            )
        if self.clip.kind == "gmpo" and self.ratio.kind != "token":
            raise ValueError(f"clip.kind=gmpo averages token ratios; ratio.kind={self.ratio.kind} must be token")
        return self

    def needs_old(self) -> bool:
        """Whether any part reads `logp_old`."""
        return self._anchors("old") or self.mismatch.kind != "none"

    def needs_mu(self) -> bool:
        """Whether any part reads `logp_mu`."""
        return self._anchors("mu") or self.mismatch.kind != "none"

    def needs_topk(self) -> bool:
        """Whether any gate needs the sampler's top-K log-probs."""
        gates = (self.prefix_budget, self.divergence_mask, self.sequence_mask)
        return any(gate is not None and gate.divergence.startswith("topk") for gate in gates)

    def _anchors(self, anchor: Anchor) -> bool:
        parts = (self.ratio, self.prefix_budget, self.divergence_mask, self.sequence_mask)
        return any(part is not None and part.anchor == anchor for part in parts)
