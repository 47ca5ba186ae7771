"""The HTTP face: validation, limits, tokens, errors that leak nothing, an OpenAPI page that is true."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from sandbox.checks import check_name
from sandbox.errors import InvalidRequest
from sandbox.schemas import Limits
from tests.integration.scripted_slots import ScriptedBackend
from tests.integration.service_kit import eventually, serving

B64 = base64.b64encode(b"data").decode()
ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789ab"


def _as(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    "body",
    [
        '{"code": 5}',
        '{"code": "x", "limits": {"wall_s": 0}}',
        '{"code": "x", "limits": {"wall_s": -1}}',
        '{"code": "x", "limits": {"wall_s": NaN}}',
        '{"code": "x", "limits": {"wall_s": 1e999}}',
        '{"code": "x", "limits": {"cpu_s": "soon"}}',
        '{"code": "x", "limits": {"memory_mb": 1.5}}',
        '{"code": "x", "limits": {"walls": 3}}',
        '{"code": "x", "queue_timeout_s": 0}',
        '{"code": "x", "seed": -1}',
        '{"code": "x", "seed": 99999999999}',
        '{"code": "x", "language": "python"}',
        '{"code": "x", "files": ["a"]}',
        '{"code": "x", "request_id": ""}',
        '{"code": "\\ud800"}',
        '{"cod": "x"}',
        "[]",
        "null",
        "",
        "{",
        "\x00\xff",
    ],
)
async def test_a_senseless_request_is_422_and_names_the_field(body: str) -> None:
    backend = ScriptedBackend()
    async with serving(backend, slots=1) as served:
        answer = await served.http.post("/v1/execute", content=body.encode("latin-1"))
        assert answer.status_code == 422
        error = answer.json()["error"]
        assert error["code"] == "invalid_request" and error["message"] and not error["retryable"]
        assert backend.programs == []


BAD_NAMES = [
    "../x",
    "/abs",
    "a/../../b",
    "C:\\x",
    "c:/x",
    "a\\b",
    "",
    ".",
    "a//b",
    "a/",
    "./a",
    "n\0l",
    "x" * 256,
    "main.py",
]


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_upload_names_that_leave_the_work_directory_are_refused_before_anything_is_written(name: str) -> None:
    backend = ScriptedBackend()
    async with serving(backend, slots=1) as served:
        answer = await served.post("/v1/execute", {"code": "say x", "files": {name: B64}})
        assert answer.status_code == 422
        if name != "main.py":
            answer = await served.post("/v1/execute", {"code": "say x", "fetch_files": [name]})
            assert answer.status_code == 422
        assert backend.programs == []


def test_ordinary_names_are_accepted() -> None:
    for name in ("a.txt", "deep/er/file", "spaß €.csv", "...", "a b", "-rf", "x" * 255):
        check_name(name, "files")
    with pytest.raises(InvalidRequest):
        check_name("ü" * 128, "files")


async def test_too_much_of_anything_is_413() -> None:
    backend = ScriptedBackend()
    async with serving(backend, slots=1) as served:
        mib = 1 << 20
        too_large = [
            {"code": "#" * (mib + 1)},
            {"code": "é" * (mib // 2 + 1)},
            {"code": "x", "prelude": "#" * (mib + 1)},
            {"code": "x", "stdin": "x" * (mib + 1)},
            {"code": "x", "files": {f"f{number}": "" for number in range(101)}},
            {"code": "x", "fetch_files": [f"f{number}" for number in range(101)]},
            {"code": "x", "files": {"a": base64.b64encode(bytes(33 * mib)).decode()}},
        ]
        for body in too_large:
            answer = await served.post("/v1/execute", body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large"), list(body)
        huge = await served.http.post("/v1/execute", content=b" " * (64 * mib))
        assert huge.status_code == 413
        assert backend.programs == []
        exact = await served.post("/v1/execute", {"code": "#" * mib, "stdin": "x" * mib})
        assert exact.status_code == 200


async def test_the_service_answers_others_while_it_takes_in_a_large_body() -> None:
    async with serving(ScriptedBackend(), slots=1) as served:
        files = {f"f{number}": base64.b64encode(bytes(8 << 20)).decode() for number in range(3)}
        large = asyncio.ensure_future(served.post("/v1/execute", {"code": "say x", "files": files}))
        others = 0
        while not large.done():
            assert (await served.http.get("/healthz")).status_code == 200
            others += 1
        assert large.result().status_code == 200 and others >= 3


@pytest.mark.parametrize(
    ("files", "word"),
    [({"a": "not base64!"}, "base64"), ({"a": B64, "a/b": B64}, "folder")],
)
async def test_uploads_that_cannot_be_written_are_422(files: dict[str, str], word: str) -> None:
    async with serving(ScriptedBackend(), slots=1) as served:
        answer = await served.post("/v1/execute", {"code": "say x", "files": files})
        assert answer.status_code == 422 and word in answer.json()["error"]["message"]


async def test_limits_above_the_maxima_are_clamped_and_the_result_says_so() -> None:
    async with serving(ScriptedBackend(), slots=1, max_limits=Limits(wall_s=20, cpu_s=7)) as served:
        limits = {"wall_s": 1e9, "cpu_s": 6, "processes": 10**30}
        notes = (await served.post("/v1/execute", {"code": "say x", "limits": limits})).json()["notes"]
        assert notes == [
            "limits.processes: 1e+30 is above the maximum; 64 was used",
            "limits.wall_s: 1e+09 is above the maximum; 20 was used",
        ]


GUARDED = [
    ("POST", "/v1/execute"),
    ("POST", "/v1/execute/batch"),
    ("POST", "/v1/sessions"),
    ("GET", "/v1/sessions"),
    ("POST", "/v1/sessions/x/execute"),
    ("POST", "/v1/sessions/x/interrupt"),
    ("POST", "/v1/sessions/x/reset"),
    ("DELETE", "/v1/sessions/x"),
    ("POST", "/run_code"),
    ("POST", "/faas/sandbox/"),
    ("GET", "/metrics"),
]
OPEN = [("GET", "/v1/ping"), ("GET", "/healthz"), ("GET", "/readyz")]


async def test_without_the_token_nothing_is_served_but_health() -> None:
    async with serving(ScriptedBackend(), slots=1, tokens=(ALICE, BOB)) as served:
        wrong = ({}, _as("wrong"), {"authorization": ALICE}, {"authorization": f"Basic {ALICE}"}, _as(ALICE + "x"))
        for headers in wrong:
            for method, path in GUARDED:
                answer = await served.http.request(method, path, headers=headers, content=b'{"code":"say x"}')
                assert answer.status_code == 401, (method, path, headers)
                assert answer.headers["www-authenticate"] == "Bearer"
        assert (await served.http.get("/healthz")).status_code == 200
        stranger, friend = await served.http.get("/readyz"), await served.http.get("/readyz", headers=_as(ALICE))
        assert (stranger.status_code, stranger.json()["tier"], stranger.json()["probes"]) == (200, "T0", [])
        assert friend.json()["probes"]
        for token in (ALICE, BOB):
            assert (await served.post("/v1/execute", {"code": "say x"}, headers=_as(token))).status_code == 200


async def test_a_request_id_of_one_tenant_does_not_answer_another() -> None:
    async with serving(ScriptedBackend(), slots=1, tokens=(ALICE, BOB)) as served:
        body = {"code": "say mine", "request_id": "r"}
        assert (await served.post("/v1/execute", body, headers=_as(ALICE))).status_code == 200
        other = await served.post("/v1/execute", body | {"code": "say yours"}, headers=_as(BOB))
        assert other.json()["stdout"] == "yours"


async def test_a_bug_of_ours_is_500_with_an_id_and_no_internals(caplog: pytest.LogCaptureFixture) -> None:
    backend = ScriptedBackend()
    async with serving(backend, slots=1) as served:
        answer = await served.post("/v1/execute", {"code": "bug"})
        assert answer.status_code == 500
        error_id = answer.json()["error"]["error_id"]
        assert error_id and "secret" not in answer.text and "Traceback" not in answer.text
        assert any(error_id in record.getMessage() and record.exc_info for record in caplog.records)
        await eventually(lambda: len(served.service.pool.free) == 1)
        assert (await served.post("/v1/execute", {"code": "say 42"})).json()["stdout"] == "42"


async def test_unknown_routes_and_methods_answer_in_the_same_shape() -> None:
    async with serving(ScriptedBackend(), slots=1) as served:
        unknown, wrong = await served.http.get("/nope"), await served.http.get("/v1/execute")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "no_such_route")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_the_openapi_page_names_every_route_body_and_answer() -> None:
    async with serving(ScriptedBackend(), slots=1, tokens=(ALICE,)) as served:
        page = (await served.http.get("/openapi.json")).json()
        operations = {
            (method.upper(), path): operation
            for path, item in page["paths"].items()
            for method, operation in item.items()
        }
        expected = [(method, path.replace("/x", "/{session_id}")) for method, path in GUARDED + OPEN]
        assert sorted(operations) == sorted(expected)
        schemas = page["components"]["schemas"]

        def resolve(node: object) -> None:
            if isinstance(node, dict):
                if "$ref" in node:
                    assert node["$ref"].rsplit("/", 1)[1] in schemas
                for value in node.values():
                    resolve(value)
            elif isinstance(node, list):
                for value in node:
                    resolve(value)

        resolve(page)
        for (method, path), operation in operations.items():
            takes_body = path.endswith("execute") or path in ("/v1/execute/batch", "/run_code", "/faas/sandbox/")
            assert ("requestBody" in operation) == (takes_body or (method, path) == ("POST", "/v1/sessions")), path
            assert any(status.startswith("2") for status in operation["responses"])
            for status, response in operation["responses"].items():
                if status.startswith(("4", "5")) and path != "/readyz":
                    schema = response["content"]["application/json"]["schema"]
                    assert schema["$ref"].endswith("ErrorAnswer"), (path, status)
        limits = schemas["Limits"]["properties"]
        assert limits["wall_s"]["description"] and limits["wall_s"]["exclusiveMinimum"] == 0
        assert page["components"]["securitySchemes"]


async def test_an_endless_chunked_body_is_cut_off() -> None:
    async with serving(ScriptedBackend(), slots=1) as served:

        async def endless():  # type: ignore[no-untyped-def]
            for _ in range(200):
                yield b" " * (1 << 20)
                await asyncio.sleep(0)

        try:
            answer = await served.http.post("/v1/execute", content=endless())
            assert answer.status_code == 413
        except Exception as closed:  # the service may close the connection before the client has sent all
            assert type(closed).__name__ in ("ReadError", "WriteError", "RemoteProtocolError")
        assert (await served.post("/v1/execute", {"code": "say 42"})).json()["stdout"] == "42"


async def test_results_are_json_whatever_the_program_wrote() -> None:
    async with serving(ScriptedBackend(), slots=1) as served:
        answer = await served.post("/v1/execute", {"code": 'say \u0000\u2028\U0001f600 \\ " </script>'})
        assert json.loads(answer.content)["stdout"] == '\u0000\u2028\U0001f600 \\ " </script>'
