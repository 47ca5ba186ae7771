"""From one pass's log-probs to its share of the update's loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_rl.algorithms.aggregation import Counts, aggregate
from agent_rl.algorithms.choices import Recipe
from agent_rl.algorithms.diagnostics import Diagnostics, summarise
from agent_rl.algorithms.method import explain, load_method
from agent_rl.learner.packing import Pass

RowValues = dict[str, Tensor]
"""Row name -> float32 [length] on the CPU, 0 at tokens that nobody sampled."""


@dataclass(frozen=True)
class OwnSums:
    """Diagnostics of a loss function of one's own: named sums over tokens, addable as `Diagnostics` are."""

    sums: dict[str, float]

    def __add__(self, other: OwnSums) -> OwnSums:
        return OwnSums({name: self.sums.get(name, 0.0) + other.sums.get(name, 0.0) for name in self.sums | other.sums})

    def to_dict(self) -> dict[str, list[float]]:
        """Plain numbers, for sending to another process."""
        return {name: [value] for name, value in self.sums.items()}


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
    ) -> tuple[Tensor, Diagnostics | OwnSums]:
        """Scalar share of the loss (divided by the whole update's `counts`), and addable diagnostics.

        `logp` and `entropy` are [M] as the policy gives them; `old=None` means pi_old = pi.
        """
        flat = layout.spread(logp)
        arguments = self._sources(layout, flat, old)
        diagnostics: Diagnostics | OwnSums
        if self.recipe.function is None:
            per_token, diagnostics = self._method(
                *arguments,
                self.recipe,
                logp_ref=by_token(layout, reference),
                entropy=None if entropy is None else layout.spread(entropy),
                trajectory_ids=torch.tensor([places[row.key] for row in layout.rows], device=flat.device),
            )
        else:
            per_token, own = self._method(*arguments, self.recipe)
            diagnostics = OwnSums({name: float(value) for name, value in own.items()})
        return aggregate(per_token, layout.mask, layout.segments, self.recipe.aggregation.mode, counts), diagnostics

    def summary(self, parts: Sequence[dict[str, list[float]] | None]) -> dict[str, float]:
        """Of several ranks' `to_dict()`: rates and means of the composed methods, sums of one's own."""
        found = [part for part in parts if part is not None]
        if not found:
            return {}
        if self.recipe.function is not None:
            own = [OwnSums({name: values[0] for name, values in part.items()}) for part in found]
            return sum(own[1:], own[0]).sums
        composed = [Diagnostics.from_dict(part) for part in found]
        return summarise(sum(composed[1:], composed[0]))

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
