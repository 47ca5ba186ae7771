"""What each update did to each model token: one parquet file a rollout batch, there as a whole or not at all.

    pandas.read_parquet("runs/NAME/trajectories/updates-000012.parquet")

One row for each trajectory and update. Its list columns have one entry a model token, in order; the loss, gradient
norm and size of each update stand in the file's metadata.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

SCHEMA = 1
_PREFIX, _SUFFIX = "updates-", ".parquet"
_SKIPPED = frozenset({"index"})
"""Follows from the place in the list."""


class Report(Protocol):
    """What is read of `agent_rl.learner.update.UpdateReport`."""

    update: int
    applied: bool
    loss: float
    grad_norm: float
    lr: float
    model_tokens: int
    sequences: int
    diagnostics: dict[str, float]
    keys: tuple[str, ...]
    details: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the learner was given of one trajectory."""

    mask: np.ndarray
    """[length] bool, true at model tokens."""
    advantage: float


@dataclass(frozen=True, slots=True)
class Update:
    """One recorded optimiser update."""

    number: int
    """Within its rollout batch, from 0."""
    loss: float
    grad_norm: float
    lr: float
    applied: bool
    model_tokens: int
    sequences: int
    keys: tuple[str, ...]
    """Its rows, in order."""
    diagnostics: dict[str, float]
    advantages: dict[str, float]
    tokens: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    """key -> quantity -> [model tokens]."""


def path_of(folder: Path, step: int) -> Path:
    """The file of one rollout batch."""
    return folder / f"{_PREFIX}{step:06}{_SUFFIX}"


def steps_with_updates(folder: Path) -> list[int]:
    """Rollout batches whose updates were kept."""
    names = (p.name for p in folder.glob(f"{_PREFIX}*{_SUFFIX}"))
    return sorted(int(name[len(_PREFIX) : -len(_SUFFIX)]) for name in names)


def write(folder: Path, step: int, reports: Sequence[Report], tokens: Mapping[str, Tokens]) -> None:
    """Write the file, flush it, and give it its name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [(number, key) for number, report in enumerate(reports) for key in report.details]
    if not rows:
        return
    quantities = sorted({name for report in reports for values in report.details.values() for name in values})
    columns: dict[str, Any] = {
        "step": pa.array([step] * len(rows), pa.int32()),
        "update": pa.array([number for number, _ in rows], pa.int32()),
        "key": pa.array([key for _, key in rows]),
        "advantage": pa.array([tokens[key].advantage for _, key in rows], pa.float64()),
    }
    counts = [int(tokens[key].mask.sum()) for _, key in rows]
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    flat: dict[str, np.ndarray] = {}
    for name in quantities:
        if name in _SKIPPED:
            continue
        flat[name] = np.concatenate([_model_tokens(reports[n], key, name, tokens[key].mask) for n, key in rows])
        values = flat[name].astype(np.int8 if name == "reason" else np.float32, copy=False)
        columns[name] = pa.ListArray.from_arrays(offsets, pa.array(values))
    columns |= {n: pa.array(v) for n, v in _extremes(flat, counts).items()}
    facts = [_facts(number, report) for number, report in enumerate(reports)]
    table = pa.table(columns).replace_schema_metadata(
        {"agent_rl": json.dumps({"schema": SCHEMA, "step": step, "updates": facts})}
    )
    floats = [f"{name}.list.element" for name in flat if name != "reason"]
    target = path_of(folder, step)
    draft = target.with_suffix(".draft")
    with open(draft, "wb") as file:
        pq.write_table(table, file, compression="zstd", use_dictionary=False, use_byte_stream_split=floats)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, target)


def _model_tokens(report: Report, key: str, name: str, mask: np.ndarray) -> np.ndarray:
    value = report.details[key].get(name)
    if value is None:
        return np.zeros(int(mask.sum()), np.float32)
    return np.asarray(value)[mask]


def _extremes(flat: Mapping[str, np.ndarray], counts: Sequence[int]) -> dict[str, np.ndarray]:
    """Per row: largest |log-ratio| and how many tokens were clipped or gated, for lists."""
    found: dict[str, np.ndarray] = {}
    edges = np.concatenate([[0], np.cumsum(counts)])
    spans = list(pairwise(edges))
    if "log_ratio" in flat:
        size = np.abs(flat["log_ratio"])
        found["max_abs_log_ratio"] = np.array([size[a:b].max(initial=0.0) for a, b in spans], np.float32)
    if "reason" in flat:
        reason = flat["reason"]
        found["clipped"] = np.array([int(((reason[a:b] >= 2) & (reason[a:b] <= 4)).sum()) for a, b in spans], np.int32)
        found["gated"] = np.array([int((reason[a:b] >= 5).sum()) for a, b in spans], np.int32)
    return found


def _facts(number: int, report: Report) -> dict[str, Any]:
    return {
        "number": number,
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        "lr": report.lr,
        "applied": report.applied,
        "model_tokens": report.model_tokens,
        "sequences": report.sequences,
        "keys": list(report.keys),
        "diagnostics": report.diagnostics,
    }


def read(path: Path) -> list[Update]:
    """The updates of one file, in order.

    Raises:
        RecordError: another schema.
    """
    import pyarrow.parquet as pq

    from agent_rl.records.shards import RecordError

    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[b"agent_rl"])
    if about["schema"] != SCHEMA:
        raise RecordError(f"{path} has schema {about['schema']}, this version reads {SCHEMA}")
    lists = [f.name for f in table.schema if str(f.type).startswith("list")]
    columns = {name: _lists(table[name].combine_chunks()) for name in lists}
    numbers, keys = table["update"].to_pylist(), table["key"].to_pylist()
    advantages = table["advantage"].to_pylist()
    found = []
    for fact in about["updates"]:
        mine = [row for row, number in enumerate(numbers) if number == fact["number"]]
        found.append(
            Update(
                **{**fact, "keys": tuple(fact["keys"])},
                advantages={keys[row]: advantages[row] for row in mine},
                tokens={keys[row]: {name: columns[name][row] for name in lists} for row in mine},
            )
        )
    return found


def _lists(column: Any) -> list[np.ndarray]:
    column = column.chunk(0) if hasattr(column, "num_chunks") else column
    values = column.values.to_numpy(zero_copy_only=False)
    return [values[a:b] for a, b in pairwise(column.offsets.to_numpy())]


def read_extremes(folder: Path) -> dict[tuple[int, str], dict[str, float]]:
    """(step, key) -> `max_abs_log_ratio`, `clipped`, `gated` over all updates of the step; tokens are not read."""
    import pyarrow.parquet as pq

    found: dict[tuple[int, str], dict[str, float]] = {}
    for step in steps_with_updates(folder):
        file = pq.ParquetFile(path_of(folder, step))
        names = [n for n in ("max_abs_log_ratio", "clipped", "gated") if n in file.schema_arrow.names]
        for row in file.read(["key", *names]).to_pylist():
            old = found.setdefault((step, row["key"]), dict.fromkeys(names, 0.0))
            for name in names:
                old[name] = max(old[name], row[name])
    return found


def drop_after(folder: Path, step: int) -> None:
    """Remove the files of later steps, and drafts."""
    for later in steps_with_updates(folder):
        if later > step:
            path_of(folder, later).unlink()
    for draft in folder.glob(f"{_PREFIX}*.draft"):
        draft.unlink()
