"""The reader: three functions, over the folder of a run or of its trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from agent_rl.records.index import read_summaries
from agent_rl.records.schema import Record, Summary
from agent_rl.records.shards import RecordError, read_frame, read_records, shards, split_and_step
from agent_rl.records.token_updates import Update, path_of, read


def summaries(run: str | Path) -> list[Summary]:
    """One light row a trajectory, without reading tokens.

    Raises:
        RecordError: there is no recording.
    """
    return [row for folder in folders(run) for row in read_summaries(folder)]


def trajectories(
    run: str | Path,
    *,
    split: str | None = None,
    step: int | None = None,
    only: Iterable[Summary] | None = None,
) -> Iterator[Record]:
    """Whole records, shard by shard.

    Args:
        split: `train`, or the name of a held-out set.
        step: of training, or finished steps before a measurement.
        only: rows of `summaries`; just these are read, in their order.

    Raises:
        RecordError: there is no recording, or it has another schema.
    """
    if only is not None:
        yield from _chosen(folders(run), only)
        return
    for folder in folders(run):
        for path in shards(folder):
            found = split_and_step(path)
            if split in (None, found[0]) and step in (None, found[1]):
                yield from map(Record.model_validate, read_records(path))


def updates(run: str | Path, step: int) -> list[Update]:
    """What the updates of one rollout batch did, token by token; empty if it was not kept."""
    paths = [path_of(folder, step) for folder in folders(run)]
    return [update for path in paths if path.exists() for update in read(path)]


def folders(run: str | Path) -> list[Path]:
    """The folders of a run that hold shards (a measurement keeps one for each problem set).

    Raises:
        RecordError: none does.
    """
    run = Path(run)
    base = run / "trajectories" if (run / "trajectories").is_dir() else run
    found = sorted({path.parent for path in base.rglob("*.jsonl.zst")}) if base.is_dir() else []
    if not found:
        raise RecordError(f"{run} holds no recorded trajectories (files *.jsonl.zst); name the folder of a run")
    return found


def _chosen(where: list[Path], only: Iterable[Summary]) -> Iterator[Record]:
    frame: tuple[str, int] | None = None
    rows: list[dict] = []
    for summary in only:
        if frame != (summary.shard, summary.start):
            path = next((f / summary.shard for f in where if (f / summary.shard).exists()), None)
            if path is None:
                raise RecordError(f"the shard {summary.shard} is gone")
            rows, frame = read_frame(path, summary.start, summary.end), (summary.shard, summary.start)
        yield Record.model_validate(rows[summary.row])
