"""The wire formats of others: SandboxFusion's public client, unmodified, and SimpleTIR's route."""

from __future__ import annotations

import asyncio
import base64
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
import sandbox_fusion
from sandbox_fusion import RunCodeRequest, RunStatus, SummaryMapping

from sandbox.service import running
from sandbox.settings import ServiceSettings
from tests.integration.scripted_slots import ScriptedBackend
from tests.integration.service_kit import ROOT, family_of, on_socket, serving, shared_sandbox, still_alive

MAPPING = SummaryMapping(
    Success="right", Failed="wrong", CompileFailed="wrong", CompileTimeout="slow", RunFailed="wrong", RunTimeout="slow"
)


def _ask(code: str, **options):  # type: ignore[no-untyped-def]
    return RunCodeRequest(code=code, language="python", **options)


@pytest.fixture(scope="module")
def fusion() -> Iterator[str]:
    """A real service on the command line, without a token, as SandboxFusion's client sends none.

    It says where it listens and with which isolation, and ends cleanly and completely on SIGTERM.
    """
    command = [sys.executable, "-m", "sandbox", "serve", "--port", "0", "--slots", "2"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            line = service.stdout.readline()
            assert line.startswith("sandbox ready on http://127.0.0.1:") and "tier T" in line
            family = family_of(service.pid)
            yield line.split()[3]
            service.send_signal(signal.SIGTERM)
            assert service.wait(20) == 0
        finally:
            service.kill()
    assert still_alive(family, 5.0) == []


def test_a_right_program_succeeds(fusion: str) -> None:
    answer = sandbox_fusion.run_code(_ask("print(6*7)"), endpoint=fusion)
    assert answer.status == RunStatus.Success
    assert (answer.run_result.status, answer.run_result.return_code, answer.run_result.stdout) == (
        "Finished",
        0,
        "42\n",
    )
    assert answer.run_result.execution_time >= 0 and answer.compile_result is None
    assert sandbox_fusion.summary_run_code_result(answer, MAPPING) == "right"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise ValueError(3)", 1),
        ("import sys; sys.exit(3)", 3),
        ("def f(:", 1),
        ("import os; os.abort()", -6),
        ("assert 1 == 2", 1),
    ],
)
def test_a_wrong_program_is_failed_and_finished_with_its_exit_status(fusion: str, code: str, status: int) -> None:
    answer = sandbox_fusion.run_code(_ask(code), endpoint=fusion)
    assert answer.status == RunStatus.Failed
    assert (answer.run_result.status, answer.run_result.return_code) == ("Finished", status)
    assert sandbox_fusion.summary_run_code_result(answer, MAPPING) == "wrong"


@pytest.mark.parametrize("spin", ["while True: pass", "import time; time.sleep(99)"])
def test_a_time_limit_has_no_return_code_and_keeps_the_partial_output(fusion: str, spin: str) -> None:
    answer = sandbox_fusion.run_code(_ask(f"print('so far', flush=True)\n{spin}", run_timeout=0.5), endpoint=fusion)
    assert answer.status == RunStatus.Failed
    assert (answer.run_result.status, answer.run_result.return_code) == ("TimeLimitExceeded", None)
    assert answer.run_result.stdout == "so far\n"
    assert sandbox_fusion.summary_run_code_result(answer, MAPPING) == "slow"


def test_standard_input_and_files_go_in_and_files_come_out(fusion: str) -> None:
    code = "import shutil\nprint(input()[::-1])\nshutil.copy('a.txt', 'b.txt')"
    files = {"a.txt": base64.b64encode(b"\x00data").decode(), "skipped": None}
    answer = sandbox_fusion.run_code(_ask(code, stdin="abc", files=files, fetch_files=["b.txt"]), endpoint=fusion)
    assert answer.run_result.stdout == "cba\n"
    assert base64.b64decode(answer.files["b.txt"]) == b"\x00data"


def test_many_threads_of_the_public_client_are_served(fusion: str) -> None:
    requests = [[_ask(f"print({number})")] for number in range(40)]
    answers = sandbox_fusion.run_concurrent(
        lambda request: sandbox_fusion.run_code(request, endpoint=fusion), args=requests, concurrency=10
    )
    assert [answer.run_result.stdout for answer in answers] == [f"{number}\n" for number in range(40)]


async def test_the_public_clients_asynchronous_form_is_served(fusion: str) -> None:
    calls = [sandbox_fusion.run_code_async(_ask(f"print({number})"), endpoint=fusion) for number in range(12)]
    answers = await asyncio.gather(*calls)
    assert [answer.run_result.stdout for answer in answers] == [f"{number}\n" for number in range(12)]


async def test_an_infrastructure_error_is_a_sandbox_error_that_the_public_client_raises() -> None:
    backend = ScriptedBackend()
    async with running(ServiceSettings(slots=1), backend) as service, on_socket(service) as url:
        with pytest.raises(Exception, match="Sandbox responded with error"):
            await sandbox_fusion.run_code_async(_ask("die"), endpoint=url, max_attempts=1)
        # ... and tries again where it may:
        with pytest.raises(Exception, match="Sandbox responded with error"):
            await sandbox_fusion.run_code_async(_ask("die"), endpoint=url, max_attempts=2)
        assert backend.programs.count("die") == 3


async def test_overload_is_504_on_this_route_since_its_clients_retry_nothing_else() -> None:
    async with serving(ScriptedBackend(), slots=1, queue_per_slot=1, queue_timeout_s=0.2) as served:
        body = {"code": "sleep 0.5", "language": "python"}
        answers = await asyncio.gather(*[served.post("/run_code", body) for _ in range(6)])
        assert sorted(answer.status_code for answer in answers) == [200, 504, 504, 504, 504, 504]


@pytest.mark.parametrize(
    "body",
    [
        {"code": "x", "language": "cpp"},
        {"code": "x", "language": "klingon"},
        {"code": "x"},
        {"code": "x", "language": "python", "run_timeout": 0},
        {"code": "x", "language": "python", "run_timeout": -1},
        {"code": "x", "language": "python", "files": {"../x": ""}},
    ],
)
async def test_requests_that_cannot_be_served_are_422(body: dict[str, object]) -> None:
    async with serving(ScriptedBackend(), slots=1) as served:
        assert (await served.post("/run_code", body)).status_code == 422


@pytest.mark.parametrize(
    ("code", "status", "run_status", "stdout"),
    [
        ("print(6*7)", "success", "Finished", "42\n"),
        ("print(1)\n1/0", "runtime_error", "Error", "1\n"),
        ("print(1, flush=True)\nwhile True: pass", "timeout", "TimeLimitExceeded", "1\n"),
        ("import warnings\nwarnings.warn('w')\nprint(1)", "success", "Finished", "1\n"),
    ],
)
async def test_simpletir_gets_its_three_words(code: str, status: str, run_status: str, stdout: str) -> None:
    owner = shared_sandbox()
    headers = {"authorization": f"Bearer {owner.token}"}
    async with httpx.AsyncClient(base_url=owner.url, headers=headers, timeout=30) as http:
        body = {"code": code, "language": "python", "compile_timeout": 1.0, "run_timeout": 0.7}
        answer = (await http.post("/faas/sandbox/", json=body)).json()
    assert (answer["status"], answer["run_result"]["status"]) == (status, run_status)
    assert answer["run_result"]["stdout"] == stdout and answer["created_at"] > 0
    assert ("ZeroDivisionError" in answer["run_result"]["stderr"]) == (status == "runtime_error")


async def test_simpletir_is_told_of_our_failures_by_the_http_status() -> None:
    async with serving(ScriptedBackend(), slots=1) as served:
        assert (await served.post("/faas/sandbox/", {"code": "die"})).status_code == 503
