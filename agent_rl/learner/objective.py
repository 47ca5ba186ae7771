"""From one pass's log-probs to its share of the update's loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from agent_rl.algorithms.aggregation import Counts, aggregate
from agent_rl.algorithms.choices import Recipe
from agent_rl.algorithms.diagnostics import Diagnostics
from agent_rl.algorithms.method import explain, load_method
from agent_rl.learner.packing import Pass

RowValues = dict[str, Tensor]
"""Row name -> float32 [length] on the CPU, 0 at tokens that nobody sampled."""


class Objective:
    """A method over laid-out passes. All tensors are [N], tool tokens included, as the method wants them."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self._method = load_method(recipe)

    def loss(
        self,
        layout: Pass,
        logp: Tensor,
        entropy: Tensor | None,
        old: Mapping[str, Tensor] | None,
        reference: Mapping[str, Tensor] | None,
        counts: Counts,
        places: Mapping[str, int],
    ) -> tuple[Tensor, Diagnostics]:
        """Scalar share of the loss (divided by the whole update's `counts`), and addable diagnostics.

        `logp` and `entropy` are [M] as the policy gives them; `old=None` means pi_old = pi.
        """
        flat = layout.spread(logp)
        names = torch.tensor([places[row.key] for row in layout.rows], device=flat.device)
        per_token, diagnostics = self._method(
            *self._sources(layout, flat, old),
            self.recipe,
            logp_ref=by_token(layout, reference),
            entropy=None if entropy is None else layout.spread(entropy),
            trajectory_ids=names,
        )
        return aggregate(per_token, layout.mask, layout.segments, self.recipe.aggregation.mode, counts), diagnostics

    def details(
        self,
        layout: Pass,
        logp: Tensor,
        entropy: Tensor | None,
        old: Mapping[str, Tensor] | None,
        reference: Mapping[str, Tensor] | None,
    ) -> dict[str, RowValues]:
        """Row name -> what happened to each of its tokens (`explain`'s quantities, and the log-probs they rest on)."""
        flat = layout.spread(logp.detach())
        arguments = self._sources(layout, flat, old)
        values: dict[str, Tensor] = {"logp": flat, "logp_old": arguments[1], "logp_mu": layout.logp_mu}
        spread = None if entropy is None else layout.spread(entropy.detach())
        if spread is not None:
            values["entropy"] = spread
        if self.recipe.function is None:
            values |= explain(*arguments, self.recipe, logp_ref=by_token(layout, reference), entropy=spread)
        split = {name: by_row(layout, value) for name, value in values.items()}
        return {row.key: {name: split[name][row.key] for name in split} for row in layout.rows}

    def _sources(self, layout: Pass, flat: Tensor, old: Mapping[str, Tensor] | None) -> tuple[Tensor, ...]:
        snapshot = flat.detach() if old is None else by_token(layout, old)
        return flat, snapshot, layout.logp_mu, layout.advantage, layout.mask, layout.segments


def by_row(layout: Pass, flat: Tensor) -> RowValues:
    """[N] -> one CPU tensor [length] per row."""
    parts = flat.detach().cpu().split([row.length for row in layout.rows])
    return {row.key: part for row, part in zip(layout.rows, parts, strict=True)}


def by_token(layout: Pass, values: Mapping[str, Tensor] | None) -> Tensor | None:
    """The inverse of `by_row`, on the pass's device. Raises ValueError naming a row that is missing."""
    if values is None:
        return None
    missing = [row.key for row in layout.rows if row.key not in values]
    if missing:
        raise ValueError(f"no log-probs were given for row {missing[0]!r}")
    return torch.cat([values[row.key] for row in layout.rows]).to(layout.mask.device)
