"""The machines that a run is meant for, and whether it fits there; for dry runs on another machine."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from agent_rl.settings import Settings


class HardwareSettings(Settings):
    """Where the run is to happen, if not on the machine that reads this file."""

    gpu: str = ""
    """What the GPUs are, in words."""
    gpu_memory_gib: float | None = Field(None, gt=0)
    """Memory of one GPU. Set, it says that the run is meant for another machine: a dry run then compares with it, and
    leaves out what is only there (model, data, sandbox)."""
    gpus_per_node: int = Field(8, ge=1)
    """GPUs of one machine."""


@dataclass(frozen=True)
class Sizes:
    """Of a model: what decides memory."""

    parameters: int
    layers: int
    hidden: int
    kv_width: int
    """Key (or value) numbers a token and layer."""


@dataclass(frozen=True)
class Layout:
    """How learner and engines are spread over GPUs."""

    ranks: int
    engines: int
    tensor_parallel: int
    colocated: bool

    @property
    def gpus(self) -> int:
        engine = self.engines * self.tensor_parallel
        return max(self.ranks, engine) if self.colocated else self.ranks + engine


@dataclass(frozen=True)
class GpuNeed:
    """Bytes on one GPU, rough."""

    learner_state: int
    """A rank's shard of float32 weights and AdamW's two moments."""
    learner_step: int
    """What comes on top while it learns: gradients, activations, one gathered layer, a piece of the logits."""
    engine_weights: int
    cache_of_one: int
    """The engine's cache of one trajectory of full length."""


def gpu_need(
    sizes: Sizes,
    layout: Layout,
    *,
    tokens: int,
    checkpointing: bool,
    logits: int,
    longest: int,
    trained: int,
    engine_bytes: int = 2,
) -> GpuNeed:
    """What one GPU must hold.

    Args:
        tokens: of one pass of the learner.
        logits: bytes of float32 logits held at a time.
        longest: tokens of a trajectory.
        trained: parameters that are trained.
        engine_bytes: of one number of the engine's.

    Activations are 34 hidden-size vectors a token and layer in 16 bits (Korthikanti et al. 2022, eq. 1, without the
    attention matrix), or 2 with gradient checkpointing.
    """
    vectors = 2 if checkpointing else 34
    layer = 4 * sizes.parameters // sizes.layers
    return GpuNeed(
        learner_state=(4 * sizes.parameters + 8 * trained) // layout.ranks,
        learner_step=4 * trained // layout.ranks
        + 2 * vectors * tokens * sizes.hidden * sizes.layers
        + layer
        + 3 * logits,
        engine_weights=engine_bytes * sizes.parameters // layout.tensor_parallel,
        cache_of_one=2 * sizes.layers * sizes.kv_width * engine_bytes * longest // layout.tensor_parallel,
    )


def misfits(need: GpuNeed, layout: Layout, *, memory: float, share: float) -> list[str]:
    """Why the run does not fit on GPUs of `memory` bytes, of which the engine takes `share`; empty if it does."""
    found = []
    learner = need.learner_state + need.learner_step
    if learner > memory:
        found.append(
            f"a learner rank needs about {size(learner)} while it learns and a GPU has {size(memory)}; use more "
            "cluster.learner_ranks, learner.gradient_checkpointing or a smaller learner.micro_batch_tokens"
        )
    engine, least = share * memory, need.engine_weights + need.cache_of_one
    if least > engine:
        found.append(
            f"the engine's weights and one trajectory need {size(least)} on a GPU and it may take {size(engine)}; "
            "raise engine.vllm.tensor_parallel_size or engine.vllm.gpu_memory_utilization"
        )
    if layout.colocated and need.learner_state + engine > memory:
        found.append(
            f"beside a learner's {size(need.learner_state)} the engine takes {size(engine)}, together more than the "
            f"{size(memory)} of a GPU; lower engine.vllm.gpu_memory_utilization or use more cluster.learner_ranks"
        )
    return found


def size(count: float) -> str:
    """Bytes in words."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
