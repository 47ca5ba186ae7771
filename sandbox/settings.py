"""Settings of the sandbox service. Imports nothing heavy."""

from __future__ import annotations

import os
import secrets
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from sandbox.backends.base import Tier
from sandbox.backends.docker_settings import DockerSettings
from sandbox.schemas import Limits


def _tier(value: Any) -> Any:
    """Accept `T2` and `2` as well as the enum member."""
    if isinstance(value, str):
        text = value.strip().upper().removeprefix("T")
        if text.isdigit() and int(text) in list(Tier):
            return Tier(int(text))
        raise ValueError(f"{value!r} is no tier; choose one of {', '.join(tier.name for tier in Tier)}")
    return value


TierSetting = Annotated[Tier, BeforeValidator(_tier)]
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def maximum_limits() -> Limits:
    """What a request may ask for at most, unless configured otherwise."""
    return Limits(
        wall_s=60.0,
        cpu_s=240.0,
        memory_mb=8192,
        processes=512,
        open_files=4096,
        file_size_mb=1024,
        disk_mb=2048,
        inodes=131_072,
        stdout_bytes=16 << 20,
        stderr_bytes=16 << 20,
        flood_factor=1024,
        stack_mb=1024,
    )


class SandboxSettings(BaseModel):
    """Settings base of this package: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


class ServiceSettings(SandboxSettings):
    """One sandbox service: where it listens, how it isolates, how much it admits."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs a token."""
    port: int = Field(8080, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    tokens: tuple[SecretStr, ...] = ()
    """Bearer tokens. Each is a tenant: sessions belong to their token and slots never move between tokens."""

    backend: str = "auto"
    """Isolation: `auto` takes the strongest that passes its canary, or a backend's name."""
    min_tier: TierSetting = Tier.T1
    """Refuse to start on anything weaker."""
    docker: DockerSettings = DockerSettings()
    """Engine, image and runtime of the `docker` backend."""
    packages: tuple[str, ...] = ()
    """Modules to import in the warm interpreter beside the standard scientific set."""

    slots: int | None = Field(None, ge=1, le=4096)
    """Runs at a time, each in a boundary of its own; None takes the number of cores."""
    queue_per_slot: int = Field(8, ge=1)
    """Runs that may wait, as a multiple of `slots`; beyond it the answer is 429."""
    queue_timeout_s: float = Field(30.0, gt=0)
    """Longest wait for a slot; beyond it the answer is 504. Never part of a run's own time."""
    host_grace_s: float = Field(2.0, gt=0)
    """A slot that has not answered this long after the run's limit is destroyed."""
    slot_start_timeout_s: float = Field(60.0, gt=0)
    """Longest start of one slot."""
    parallel_starts: int = Field(4, ge=1)
    """Slots started at the same time."""
    recycle_runs: int = Field(5000, ge=1)
    """Programs after which a slot is replaced. No program runs in the warm interpreter itself, and a new one takes
    the CPU time of some 400 trivial programs to start: at 500 that alone would be nearly half of the work."""
    recycle_s: float = Field(3600.0, gt=0)
    """Age at which a slot is replaced."""
    restart_backoff_s: float = Field(0.25, gt=0)
    """First pause after a failed slot start; doubles up to 30 s."""

    default_limits: Limits = Limits()
    """Limits of a run that names none."""
    max_limits: Limits = Field(default_factory=maximum_limits)
    """Requests above are clamped to these, and the result says so."""
    max_source_bytes: int = Field(1 << 20, ge=1)
    """Longest program (UTF-8); beyond it the answer is 413. The prelude has the same bound."""
    max_stdin_bytes: int = Field(1 << 20, ge=0)
    """Longest standard input; beyond it the answer is 413."""
    max_files: int = Field(100, ge=0)
    """Files uploaded, and files fetched, with one run."""
    max_upload_bytes: int = Field(32 << 20, ge=0)
    """Bytes of all uploaded files of one run together, decoded."""
    max_batch: int = Field(256, ge=1)
    """Programs in one batch."""

    max_sessions: int | None = Field(None, ge=0)
    """Sessions at a time, each in a slot of its own; None takes as many as half the free memory holds."""
    session_memory_mb: int = Field(256, ge=16)
    """Memory reckoned for one session when `max_sessions` is None."""
    spare_session_slots: int = Field(2, ge=0)
    """Idle slots kept warm for the next sessions, once sessions have been used."""
    session_idle_s: float = Field(300.0, gt=0)
    """A session unused this long ends."""
    session_life_s: float = Field(3600.0, gt=0)
    """A session this old ends."""
    evict_idle_s: float = Field(120.0, ge=0)
    """When no session is free, the least recently used one may be ended if it has been idle this long."""
    session_turns_waiting: int = Field(8, ge=1)
    """Turns that may wait for a session's running one."""
    session_disconnect: str = Field("finish", pattern="^(finish|interrupt)$")
    """What a caller's disappearance does to its turn: `finish` lets it end, `interrupt` stops it."""

    idempotency_s: float = Field(300.0, gt=0)
    """How long the result of a named request is kept for repeats of it."""
    idempotency_bytes: int = Field(64 << 20, ge=0)
    """Memory for kept results; the oldest go first."""
    drain_s: float = Field(10.0, ge=0)
    """On shutdown, time for running programs to end."""
    log_level: str = Field("warning", pattern="^(critical|error|warning|info|debug)$")
    """Log level of the service."""

    @model_validator(mode="after")
    def _network_needs_token(self) -> ServiceSettings:
        if self.host not in LOOPBACK and not self.tokens:
            raise ValueError(
                f"host {self.host!r} is reachable from other machines, and without a token that would be remote "
                "code execution for everybody: set `tokens` (SANDBOX_TOKENS, --token-file) or listen on 127.0.0.1"
            )
        for token in self.tokens:
            if len(token.get_secret_value()) < 16:
                raise ValueError("a token has fewer than 16 characters; make one with `python -m sandbox token`")
        return self

    @property
    def slot_count(self) -> int:
        """Runs at a time."""
        return self.slots or available_cores()

    @property
    def queue_capacity(self) -> int:
        """Runs that may wait."""
        return self.queue_per_slot * self.slot_count

    @property
    def session_count(self) -> int:
        """Sessions at a time."""
        if self.max_sessions is not None:
            return self.max_sessions
        return max(1, min(1024, free_memory_mb() // 2 // self.session_memory_mb))


class EmbeddedSettings(SandboxSettings):
    """A service owned by this process as a child."""

    service: ServiceSettings = ServiceSettings(port=0)
    """The service; its address and token are chosen by the owner."""
    start_timeout_s: float = Field(120.0, gt=0)
    """Longest start, canaries and warm imports included."""
    restarts: int = Field(5, ge=0)
    """Restarts of a service that died, in any `restart_window_s`; beyond them calls fail."""
    restart_window_s: float = Field(300.0, gt=0)
    """Window in which restarts are counted."""
    stop_timeout_s: float = Field(15.0, gt=0)
    """Time for the service to end by itself before it is killed."""


def free_memory_mb() -> int:
    """Memory available now, in MiB: the smaller of the machine's and the control group's."""
    available = 1024
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    available = int(line.split()[1]) // 1024
    except OSError:
        return available
    try:
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as used:
            bound = limit.read().strip()
            if bound != "max":
                available = min(available, (int(bound) - int(used.read())) >> 20)
    except OSError:
        pass  # no control group v2 here: the machine's figure stands
    return max(available, 0)


def new_token() -> str:
    """A fresh bearer token."""
    return secrets.token_urlsafe(32)
