"""The FastAPI application: native routes, health, readiness, metrics.

HTTP 200 for every outcome of user code; 4xx for the caller's mistakes; 429, 503 and 504 for capacity; 500 only
for our own bugs, with an id and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from sandbox.aliases import alias_router
from sandbox.errors import ServiceError, TooLarge
from sandbox.schemas import (
    BatchAnswer,
    BatchItem,
    BatchRequest,
    ErrorAnswer,
    ExecuteRequest,
    ExecuteResult,
    ProbeReport,
    Readiness,
    SessionRequest,
)
from sandbox.service import Caller, SandboxService
from sandbox.session_api import session_router
from sandbox.wire import (
    DirectRoutes,
    Door,
    Handler,
    described,
    error_body,
    guarded,
    json_answer,
    openapi_page,
    plain_error,
    stopping,
    takes,
    until_disconnect,
)

CAPACITY = (429, 500, 503, 504)
DESCRIPTION = "Runs Python programs in warm, isolated interpreters with hard limits."


def create_app(service: SandboxService) -> FastAPI:
    """The application over a service that somebody else starts and stops."""
    app = FastAPI(title="agent-rl sandbox", version="1", description=DESCRIPTION)
    door = Door(service.settings)
    app.add_exception_handler(HTTPException, plain_error)
    app.include_router(run_router(service, door))
    app.include_router(session_router(service, door))
    app.include_router(state_router(service, door))
    aliases, alias_bodies = alias_router(service, door)
    app.include_router(aliases)
    app.openapi = openapi_page(  # type: ignore[method-assign]
        app, [ExecuteRequest, BatchRequest, SessionRequest, *alias_bodies], authenticated=bool(service.settings.tokens)
    )
    return app


def direct(service: SandboxService) -> DirectRoutes:
    """What is served: the application, its busiest routes dispatched without FastAPI."""
    app = create_app(service)
    handlers: dict[tuple[str, str], Handler] = {}
    for router in (run_router(service, Door(service.settings)), alias_router(service, Door(service.settings))[0]):
        for route in router.routes:
            assert isinstance(route, APIRoute)
            handlers |= {(method, route.path): route.endpoint for method in route.methods}
    return DirectRoutes(app, handlers)


def refusals(service: SandboxService) -> Callable[[ServiceError], None]:
    """Counts refusals by code."""
    return lambda refusal: service.metrics.refused.labels(refusal.code).inc()


def run_router(service: SandboxService, door: Door) -> APIRouter:
    """Stateless runs, one or many."""
    router = APIRouter(prefix="/v1", tags=["run"])

    async def execute(request: Request) -> Response:
        """Run one program in a fresh interpreter. Every outcome of the program is a 200."""
        caller = door.caller(request)
        body = await door.body(request, ExecuteRequest)
        result = await until_disconnect(request, service.execute(body, caller))
        return json_answer(result) if result is not None else stopping()

    async def execute_batch(request: Request) -> Response:
        """Run several programs; each has its own outcome. At most as many run or wait at once as there are slots."""
        caller = door.caller(request)
        body = await door.body(request, BatchRequest)
        answer = await until_disconnect(request, run_batch(service, body, caller))
        return json_answer(answer) if answer is not None else stopping()

    for path, handler, takes_model, gives in (
        ("/execute", execute, ExecuteRequest, ExecuteResult),
        ("/execute/batch", execute_batch, BatchRequest, BatchAnswer),
    ):
        router.add_api_route(
            path,
            guarded(handler, refusals(service)),
            methods=["POST"],
            response_model=None,
            responses=described(401, 409, 413, 422, *CAPACITY, answer=gives),
            openapi_extra=takes(takes_model),
        )
    return router


async def run_batch(service: SandboxService, batch: BatchRequest, caller: Caller) -> BatchAnswer:
    """Run the programs of a batch, a few at a time, so that a batch cannot crowd others out of the queue."""
    if len(batch.requests) > service.settings.max_batch:
        raise TooLarge(f"the batch has {len(batch.requests)} programs; at most {service.settings.max_batch}")
    service.admit()
    turn = asyncio.Semaphore(2 * service.settings.slot_count)

    async def one(request: ExecuteRequest) -> BatchItem:
        async with turn:
            try:
                return BatchItem(http_status=200, result=await service.execute(request, caller))
            except ServiceError as refusal:
                service.metrics.refused.labels(refusal.code).inc()
                return BatchItem(http_status=refusal.http_status, error=error_body(refusal))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(request)) for request in batch.requests]
    return BatchAnswer(items=[task.result() for task in tasks])


def state_router(service: SandboxService, door: Door) -> APIRouter:
    """Health, readiness, metrics."""
    router = APIRouter(tags=["state"])

    async def healthz(request: Request) -> Response:
        """The process is alive and its loop turns."""
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def readyz(request: Request) -> Response:
        """200 when programs are admitted, else 503; isolation tier, free slots, queue; canary results with a token."""
        report = readiness(service)
        if not door.knows(request):
            report = report.model_copy(update={"probes": [], "last_slot_failure": ""})
        return json_answer(report, 200 if report.state == "ready" else 503)

    async def metrics(request: Request) -> Response:
        """Prometheus metrics."""
        door.caller(request)
        return Response(generate_latest(service.metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    text = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics"}}
    alive = {200: {"content": {"application/json": {"schema": {"type": "object"}}}, "description": "Alive"}}
    not_ready = {503: {"model": Readiness, "description": "Not ready"}}
    denied = {401: {"model": ErrorAnswer, "description": "No bearer token, or a wrong one"}}
    for path, handler, responses in (
        ("/healthz", healthz, alive),
        ("/readyz", readyz, described(answer=Readiness) | not_ready),
        ("/metrics", metrics, text | denied),
    ):
        router.add_api_route(
            path,
            guarded(handler, refusals(service)),
            methods=["GET"],
            response_model=None,
            responses=responses,  # type: ignore[arg-type]
        )
    return router


def readiness(service: SandboxService) -> Readiness:
    """What `/readyz` says."""
    report = Readiness(
        state=service.state,
        probes=[
            ProbeReport(
                backend=probe.backend,
                tier=probe.tier.name if probe.tier is not None else None,
                checks=dict(probe.checks),
                reason=probe.reason,
                details=dict(probe.details),
            )
            for probe in service.probes
        ],
    )
    if service.backend is None:
        return report
    report.backend, report.tier = service.backend.name, service.tier
    report.slots = service.settings.slot_count
    report.slots_free, report.slots_busy = len(service.pool.free), len(service.pool.busy)
    report.slots_starting, report.last_slot_failure = service.pool.starting, service.pool.last_failure
    report.queue_waiting, report.queue_capacity = service.gate.waiting, service.gate.capacity
    report.sessions, report.sessions_max = len(service.sessions.table.open), service.settings.session_count
    report.loop_lag_ms, report.loop_lag_max_ms = service.metrics.lag_ms, service.metrics.lag_max_ms
    return report
