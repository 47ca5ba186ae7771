"""The wire formats that existing agents and trainers speak: SandboxFusion's and SimpleTIR's."""

from __future__ import annotations

import os
import time
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from sandbox.errors import NotReady, Overloaded, QueueTimeout, ServiceError
from sandbox.schemas import ExecuteRequest, ExecuteResult, Limits, Status
from sandbox.service import Caller, SandboxService
from sandbox.wire import Door, described, guarded, json_answer, stopping, takes, until_disconnect

FUSION_QUEUE_S = 8.0
"""verl waits compile time + run time + 10 s for an answer: a longer stay in the queue would end there unseen."""
TIME_LIMITS = (Status.TIMEOUT, Status.CPU_TIMEOUT)
OUR_FAULT = (Status.SANDBOX_ERROR, Status.CANCELLED, Status.SESSION_LOST)


class FusionRequest(BaseModel):
    """A program in SandboxFusion's format. Only Python is served."""

    model_config = ConfigDict(use_attribute_docstrings=True, allow_inf_nan=False)

    code: str
    language: Literal["python"]
    stdin: str | None = None
    compile_timeout: float = 10.0
    """Ignored: Python has no compile step."""
    run_timeout: float = Field(10.0, gt=0)
    memory_limit_MB: int = -1
    """MiB; -1 takes the service's default."""
    files: dict[str, str | None] = {}
    """Relative path to base64 content; None entries are left out."""
    fetch_files: list[str] = []


class FusionRun(BaseModel):
    """What the program did. On a time limit `return_code` is null and the partial output is present."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float
    return_code: int | None
    stdout: str
    stderr: str


class FusionAnswer(BaseModel):
    """`Failed` is a time limit or a non-zero exit; `SandboxError` is the service's fault."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str
    compile_result: None = None
    run_result: FusionRun | None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


class SimpleTirRequest(BaseModel):
    """A program in SimpleTIR's format."""

    model_config = ConfigDict(use_attribute_docstrings=True, allow_inf_nan=False)

    code: str
    language: Literal["python"] = "python"
    stdin: str | None = None
    compile_timeout: float = 1.0
    """Ignored: Python has no compile step."""
    run_timeout: float = Field(3.0, gt=0)


class SimpleTirRun(BaseModel):
    """What the program wrote."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    stdout: str
    stderr: str


class SimpleTirAnswer(BaseModel):
    """Outcome in SimpleTIR's three words."""

    status: Literal["success", "timeout", "runtime_error"]
    run_result: SimpleTirRun
    created_at: float
    """Unix time."""


def as_request(body: FusionRequest | SimpleTirRequest) -> ExecuteRequest:
    """The native form. The time limit bounds wall and CPU time alike, as the original knows only one."""
    limits = {"wall_s": body.run_timeout, "cpu_s": body.run_timeout}
    request = ExecuteRequest(code=body.code, stdin=body.stdin, queue_timeout_s=FUSION_QUEUE_S)
    if isinstance(body, FusionRequest):
        if body.memory_limit_MB > 0:
            limits["memory_mb"] = max(16, body.memory_limit_MB)
        request.files = {name: content for name, content in body.files.items() if content is not None}
        request.fetch_files = body.fetch_files
    request.limits = Limits(**limits)  # type: ignore[arg-type]
    return request


def return_code(result: ExecuteResult) -> int:
    """Exit status as `subprocess` reports it: negative for a signal."""
    if result.exit_code is not None:
        return result.exit_code if result.exit_code or result.status == Status.OK else 1
    if result.signal is not None:
        return -result.signal
    return 0 if result.status == Status.OK else 1


def fusion_answer(result: ExecuteResult) -> FusionAnswer:
    """A native result in SandboxFusion's terms."""
    pod = os.environ.get("MY_POD_NAME")
    if result.status in OUR_FAULT:
        message = "; ".join(result.notes) or result.status.value
        return FusionAnswer(status="SandboxError", message=message, run_result=None, executor_pod_name=pod)
    timed_out = result.status in TIME_LIMITS
    run = FusionRun(
        status="TimeLimitExceeded" if timed_out else "Finished",
        execution_time=result.wall_ms / 1000,
        return_code=None if timed_out else return_code(result),
        stdout=result.stdout,
        stderr=result.stderr,
    )
    return FusionAnswer(
        status="Success" if result.status == Status.OK else "Failed",
        message="",
        run_result=run,
        executor_pod_name=pod,
        files=result.files,
    )


def simpletir_answer(result: ExecuteResult) -> SimpleTirAnswer:
    """A native result in SimpleTIR's terms."""
    timed_out, ok = result.status in TIME_LIMITS, result.status == Status.OK
    run = SimpleTirRun(
        status="TimeLimitExceeded" if timed_out else "Finished" if ok else "Error",
        stdout=result.stdout,
        stderr=result.stderr,
    )
    status: Literal["success", "timeout", "runtime_error"] = (
        "timeout" if timed_out else "success" if ok else "runtime_error"
    )
    return SimpleTirAnswer(status=status, run_result=run, created_at=time.time())


def alias_router(service: SandboxService, door: Door) -> tuple[APIRouter, list[type[BaseModel]]]:
    """The routes, and the body models for the OpenAPI page."""
    router = APIRouter(tags=["compatible"])

    async def run(body: FusionRequest | SimpleTirRequest, caller: Caller) -> ExecuteResult:
        try:
            return await service.execute(as_request(body), caller)
        except Overloaded as full:
            # verl retries a 504 and nothing else, so that is what a full queue is called here.
            raise QueueTimeout(full.message, retry_after_s=full.retry_after_s) from None

    async def run_code(request: Request) -> Response:
        """Run a program in SandboxFusion's format. Both a full queue and a long wait in it are 504."""
        caller = door.caller(request)
        body = await door.body(request, FusionRequest)
        result = await until_disconnect(request, run(body, caller))
        return json_answer(fusion_answer(result)) if result is not None else stopping()

    async def faas_sandbox(request: Request) -> Response:
        """Run a program in SimpleTIR's format."""
        caller = door.caller(request)
        body = await door.body(request, SimpleTirRequest)
        result = await until_disconnect(request, run(body, caller))
        if result is None:
            return stopping()
        if result.status in OUR_FAULT:  # the format has no word for it, and "runtime_error" would blame the program
            raise NotReady("; ".join(result.notes) or result.status.value, retry_after_s=1.0)
        return json_answer(simpletir_answer(result))

    async def ping(request: Request) -> Response:
        """SandboxFusion's liveness check."""
        return Response(b'"pong"', media_type="application/json")

    def count(refusal: ServiceError) -> None:
        service.metrics.refused.labels(refusal.code).inc()

    statuses = (401, 413, 422, 500, 503, 504)
    for path, handler, takes_model, gives in (
        ("/run_code", run_code, FusionRequest, FusionAnswer),
        ("/faas/sandbox/", faas_sandbox, SimpleTirRequest, SimpleTirAnswer),
    ):
        router.add_api_route(
            path,
            guarded(handler, count),
            methods=["POST"],
            response_model=None,
            responses=described(*statuses, answer=gives),
            openapi_extra=takes(takes_model),
        )
    router.add_api_route("/v1/ping", guarded(ping, count), methods=["GET"], response_model=None)
    return router, [FusionRequest, SimpleTirRequest]
