"""Between HTTP and the service: bodies in, answers out, errors to status codes, who is asking.

Routes take the raw request and validate the body with pydantic-core straight from the bytes; FastAPI
contributes routing and the OpenAPI page, to which the body models are added by :func:`openapi_page`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandbox.errors import InvalidRequest, NotReady, ServiceError, TooLarge, Unauthorized
from sandbox.schemas import ErrorAnswer, ErrorBody
from sandbox.service import Caller
from sandbox.settings import ServiceSettings
from sandbox.tenants import LOCAL, tenant_of

log = logging.getLogger("sandbox")

Model = TypeVar("Model", bound=BaseModel)
Responses = dict[int | str, dict[str, Any]]
Handler = Callable[[Request], Awaitable[Response]]
CLIENT_HEADER = "x-client-id"
OFFLOAD_BYTES = 256 << 10
"""Bodies above this are parsed on a thread, so that the loop keeps turning."""
MEANINGS = {
    401: "No bearer token, or a wrong one",
    404: "No such session of this token",
    409: "The request id was used for a different request",
    410: "The session is lost: idle, too old, evicted, deleted, or from before a restart",
    413: "Source, standard input, files or body too large",
    422: "The request is not valid",
    429: "The queue is full; see Retry-After",
    500: "An error of the service, named by an id",
    503: "Starting, draining, or no slot alive",
    504: "No slot became free in time; nothing was run",
}


class Door:
    """Who may come in, and how much they may carry."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._tokens = [token.get_secret_value().encode() for token in settings.tokens]
        self._tenants = [tenant_of(token) for token in self._tokens]
        one = settings.max_source_bytes * 2 + settings.max_stdin_bytes
        self.max_body = 2 * one + settings.max_upload_bytes * 4 // 3 + (1 << 20)
        """JSON escapes can double a text."""

    def caller(self, request: Request) -> Caller:
        """Authenticate. Raises Unauthorized."""
        host = request.client.host if request.client else "local"
        client = request.headers.get(CLIENT_HEADER, "")[:100]
        if not self._tokens:
            return Caller(LOCAL, f"{host}/{client}")
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        tenant = ""
        for token, name in zip(self._tokens, self._tenants, strict=True):
            if hmac.compare_digest(token, given.strip().encode()):  # every token is compared, whatever matched
                tenant = name
        if scheme.lower() != "bearer" or not tenant:
            raise Unauthorized("send the service's token as `Authorization: Bearer <token>`")
        return Caller(tenant, f"{host}/{client}")

    def knows(self, request: Request) -> bool:
        """Whether the caller may see details."""
        try:
            self.caller(request)
        except Unauthorized:
            return False
        return True

    async def body(self, request: Request, model: type[Model]) -> Model:
        """Read and validate a JSON body. Raises TooLarge, InvalidRequest."""
        raw = await read_body(request, self.max_body)
        try:
            if len(raw) > OFFLOAD_BYTES:
                return await asyncio.to_thread(model.model_validate_json, raw)
            return model.model_validate_json(raw)
        except ValidationError as wrong:
            raise invalid(wrong) from None


async def read_body(request: Request, bound: int) -> bytes:
    """The request's body. Raises TooLarge beyond `bound` bytes."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bound:
        raise TooLarge(f"the body has {declared} bytes; at most {bound}")
    parts, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > bound:
            raise TooLarge(f"the body has more than {bound} bytes")
        parts.append(chunk)
    return b"".join(parts)


def invalid(wrong: ValidationError) -> InvalidRequest:
    """Pydantic's findings as a refusal that names the fields."""
    found = wrong.errors(include_url=False, include_context=False, include_input=False)[:20]
    first = ".".join(str(part) for part in found[0]["loc"]) or "body"
    return InvalidRequest(f"{first}: {found[0]['msg']}", details=[dict(item) for item in found])


async def until_disconnect(request: Request, work: Awaitable[Model]) -> Model | None:
    """Await `work`, cancelling it if the caller hangs up first; then None."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_hang_up(request))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait((task,))
        return None
    finally:
        task.cancel()
        watch.cancel()


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_answer(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Serialise by pydantic-core, once."""
    return Response(model.model_dump_json().encode(), status, headers, "application/json")


def error_body(error: ServiceError) -> ErrorBody:
    """A refusal as data."""
    return ErrorBody(
        code=error.code,
        message=error.message,
        retryable=error.retryable,
        retry_after_s=error.retry_after_s,
        details=error.details,
    )


def error_answer(error: ServiceError) -> Response:
    """A refusal as an answer, with Retry-After where it helps."""
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    return json_answer(ErrorAnswer(error=error_body(error)), error.http_status, headers)


def internal_error(failure: BaseException) -> Response:
    """Log a bug of ours under an id; the caller learns only the id."""
    error_id = secrets.token_hex(8)
    log.error("internal error %s", error_id, exc_info=failure)
    body = ErrorBody(
        code="internal_error", message=f"internal error {error_id}; see the service's log", error_id=error_id
    )
    return json_answer(ErrorAnswer(error=body), 500)


def guarded(handler: Handler, on_refusal: Callable[[ServiceError], None]) -> Handler:
    """A handler whose every failure has an answer."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except ServiceError as refusal:
            on_refusal(refusal)
            return error_answer(refusal)
        except asyncio.CancelledError:
            raise
        except Exception as failure:
            return internal_error(failure)

    endpoint.__name__ = handler.__name__
    endpoint.__doc__ = handler.__doc__
    return endpoint


class DirectRoutes:
    """The application with its fixed paths dispatched by one look-up.

    Handlers here take the raw request and answer every failure themselves (:func:`guarded`), so FastAPI's
    middleware, path matching and dependency solving add nothing but half of the service's CPU time a run.
    Everything else, paths with parameters and refusals of methods included, goes the usual way.
    """

    def __init__(self, app: FastAPI, handlers: dict[tuple[str, str], Handler]) -> None:
        self.app = app
        self.handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self.handlers.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if handler is None:
            await self.app(scope, receive, send)
        else:
            response = await handler(Request(scope, receive))
            await response(scope, receive, send)


def stopping() -> Response:
    """Answer to a caller who has gone (nobody reads it)."""
    return error_answer(NotReady("the caller went away"))


async def plain_error(_: Request, error: Exception) -> Response:
    """Starlette's own refusals (no such route, wrong method) in our shape."""
    assert isinstance(error, HTTPException)
    code = {404: "no_such_route", 405: "method_not_allowed"}.get(error.status_code, "refused")
    body = ErrorBody(code=code, message=str(error.detail))
    return json_answer(ErrorAnswer(error=body), error.status_code, dict(error.headers or {}))


def described(*statuses: int, answer: type[BaseModel] | None = None) -> Responses:
    """OpenAPI `responses` of a route."""
    responses: Responses = {s: {"model": ErrorAnswer, "description": MEANINGS[s]} for s in statuses}
    if answer is not None:
        responses[200] = {"model": answer, "description": "Done"}
    return responses


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """OpenAPI `requestBody` of a route that validates its body itself."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def openapi_page(app: FastAPI, bodies: list[type[BaseModel]], *, authenticated: bool) -> Callable[[], dict[str, Any]]:
    """The OpenAPI document, body models included."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            page = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _, definitions = models_json_schema(
                [(model, "validation") for model in bodies], ref_template="#/components/schemas/{model}"
            )
            components = page.setdefault("components", {})
            known = components.setdefault("schemas", {})
            for name, schema in definitions["$defs"].items():
                known.setdefault(name, schema)
            if authenticated:
                components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                page["security"] = [{"token": []}]
            app.openapi_schema = page
        return app.openapi_schema

    return build
