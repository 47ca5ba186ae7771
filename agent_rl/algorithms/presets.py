"""The published combinations by name. `register` adds one; nothing here imports torch."""

from __future__ import annotations

from agent_rl.algorithms.choices import (
    Advantage,
    Aggregation,
    Cispo,
    DivergenceMask,
    Gmpo,
    Mismatch,
    NoClip,
    PpoClip,
    PrefixBudget,
    Ratio,
    Recipe,
    SequenceMask,
    Soft,
    SqrtClip,
)

PRESETS: dict[str, Recipe] = {}


def register(recipe: Recipe) -> Recipe:
    """Make `recipe` available under its name; a name that is taken is refused (ValueError)."""
    if recipe.name in PRESETS:
        raise ValueError(f"a method named {recipe.name!r} is registered already; choose another name")
    PRESETS[recipe.name] = recipe
    return recipe


_PREFIX = Ratio(kind="prefix")
_TOKEN_MEAN = Aggregation(mode="token_mean")
_SUM_NORM = Aggregation(mode="seq_mean_token_sum_norm")
_CENTRED = Advantage(kind="group_mean")
_CAPPED = NoClip(ratio_cap=20.0, gradient="log_prob")

for _recipe in (
    Recipe(
        name="none",
        source="Williams 1992 (REINFORCE), importance-weighted",
        clip=NoClip(),
    ),
    Recipe(name="grpo", source="Shao et al. 2024, arXiv 2402.03300"),
    Recipe(
        name="dapo",
        source="Yu et al. 2025, arXiv 2503.14476",
        clip=PpoClip(eps_lo=0.2, eps_hi=0.28),
        aggregation=_TOKEN_MEAN,
    ),
    Recipe(
        name="dr_grpo",
        source="Liu et al. 2025, arXiv 2503.20783",
        advantage=_CENTRED,
        aggregation=_SUM_NORM,
    ),
    Recipe(
        name="reinforce_pp",
        source="Hu 2025, arXiv 2501.03262",
        advantage=Advantage(kind="reinforce_pp", eps=1e-8, drop_dead_groups=False),
        aggregation=_TOKEN_MEAN,
    ),
    Recipe(
        name="reinforce_pp_baseline",
        source="Hu 2025, arXiv 2501.03262, group-baseline form",
        advantage=Advantage(kind="reinforce_pp_baseline", eps=1e-8),
        aggregation=_TOKEN_MEAN,
    ),
    Recipe(
        name="gspo",
        source="Zheng et al. 2025, arXiv 2507.18071",
        ratio=Ratio(kind="sequence"),
        clip=PpoClip(eps_lo=3e-4, eps_hi=4e-4),
    ),
    Recipe(name="gmpo", source="Zhao et al. 2025, arXiv 2507.20673", clip=Gmpo()),
    Recipe(
        name="cispo",
        source="MiniMax 2025, arXiv 2506.13585; cap 5 as in TRL and ScaleRL",
        clip=Cispo(),
        aggregation=_TOKEN_MEAN,
    ),
    Recipe(name="sapo", source="arXiv 2511.20347", clip=Soft()),
    Recipe(
        name="dppo_tv",
        source="arXiv 2602.04879, binary total variation",
        ratio=Ratio(anchor="mu"),
        clip=_CAPPED,
        divergence_mask=DivergenceMask(delta=0.15, divergence="binary_tv"),
        advantage=_CENTRED,
        aggregation=_SUM_NORM,
    ),
    Recipe(
        name="dppo_kl",
        source="arXiv 2602.04879, binary KL",
        ratio=Ratio(anchor="mu"),
        clip=_CAPPED,
        divergence_mask=DivergenceMask(delta=0.05, divergence="binary_kl"),
        advantage=_CENTRED,
        aggregation=_SUM_NORM,
    ),
    Recipe(
        name="trm",
        source="arXiv 2512.23075 (TRM-Max); thresholds as quoted by arXiv 2606.10968",
        ratio=Ratio(anchor="mu"),
        clip=NoClip(),
        sequence_mask=SequenceMask(),
    ),
    Recipe(
        name="minpro",
        source="arXiv 2601.22718; the clip values are ours, the paper's are not known to us",
        ratio=Ratio(kind="prefix_min"),
        clip=Cispo(),
        aggregation=_TOKEN_MEAN,
    ),
    Recipe(
        name="pnpo",
        source="arXiv 2608.01418; window as in the geometric-mean mode of the CTPO release",
        ratio=Ratio(kind="prefix_geomean"),
        clip=SqrtClip(power=-0.5),
    ),
    Recipe(
        name="ctpo",
        source="arXiv 2605.07331, as released by its authors (horizon-llm/CTPO)",
        ratio=_PREFIX,
        clip=SqrtClip(),
        mismatch=Mismatch(kind="sequence_tis", cap=5.0),
    ),
    Recipe(
        name="ctpo_paper",
        source="arXiv 2605.07331, objective as printed",
        ratio=_PREFIX,
        clip=SqrtClip(dual=None),
    ),
    Recipe(
        name="cppo",
        source="arXiv 2606.10968",
        ratio=Ratio(anchor="mu"),
        clip=_CAPPED,
        prefix_budget=PrefixBudget(),
    ),
    Recipe(
        name="ctpo_cppo",
        source="ours: arXiv 2605.07331 and arXiv 2606.10968 combined",
        ratio=_PREFIX,
        clip=SqrtClip(),
        prefix_budget=PrefixBudget(),
        mismatch=Mismatch(kind="prefix_tis", cap=5.0),
    ),
):
    register(_recipe)
