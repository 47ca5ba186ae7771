"""What goes into the sandbox and what comes out: requests, results, limits, statuses."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Status(StrEnum):
    """How a run ended. All but the last two are the program's doing."""

    OK = "ok"
    """Exit status 0, whatever stands on stderr."""
    ERROR = "error"
    """Uncaught exception or non-zero exit status."""
    SYNTAX_ERROR = "syntax_error"
    """The source does not compile."""
    TIMEOUT = "timeout"
    """The wall-clock limit passed."""
    CPU_TIMEOUT = "cpu_timeout"
    """The CPU-time limit passed."""
    OOM = "oom"
    """The memory limit was reached and the run was killed for it."""
    OUTPUT_LIMIT = "output_limit"
    """The program flooded its output and was stopped."""
    KILLED = "killed"
    """A signal that was not ours ended it."""
    CANCELLED = "cancelled"
    """The caller cancelled the run or went away."""
    SESSION_LOST = "session_lost"
    """The session is gone: idle, evicted, or its process died between turns."""
    SANDBOX_ERROR = "sandbox_error"
    """The sandbox itself failed; the run may be tried again."""


class SessionState(StrEnum):
    """What a session remembers after a turn."""

    KEPT = "kept"
    """Everything, as in Jupyter."""
    RESET = "reset"
    """Nothing: the interpreter had to be replaced by a fresh one."""
    ROLLED_BACK = "rolled_back"
    """The state before this turn: the turn was killed and its checkpoint carried on."""
    LOST = "lost"
    """The session is gone."""


class Limits(BaseModel):
    """Limits of one run. Seconds, MiB, bytes. The service clamps them to its maxima and says so."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    wall_s: float = Field(10.0, gt=0)
    """Wall-clock time of the user's code, queueing and set-up excluded."""
    cpu_s: float = Field(5.0, gt=0)
    """CPU time of all processes of the run together."""
    memory_mb: int = Field(512, ge=16)
    """Memory of all processes of the run together; no swap."""
    processes: int = Field(64, ge=1)
    """Processes and threads."""
    open_files: int = Field(256, ge=16)
    file_size_mb: int = Field(64, ge=0)
    disk_mb: int = Field(64, ge=1)
    """Bytes of the work directory and /tmp."""
    inodes: int = Field(4096, ge=16)
    stdout_bytes: int = Field(1 << 20, ge=0)
    """Kept of stdout, head and tail; the rest is counted and dropped."""
    stderr_bytes: int = Field(256 << 10, ge=0)
    flood_factor: int = Field(64, ge=1)
    """A run that writes more than this many times what is kept is stopped (`output_limit`)."""
    stack_mb: int = Field(64, ge=1)


class ExecuteRequest(BaseModel):
    """One program to run."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    code: str
    """Python source, run unmodified as `/sandbox/main.py` in a fresh `__main__`."""
    stdin: str | None = None
    """Fed to standard input, then end of file; None reads as end of file at once."""
    prelude: str = ""
    """Source that defines names for the program before it runs (not part of its file or tracebacks)."""
    limits: Limits = Limits()
    files: dict[str, str] = {}
    """Files to place in the work directory: relative path to base64 content."""
    fetch_files: list[str] = []
    """Relative paths to return after the run."""
    seed: int | None = None
    """Seeds `random` and `numpy.random`; None seeds them from the system."""
    show_result: bool = False
    """Report the repr of the last expression, as a notebook does (sessions do so by default)."""
    request_id: str | None = None
    """Names this run: a repeated request with the same id gets the first one's result, never a second run."""
    queue_timeout_s: float | None = Field(None, gt=0)
    """Longest wait for a free slot; None takes the service's."""


class ErrorInfo(BaseModel):
    """The exception that ended the program."""

    type: str
    message: str
    traceback: str


class ExecuteResult(BaseModel):
    """What one run did. Times in milliseconds."""

    status: Status
    exit_code: int | None = None
    signal: int | None = None
    stdout: str = ""
    stderr: str = ""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    stdout_bytes: int = 0
    """Bytes written, kept or not."""
    stderr_bytes: int = 0
    result: str | None = None
    """repr of the last expression, where asked for."""
    error: ErrorInfo | None = None
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    queue_ms: float = 0.0
    max_rss_mb: float = 0.0
    state: SessionState | None = None
    session_id: str | None = None
    new_session: bool = False
    workdir_reset: bool = False
    threads_alive: int = 0
    files: dict[str, str] = {}
    """Fetched files: path to base64 content."""
    file_errors: dict[str, str] = {}
    notes: list[str] = []
    """What the service changed or noticed: clamped limits, killed leftovers, the reason of a sandbox error."""
    retryable: bool = False
    request_id: str | None = None
    backend: str = ""
    tier: str = ""


class ErrorBody(BaseModel):
    """Why a request was refused; nothing was run unless `code` is `session_lost` or `internal_error`."""

    code: str
    """For programs: `invalid_request`, `too_large`, `unauthorized`, `overloaded`, `queue_timeout` ..."""
    message: str
    """For people."""
    retryable: bool = False
    retry_after_s: float | None = None
    """How long to stay away before the next try."""
    details: list[dict[str, Any]] | None = None
    """Which fields are wrong, and how."""
    error_id: str | None = None
    """Names an internal error in the service's log."""


class ErrorAnswer(BaseModel):
    """Body of every answer that is not 2xx."""

    error: ErrorBody


class BatchRequest(BaseModel):
    """Several programs; each is queued, run and answered by itself."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    requests: list[ExecuteRequest] = Field(min_length=1)


class BatchItem(BaseModel):
    """The outcome of one program of a batch: a result, or why it was not run."""

    http_status: int
    """What the same request would have got alone."""
    result: ExecuteResult | None = None
    error: ErrorBody | None = None


class BatchAnswer(BaseModel):
    """Outcomes in the order of the requests."""

    items: list[BatchItem]


class ProbeReport(BaseModel):
    """What one isolation backend did when it was tried at start."""

    backend: str
    tier: str | None
    checks: dict[str, bool] = {}
    reason: str = ""
    details: dict[str, str] = {}


class Readiness(BaseModel):
    """State of the service."""

    state: str
    """`starting`, `ready`, `draining` or `stopped`."""
    backend: str = ""
    tier: str = ""
    probes: list[ProbeReport] = []
    slots: int = 0
    slots_free: int = 0
    slots_busy: int = 0
    slots_starting: int = 0
    queue_waiting: int = 0
    queue_capacity: int = 0
    sessions: int = 0
    sessions_max: int = 0
    loop_lag_ms: float = 0.0
    loop_lag_max_ms: float = 0.0
    last_slot_failure: str = ""


class SessionRequest(BaseModel):
    """A session to open."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    memory_mb: int = Field(512, ge=16)
    """Memory of the session's interpreter; clamped to the service's maximum."""
    idle_s: float | None = Field(None, ge=1)
    """End after this long without a turn; None takes the service's, which is also the most."""
    life_s: float | None = Field(None, ge=1)
    """End at this age; None takes the service's, which is also the most."""
    request_id: str | None = Field(None, min_length=1, max_length=200)
    """A repeated request with the same id gets the session that the first one opened (410 if it has ended)."""


class SessionInfo(BaseModel):
    """An open session."""

    session_id: str
    state: SessionState
    """`kept`, or `reset` after a reset."""
    busy: bool = False
    turns: int = 0
    age_s: float = 0.0
    idle_s: float = 0.0
    expires_in_s: float = 0.0
    """Time left if no turn comes."""
    memory_mb: int = 0
    notes: list[str] = []
    backend: str = ""
    tier: str = ""


class SessionList(BaseModel):
    """Open sessions of the caller's token."""

    sessions: list[SessionInfo]
