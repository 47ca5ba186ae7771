"""The OpenAPI page is complete and true: schemathesis calls every operation by it and checks each answer against it."""

from __future__ import annotations

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from sandbox.api import create_app
from sandbox.service import SandboxService
from sandbox.settings import ServiceSettings
from tests.integration.scripted_slots import ScriptedBackend

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def page():
    """The page of a running service."""
    service = SandboxService(ServiceSettings(slots=2, max_sessions=3, evict_idle_s=0), ScriptedBackend())
    app = create_app(service)
    app.router.on_startup = []
    with TestClient(app) as http:
        http.portal.call(service.start)
        try:
            yield schemathesis.openapi.from_asgi("/openapi.json", app)
        finally:
            http.portal.call(service.stop)


OPERATIONS = [
    (path, method.upper())
    for path, operations in create_app(SandboxService(ServiceSettings(), ScriptedBackend())).openapi()["paths"].items()
    for method in operations
]


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_operation_answers_as_the_page_says(page, path, method):
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=page[path][method].as_strategy())
    def call(case):
        case.call_and_validate(checks=CHECKS)

    call()


def test_the_page_names_what_the_documentation_promises():
    promised = {
        *(("/v1/execute", "POST"), ("/v1/execute/batch", "POST"), ("/v1/sessions", "POST"), ("/v1/sessions", "GET")),
        *((f"/v1/sessions/{{session_id}}/{verb}", "POST") for verb in ("execute", "interrupt", "reset")),
        ("/v1/sessions/{session_id}", "DELETE"),
        *(("/run_code", "POST"), ("/faas/sandbox/", "POST")),
        *((path, "GET") for path in ("/healthz", "/readyz", "/metrics")),
    }
    assert promised <= set(OPERATIONS)
