"""The reader: three functions, over the folder of a run or of its trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from agent_rl.records.index import read_summaries
from agent_rl.records.schema import Record, Summary
from agent_rl.records.shards import SUFFIX, RecordError, read_frame, read_records, shards, split_and_step
from agent_rl.records.token_updates import Update, path_of, read


def summaries(run: str | Path) -> list[Summary]:
    """One light row a trajectory, without reading tokens.

    Raises:
        RecordError: there is no recording.
    """
    root, found = _root(Path(run)), []
    for folder in folders(run):
        rows = read_summaries(folder)
        if folder != root:
            below = folder.relative_to(root).as_posix()
            rows = [row._replace(shard=f"{below}/{row.shard}") for row in rows]
        found += rows
    return found


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
        yield from _chosen(_root(Path(run)), only)
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
    root = _root(Path(run))
    found = sorted({path.parent for path in root.rglob("*" + SUFFIX)}) if root.is_dir() else []
    if not found:
        raise RecordError(f"{run} holds no recorded trajectories (files *.jsonl.zst); name the folder of a run")
    return found


def _root(run: Path) -> Path:
    return run / "trajectories" if (run / "trajectories").is_dir() else run


def _chosen(root: Path, only: Iterable[Summary]) -> Iterator[Record]:
    frame: tuple[str, int] | None = None
    rows: list[dict] = []
    for summary in only:
        if frame != (summary.shard, summary.start):
            path = root / summary.shard
            if not path.exists():
                raise RecordError(f"the shard {path} is gone")
            rows, frame = read_frame(path, summary.start, summary.end), (summary.shard, summary.start)
        yield Record.model_validate(rows[summary.row])
