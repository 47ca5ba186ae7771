"""The hand-over of weights: send, read back, let both sides score the canary, record, and stop if they disagree."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from agent_rl.learner import sharding
from agent_rl.learner.batch import TrainBatch
from agent_rl.types import InfrastructureError
from agent_rl.weights import canary
from agent_rl.weights.errors import SyncError
from agent_rl.weights.faults import ADAPTER, Fault, FaultKind, find_faults
from agent_rl.weights.manifest import Sent, Served, TensorSum, adapted_by, ties_of, total
from agent_rl.weights.proof import CanaryGap, EngineProof, SyncLog, SyncProof
from agent_rl.weights.settings import SyncSettings
from agent_rl.weights.target import Carrier, Target

ADVICE = {
    FaultKind.STALE_HEAD: "the engine keeps a packed copy of its output head that was not made anew",
    FaultKind.SKIPPED: "the transport or the engine's loader left tensors out",
    FaultKind.SWAPPED: "names were mapped wrongly between trainer and engine, or were mixed up on the way",
    FaultKind.HALF_UPDATE: "the sender or the receiver ended in the middle of the update",
    FaultKind.NOTHING_ARRIVED: "the update went to another engine, or nowhere (engine.vllm.transport)",
    FaultKind.ADAPTER_MISSING: "the adapter was not registered or requests do not name it; try sync.adapters=merged",
    FaultKind.DIFFERENT: "the weights were damaged on the way, or the engine changed them",
    FaultKind.NOT_SERVED: "trainer and engine run different architectures (model.path)",
    FaultKind.NOT_SENT: "trainer and engine run different architectures (model.path)",
    FaultKind.VERSION: "an update was lost, or another trainer writes to this engine",
    FaultKind.CANARY: "weights arrived as sent, yet the engine computes something else: a cache of older weights, "
    "another number format or another model implementation; a run whose formats differ by more than usual may raise "
    "sync.canary_limit",
}


class Source(Protocol):
    """What is asked of a learner. On several ranks every method is called on all of them."""

    model: nn.Module
    temperature: float

    def full_state(self) -> Iterator[tuple[str, Tensor]]:
        """Whole weights by Hugging Face name."""
        ...

    def old_logprobs(self, batch: TrainBatch) -> Mapping[str, Tensor]:
        """Log-probs of rows under the current weights."""
        ...


class WeightSync:
    """Brings a learner's weights to its engines and proves it, version after version.

    Args:
        source: the learner.
        targets: the engines; none on ranks other than the first.
        carrier: how weights travel.
        vocabulary: number of token ids that may be asked for.
        max_length: tokens that the model takes.
        autocast: number format of the learner's passes, if not that of its weights.
        log: where proofs are written; None = nowhere.
    """

    def __init__(
        self,
        source: Source,
        targets: Sequence[Target],
        carrier: Carrier | None,
        settings: SyncSettings | None = None,
        *,
        vocabulary: int,
        max_length: int,
        autocast: torch.dtype | None = None,
        log: SyncLog | None = None,
    ):
        self.settings = settings or SyncSettings()
        self.targets = targets
        self.log = log
        self._source, self._carrier = source, carrier
        self._autocast = autocast
        self._ties, self._adapted = ties_of(source.model), adapted_by(source.model)
        self._before: dict[str, TensorSum] | None = None
        length = max(1, min(self.settings.canary_prompt_tokens, max_length // 2))
        self._new_tokens = max(1, min(self.settings.canary_new_tokens, max_length - length - 1))
        self._prompts = canary.canary_prompts(self.settings.canary_prompts, length, vocabulary)

    async def hand_over(self, version: int) -> SyncProof | None:
        """Give the engines the learner's weights as `version`, and prove it; None on ranks without engines.

        Raises:
            SyncError: a tensor is not served as it was sent, log-probs differ by more than the limit, an engine
                failed, or `timeout_s` passed. The proof is written first.
        """
        try:
            return await asyncio.wait_for(self._hand_over(version), self.settings.timeout_s)
        except TimeoutError:
            raise SyncError(
                f"the hand-over of weights version {version} took longer than sync.timeout_s = "
                f"{self.settings.timeout_s:g} s; raise it, or look at why an engine does not answer"
            ) from None

    def drop_after(self, version: int) -> None:
        """Drop the records of versions that will be made again."""
        if self.log is not None:
            self.log.drop_after(version)

    async def close(self) -> None:
        """Give back what the carrier holds; idempotent."""
        if (close := getattr(self._carrier, "close", None)) is not None:
            await close()

    async def _hand_over(self, version: int) -> SyncProof | None:
        started = time.perf_counter()
        sent = Sent(version, self._ties, self._adapted, kept=self._kept())
        if not self.targets:
            await asyncio.to_thread(self._follow)
            return None
        lead = self.targets[0]
        stream = sent.watch(self._source.full_state(), lead.dtype_for)
        try:
            assert self._carrier is not None
            await self._carrier.carry(stream, version)
        except InfrastructureError as error:
            raise SyncError(f"weights version {version} did not reach the engine: {error}") from error
        # Whatever the carrier did not ask for belongs to this version, too.
        await asyncio.to_thread(lambda: [None for _ in stream])
        arrived = time.perf_counter()
        faults, served = await self._read_back(sent)
        gaps = await self._canaries(version, faults)
        now = time.perf_counter()
        proof = self._proof(sent, served, gaps, faults, seconds=now - started, proving=now - arrived)
        self._before = sent.expected
        if self.log is not None:
            self.log.append(proof)
        if any(faults):
            raise SyncError(self._message(version, faults), proof)
        return proof

    def _kept(self) -> dict[str, TensorSum]:
        """What an earlier hand-over sent and this one will not, if the source sends parts."""
        if self._before is None or not getattr(self._source, "sends_parts", False):
            return {}
        return {n: e for n, e in self._before.items() if not n.startswith(ADAPTER) and n not in self._ties}

    def _follow(self) -> None:
        """The part of a rank without engines: its share of the gathers."""
        for _ in self._source.full_state():
            pass
        if self._prompts:
            answers = [found for found in sharding.gather(None) if found is not None]
            for batch in answers[0]:
                self._source.old_logprobs(batch)

    async def _read_back(self, sent: Sent) -> tuple[list[list[Fault]], list[Served | None]]:
        if not self.settings.checksums:
            return [[] for _ in self.targets], [None for _ in self.targets]
        served = await asyncio.gather(*(target.served() for target in self.targets))
        return [find_faults(sent, found, self._before) for found in served], list(served)

    async def _canaries(self, version: int, faults: list[list[Fault]]) -> list[CanaryGap | None]:
        """Ask every engine and score its answers; adds to `faults`."""
        if not self._prompts:
            return [None for _ in self.targets]
        whole = [all(fault.kind is not FaultKind.HALF_UPDATE for fault in found) for found in faults]
        answers = await asyncio.gather(
            *(self._ask(target, version) for target, ready in zip(self.targets, whole, strict=True) if ready)
        )
        batches = [canary.batch_of(found) for found in answers]
        scores = await asyncio.to_thread(self._score, batches)
        gaps: list[CanaryGap | None] = []
        ready_ones = iter(zip(answers, scores, strict=True))
        for target, ready, found in zip(self.targets, whole, faults, strict=True):
            if not ready:  # an engine that may have no weights at all must not sample
                gaps.append(None)
                continue
            answer, score = next(ready_ones)
            gap = canary.gap(answer, score, self._limit(target))
            gaps.append(gap)
            if not gap.ok:
                text = (
                    f"log-probs of {gap.tokens} canary tokens differ by {gap.mean:.3g} on average (largest "
                    f"{gap.largest:.3g}), the limit is {gap.limit:g}"
                )
                found.append(Fault(FaultKind.CANARY, (), text))
            versions = {number for part in answer for number in part.versions}
            if versions - {version} and not any(fault.kind is FaultKind.VERSION for fault in found):
                text = f"it sampled canary tokens with versions {sorted(versions)}, {version} was sent"
                found.append(Fault(FaultKind.VERSION, (), text))
        return gaps

    async def _ask(self, target: Target, version: int) -> list[canary.CanaryAnswer]:
        try:
            return await canary.ask(
                target.engine,
                self._prompts,
                new_tokens=self._new_tokens,
                temperature=self._source.temperature,
                version=version,
                wait=self.settings.timeout_s,
            )
        except InfrastructureError as error:
            raise SyncError(f"engine {target.name} failed on the canary of version {version}: {error}") from error

    def _score(self, batches: list[TrainBatch]) -> list[Mapping[str, Tensor]]:
        sharding.gather(batches)
        return [self._source.old_logprobs(batch) for batch in batches]

    def _limit(self, target: Target) -> float:
        if self.settings.canary_limit is not None:
            return self.settings.canary_limit
        return max(canary.LIMITS[target.dtype], canary.LIMITS[self._autocast or torch.float32])

    def _proof(
        self,
        sent: Sent,
        served: list[Served | None],
        gaps: list[CanaryGap | None],
        faults: list[list[Fault]],
        *,
        seconds: float,
        proving: float,
    ) -> SyncProof:
        expected = sent.expected
        engines = []
        for target, found, gap, wrongs in zip(self.targets, served, gaps, faults, strict=True):
            tensors = found.tensors if found is not None else {}
            engines.append(
                EngineProof(
                    engine=target.name,
                    version=found.version if found is not None else target.engine.weight_version,
                    total=total(tensors) if found is not None else "",
                    tensors=len(tensors),
                    wrong={n: str(e) for n, e in tensors.items() if n in expected and expected[n] != e},
                    unread=found.unread if found is not None else (),
                    canary=gap,
                    faults=tuple(f"{fault.kind}: {fault.text}" for fault in wrongs),
                )
            )
        before = self._before or {}
        return SyncProof(
            version=sent.version,
            total=total(expected),
            tensors={name: str(entry) for name, entry in sent.tensors.items()},
            changed=sum(before.get(name) != entry for name, entry in sent.tensors.items()),
            bytes=sent.bytes,
            engines=tuple(engines),
            seconds=seconds,
            seconds_of_proof=proving,
        )

    def _message(self, version: int, faults: list[list[Fault]]) -> str:
        lines = [f"the weights of version {version} are not what the engines serve; the run stops before it samples:"]
        for target, found in zip(self.targets, faults, strict=True):
            lines += [f"  engine {target.name}: {fault.kind}: {fault.text} ({ADVICE[fault.kind]})" for fault in found]
        lines.append(
            "  `agent-rl train --resume RUN` goes on from the last checkpoint with engines started afresh, which get "
            "everything again."
        )
        return "\n".join(lines)
