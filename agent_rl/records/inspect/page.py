"""The static page of a run: one file, offline, with every recorded token in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agent_rl.records.inspect import curves, overview, pack
from agent_rl.records.manifest import read as read_manifest
from agent_rl.records.pieces import read_pieces
from agent_rl.records.reader import folders, trajectories, updates
from agent_rl.records.schema import Record, Summary
from agent_rl.records.token_updates import Update, read_extremes

LIMIT = 5000
"""Trajectories of a page, unless asked for more."""
_COLUMNS = (
    "split", "step", "source", "stop", "verdict", "answer", "gold", "reward", "advantage", "filters", "void",
    "truncated", "timed_out", "failed", "tool_calls", "tool_failures", "length", "sampled_tokens",
)  # fmt: skip

OtherMethods = Mapping[tuple[int, str], Mapping[str, Mapping[str, np.ndarray]]]
"""(step, key) -> method -> quantity -> [model tokens]."""


@dataclass(frozen=True)
class Comparison:
    """What other methods would have done with recorded batches."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    tokens: OtherMethods = field(default_factory=dict)


def write_page(
    path: Path,
    run: Path,
    rows: Sequence[Summary],
    *,
    name: str,
    subtitle: str = "",
    metrics: Sequence[Mapping[str, Any]] = (),
    config: str = "",
    notes: Sequence[str] = (),
    comparison: Comparison | None = None,
    limit: int = LIMIT,
) -> int:
    """Write the page of `rows` (evenly chosen if there are more than `limit`); how many trajectories are in it."""
    import jinja2
    from markupsafe import Markup

    chosen = evenly(rows, limit)
    if len(chosen) < len(rows):
        notes = [*notes, f"{len(chosen)} of {len(rows)} trajectories are in this page, evenly chosen (--limit)."]
    recorded = _Recorded(run, comparison)
    index, chunks = recorded.packed(chosen)
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    here = Path(__file__).parent
    manifest = read_manifest(folders(run)[0])

    def shown(pairs: list[tuple[str, str]]) -> list[tuple[str, Markup]]:
        return [(title, Markup(svg)) for title, svg in pairs]

    page = environment.get_template("page.html.jinja").render(
        name=name,
        subtitle=subtitle,
        notes=notes,
        table=curves.before_and_after(metrics),
        methods=comparison,
        taxonomy=shown(overview.bars(overview.taxonomy(rows))),
        histograms=shown(overview.bars(overview.histograms(rows, recorded.sampled_updates()))),
        charts=shown(curves.charts(metrics)),
        config=config,
        manifest="" if manifest is None else json.dumps(manifest, indent=1),
        css=Markup((here / "page.css").read_text(encoding="utf-8")),
        js=Markup((here / "page.js").read_text(encoding="utf-8")),
        index=Markup(index),
        chunks=[Markup(chunk) for chunk in chunks],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return len(chosen)


def evenly(rows: Sequence[Summary], limit: int) -> list[Summary]:
    """At most `limit` rows, evenly spread."""
    if len(rows) <= limit:
        return list(rows)
    return [rows[i * len(rows) // limit] for i in range(limit)]


class _Recorded:
    """The recording of one run, read step by step."""

    def __init__(self, run: Path, comparison: Comparison | None):
        self.run = run
        self.others = {} if comparison is None else comparison.tokens
        self._updates: dict[int, list[Update]] = {}

    def packed(self, rows: Sequence[Summary]) -> tuple[str, list[str]]:
        """The packed index and chunks."""
        columns: dict[str, list[Any]] = {"key": [], "question": [], "chunk": [], "row": []}
        questions: dict[str, int] = {}
        chunks = []
        for number, part in enumerate(pack.groups_of(list(rows))):
            members = []
            for place, (row, record) in enumerate(zip(part, trajectories(self.run, only=part), strict=True)):
                columns["key"].append(row.key)
                columns["question"].append(questions.setdefault(record.problem.question, len(questions)))
                columns["chunk"].append(number)
                columns["row"].append(place)
                members.append(self._member(row, record))
            chunks.append(pack.chunk(members))
        for name in _COLUMNS:
            columns[name] = [getattr(row, name) for row in rows]
        columns |= self._extremes(rows)
        pieces = {i: text for folder in folders(self.run) for i, text in read_pieces(folder).items()}
        index = {"columns": columns, "questions": list(questions), "pieces": pieces, "reasons": reasons()}
        return pack.packed(json.dumps(index, ensure_ascii=False).encode("utf-8", "replace")), chunks

    def _member(self, row: Summary, record: Record) -> Any:
        if row.split != "train" or row.step is None:
            return record, [], {}
        passes = pack.passes_by_key(self._step(row.step)).get(row.key, [])
        return record, passes, self.others.get((row.step, row.key), {})

    def _step(self, step: int) -> list[Update]:
        if step not in self._updates:
            self._updates = {step: updates(self.run, step)}
        return self._updates[step]

    def _extremes(self, rows: Sequence[Summary]) -> dict[str, list[float]]:
        known = {k: v for folder in folders(self.run) for k, v in read_extremes(folder).items()}
        found: dict[str, list[float]] = {}
        for name in ("max_abs_log_ratio", "clipped", "gated"):
            values = [known.get((r.step or 0, r.key), {}) if r.split == "train" else {} for r in rows]
            found[name] = [round(float(v.get(name, 0.0)), 6) for v in values]
        return found

    def sampled_updates(self, most: int = 8) -> list[Update]:
        """Updates of at most so many steps, evenly chosen, for histograms."""
        from agent_rl.records.token_updates import steps_with_updates

        steps = [s for folder in folders(self.run) for s in steps_with_updates(folder)]
        chosen = steps if len(steps) <= most else [steps[i * (len(steps) - 1) // (most - 1)] for i in range(most)]
        return [update for step in chosen for update in updates(self.run, step)]


def reasons() -> list[dict[str, str]]:
    """Names and texts of the gate reasons, by number."""
    return [{"name": name, "text": text} for name, text in REASONS]


REASONS = (
    ("not trained", "a prompt, tool or separator token"),
    ("kept", "the gradient of the plain surrogate passes"),
    ("clipped high", "the ratio is above the window"),
    ("clipped low", "the ratio is below the window"),
    ("dual clipped", "A < 0 and the ratio is above the dual clip"),
    ("over budget", "CPPO: the prefix's divergence budget is spent"),
    ("token test", "CPPO: the token's own weighted divergence is above delta"),
    ("diverged", "DPPO: the token's divergence is above delta"),
    ("sequence dropped", "TRM: the trajectory is outside the trust region"),
    ("mismatch dropped", "the sampler-trainer correction gave weight 0"),
)
"""`agent_rl.algorithms.evaluation.Reason`, in words; kept here so that looking needs no torch."""
