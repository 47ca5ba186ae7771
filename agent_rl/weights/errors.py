"""What stops a run when weights did not arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_rl.weights.proof import SyncProof


class SyncError(RuntimeError):
    """An engine does not serve the trainer's weights; the message names the engine, the tensor and what to do."""

    def __init__(self, message: str, proof: SyncProof | None = None):
        super().__init__(message)
        self.proof = proof
