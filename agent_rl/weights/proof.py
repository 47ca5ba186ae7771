"""The record of one hand-over: plain data, one line of `sync.jsonl`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict

SYNC = "sync.jsonl"


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CanaryGap(_Plain):
    """How far apart trainer and engine are on the canary's sampled tokens, in nats."""

    mean: float
    largest: float
    limit: float
    """For `mean`, by the engine's number format."""
    tokens: int

    @property
    def ok(self) -> bool:
        return self.mean <= self.limit  # False for NaN, too


class EngineProof(_Plain):
    """What one engine serves."""

    engine: str
    version: int
    total: str
    """One checksum of all that is served, comparable with `SyncProof.total`; empty when checksums are off."""
    tensors: int
    """Tensors that were read back, tied names included."""
    wrong: dict[str, str]
    """Name -> checksum of what is served and was not sent."""
    unread: tuple[str, ...]
    """Beginnings of names that could not be read back: for those the canary alone speaks."""
    canary: CanaryGap | None
    faults: tuple[str, ...]


class SyncProof(_Plain):
    """One hand-over of weights to all engines."""

    version: int
    total: str
    """One checksum of all that was sent, under every name it must be served."""
    tensors: dict[str, str]
    """Name -> checksum of what was sent, in the number format that was sent."""
    changed: int
    """Tensors that differ from those sent before; all at the first hand-over."""
    bytes: int
    """Of one copy of what was sent."""
    engines: tuple[EngineProof, ...]
    seconds: float
    """From the first tensor to the end of the proof."""
    seconds_of_proof: float
    """Reading back and canary; checksums of what is sent are computed on the way and not in here."""

    @property
    def ok(self) -> bool:
        return not any(engine.faults for engine in self.engines)

    def metrics(self) -> dict[str, float]:
        """Numbers for the run's metrics. Over engines: the worst."""
        gaps = [engine.canary for engine in self.engines if engine.canary is not None]
        values = {
            "time/sync": self.seconds,
            "time/sync_proof": self.seconds_of_proof,
            "sync/version": float(self.version),
            "sync/checksum_ok": float(not any(engine.wrong for engine in self.engines)),
            "sync/tensors": float(len(self.tensors)),
            "sync/changed": float(self.changed),
            "sync/bytes": float(self.bytes),
        }
        if gaps:
            values["sync/gap"] = max(gap.mean for gap in gaps)
            values["sync/gap_max"] = max(gap.largest for gap in gaps)
        return values


class SyncLog:
    """Appends proofs to a run's `sync.jsonl`."""

    def __init__(self, folder: Path):
        self.path = folder / SYNC

    def append(self, proof: SyncProof) -> None:
        """Add one line; it is on disk when this returns."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(proof.model_dump_json() + "\n")
            file.flush()
            os.fsync(file.fileno())

    def drop_after(self, version: int) -> None:
        """Drop hand-overs of versions that will be made again, and a last line that a crash cut short."""
        if not self.path.exists():
            return
        lines = [line for line in self.path.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]
        kept = [line for line in lines if json.loads(line)["version"] <= version]
        temporary = self.path.with_suffix(".new")
        temporary.write_text("".join(kept), encoding="utf-8")
        os.replace(temporary, self.path)

    def read(self) -> list[SyncProof]:
        """All proofs so far."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return [SyncProof.model_validate_json(line) for line in lines]
