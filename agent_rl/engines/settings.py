"""Settings of the generation engines."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, model_validator

from agent_rl.settings import Settings


class VllmSettings(Settings):
    """vLLM in processes of its own beside this one (`engine.kind: vllm`)."""

    tensor_parallel_size: int = Field(1, ge=1)
    """Devices (on a CPU: processes) that one engine is cut over."""

    engines: int = Field(1, ge=1)
    """Engines with the whole weights each; a trajectory stays with the engine that holds its cache."""

    placement: Literal["side_by_side", "colocated"] = "side_by_side"
    """`colocated`: engine and learner share devices, and the engine sleeps while the learner works. `side_by_side`:
    each has its own, and the engine stays awake."""

    sleep_level: Literal[1, 2] = 1
    """What a colocated engine gives up: 1 moves its weights to host memory, 2 drops them. The KV cache is always
    dropped. A CPU has nothing to free: there the engine only pauses."""

    devices: str | None = None
    """Devices of the engines, as `CUDA_VISIBLE_DEVICES` names them (such as `4,5,6,7`); null = all that this process
    sees."""

    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    """Share of each device's memory for weights and cache; about 0.4 beside a learner. On a CPU: `kv_budget_mb`."""

    enforce_eager: bool | None = None
    """Do without compilation and CUDA graphs; null = on a CPU yes, elsewhere no."""

    block_size: int | None = Field(None, ge=1)
    """Tokens of a cache block, the unit of what is kept between turns; null = 32 on a CPU, elsewhere vLLM's choice."""

    seeds: bool = True
    """A random stream of its own for each turn, named by the request's seed; without it draws depend on the batch."""

    startup_timeout_s: float = Field(600.0, gt=0)
    """Longest wait for the engine processes to be ready."""

    transport: Literal["auto", "shared_memory", "nccl", "ipc"] = "auto"
    """Way of new weights to the engines: shared memory on one machine, NCCL between GPUs, CUDA IPC on the same GPU;
    `auto` takes shared memory on a CPU, `ipc` for colocated and `nccl` for other GPUs."""

    weights_timeout_s: float = Field(600.0, gt=0)
    """Longest wait for the engines to take new weights."""

    log_level: Literal["debug", "info", "warning", "error"] = "error"
    """What vLLM itself writes to the terminal, unless the environment sets `VLLM_LOGGING_LEVEL`."""

    extra: dict[str, JsonValue] = Field(default_factory=dict)
    """Further arguments of vLLM's `AsyncEngineArgs` by name; unknown ones, and those set elsewhere, are refused."""


class RemoteSettings(Settings):
    """A vLLM server that somebody else runs (`engine.kind: remote`)."""

    url: str | list[str] = "http://127.0.0.1:8000"
    """Where it listens, without `/v1`; several that serve the same model share the trajectories."""

    model: str | None = None
    """Name that it serves the model under; null = the only one it serves."""

    token_env: str = "AGENT_RL_ENGINE_TOKEN"
    """Environment variable that holds its API key."""

    max_in_flight: int = Field(256, ge=1)
    """Requests at once to one address; more wait their turn here."""

    retries: int = Field(3, ge=0)
    """How often a turn is asked for again after a broken connection or an error of the server (5xx)."""

    busy_s: float = Field(300.0, gt=0)
    """How long a server that is busy (429, 503) is waited for, within the episode's deadline."""

    silence_s: float = Field(120.0, gt=0)
    """Longest pause between two tokens of a stream; then the connection counts as broken."""

    @model_validator(mode="after")
    def _addresses(self) -> RemoteSettings:
        if not self.urls:
            raise ValueError("engine.remote.url is an empty list; name at least one address")
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"engine.remote.url = {url!r} is no address; give one such as http://127.0.0.1:8000")
        return self

    @property
    def urls(self) -> list[str]:
        """The addresses, without a slash or `/v1` at the end."""
        given = [self.url] if isinstance(self.url, str) else self.url
        return [url.rstrip("/").removesuffix("/v1").rstrip("/") for url in given]


class EngineSettings(Settings):
    """How tokens are generated."""

    kind: Literal["transformers", "vllm", "remote"] = "transformers"
    """Which engine: `transformers` is embedded in this process and serves any Hugging Face causal language model;
    `vllm` runs vLLM engines beside it (extra `vllm`); `remote` asks a vLLM server, whose weights stay as they are."""

    max_rows: int = Field(256, ge=1, le=65536)
    """Most trajectories that are decoded in one batch; more wait their turn."""

    kv_budget_mb: int = Field(2048, ge=1)
    """Memory for the KV cache in MiB (2**20 bytes), of running and of waiting trajectories together. vLLM on an
    accelerator takes `vllm.gpu_memory_utilization` instead."""

    max_length: int | None = Field(None, ge=2)
    """Most tokens of a trajectory, prompt included; by default what the model was configured for."""

    keep_cache: bool = True
    """Keep a trajectory's KV cache while its tool runs; without it each turn prefills its whole context again."""

    prefill_tokens: int = Field(8192, ge=16)
    """Most tokens, padding included, of one prefill forward; a longer context is a batch of its own."""

    admit_after_steps: int = Field(4, ge=0)
    """Decode steps that a few arrivals may wait for more, so that they are prefilled in one batch."""

    max_waiting: int = Field(65536, ge=1)
    """Most requests that may be queued or running; one more is refused."""

    deterministic: bool = False
    """Lockstep batches: a batch starts when each announced trajectory has asked or been released, so that the
    same seeds give the same tokens bit for bit, whatever the tools' latency. A run sets this for all its parts."""

    lockstep_timeout_s: float = Field(600.0, gt=0)
    """Longest wait of a lockstep batch for an announced trajectory; then all that wait fail with its name."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the weights: `auto` is float32 on a CPU and the checkpoint's own elsewhere."""

    device: str = "auto"
    """Where the model runs: `cpu`, `cuda`, `cuda:1`, `mps`; `auto` takes the first accelerator, else the CPU."""

    vllm: VllmSettings = VllmSettings()
    remote: RemoteSettings = RemoteSettings()

    @property
    def description(self) -> str:
        """The engine in words."""
        if self.kind == "vllm":
            count = f"{self.vllm.engines} vLLM engine{'s' * (self.vllm.engines > 1)}"
            split = self.vllm.tensor_parallel_size
            cut = f" over {split} devices each" if split > 1 else ""
            return f"{count}{cut}, {self.vllm.placement.replace('_', ' ')} with the learner"
        if self.kind == "remote":
            return f"vLLM server at {', '.join(self.remote.urls)}"
        return f"transformers, {'lockstep' if self.deterministic else 'continuous'} batches"
