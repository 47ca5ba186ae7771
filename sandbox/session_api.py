"""Routes of sessions."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from sandbox.errors import NotReady, ServiceError
from sandbox.schemas import ExecuteRequest, ExecuteResult, SessionInfo, SessionList, SessionRequest
from sandbox.service import SandboxService
from sandbox.turns import SessionService
from sandbox.wire import Door, Responses, described, guarded, json_answer, stopping, takes, until_disconnect

CAPACITY = (429, 500, 503, 504)
ID_PARAMETER = {"name": "session_id", "in": "path", "required": True, "schema": {"type": "string"}}


def session_router(service: SandboxService, door: Door) -> APIRouter:
    """Open, list, run a turn, interrupt, reset, end."""
    router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

    def table() -> SessionService:
        if service.sessions is None:
            raise NotReady(f"the service is {service.state}", retry_after_s=1.0)
        return service.sessions

    async def open_session(request: Request) -> Response:
        """Open a session: an interpreter that remembers. 429 if all are in use."""
        caller = door.caller(request)
        body = await door.body(request, SessionRequest)
        info = await until_disconnect(request, table().create(body, caller))
        return json_answer(info, 201) if info is not None else stopping()

    async def list_sessions(request: Request) -> Response:
        """Open sessions of the caller's token, least recently used first."""
        return json_answer(SessionList(sessions=table().list(door.caller(request))))

    async def execute_turn(request: Request) -> Response:
        """Run one turn; `state` says what the session remembers after it. Concurrent turns wait for each other."""
        caller = door.caller(request)
        body = await door.body(request, ExecuteRequest)
        turn = table().execute(request.path_params["session_id"], body, caller)
        result = await until_disconnect(request, turn)
        return json_answer(result) if result is not None else stopping()

    async def interrupt(request: Request) -> Response:
        """Interrupt the running turn as Ctrl-C would; it is killed if it does not end soon."""
        return json_answer(await table().interrupt(request.path_params["session_id"], door.caller(request)))

    async def reset(request: Request) -> Response:
        """Replace the interpreter by a fresh one under the same id; a running turn is killed."""
        return json_answer(await table().reset(request.path_params["session_id"], door.caller(request)))

    async def end_session(request: Request) -> Response:
        """End the session; a running turn is killed."""
        table().end(request.path_params["session_id"], door.caller(request))
        return Response(status_code=204)

    def count(refusal: ServiceError) -> None:
        service.metrics.refused.labels(refusal.code).inc()

    gone = (401, 404, 410)
    for method, path, handler, body, answer, status, refusals in (
        ("POST", "", open_session, SessionRequest, SessionInfo, 201, (401, 409, 410, 413, 422, *CAPACITY)),
        ("GET", "", list_sessions, None, SessionList, 200, (401, 500, 503)),
        (
            "POST",
            "/{session_id}/execute",
            execute_turn,
            ExecuteRequest,
            ExecuteResult,
            200,
            (*gone, 409, 413, 422, *CAPACITY),
        ),
        ("POST", "/{session_id}/interrupt", interrupt, None, SessionInfo, 200, (*gone, 500, 503)),
        ("POST", "/{session_id}/reset", reset, None, SessionInfo, 200, (*gone, *CAPACITY)),
        ("DELETE", "/{session_id}", end_session, None, None, 204, (*gone, 500, 503)),
    ):
        router.add_api_route(
            path,
            guarded(handler, count),
            methods=[method],
            status_code=status,
            response_model=None,
            responses=_responses(refusals, answer, status),
            openapi_extra=(takes(body) if body is not None else {})
            | ({"parameters": [ID_PARAMETER]} if "{" in path else {}),
        )
    return router


def _responses(refusals: tuple[int, ...], answer: type[BaseModel] | None, status: int) -> Responses:
    responses = described(*refusals)
    if answer is not None:
        responses[status] = {"model": answer, "description": "Done"}
    return responses
