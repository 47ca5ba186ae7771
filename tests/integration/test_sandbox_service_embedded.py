"""The embedded service on real slots: starts, answers, dies with its owner, comes back when it died alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from sandbox.client import SandboxUnavailableError
from sandbox.embedded import EmbeddedSandbox
from sandbox.schemas import ExecuteRequest, Limits
from sandbox.settings import EmbeddedSettings, ServiceSettings
from sandbox.sync_client import SyncSandboxClient
from tests.integration.service_kit import ROOT, eventually, family_of, shared_sandbox, still_alive


async def test_the_embedded_service_runs_programs_and_says_its_tier() -> None:
    owner = shared_sandbox()
    async with owner.client() as client:
        result = await client.execute("print(6*7)")
        assert (result.status, result.stdout, result.exit_code) == ("ok", "42\n", 0)
        assert result.tier == owner.tier and owner.tier in ("T1", "T2", "T3")
        ready = await client.ready()
        assert ready.state == "ready" and ready.tier == owner.tier
        assert ready.probes[-1].checks and all(ready.probes[-1].checks.values())


async def test_the_token_is_needed_and_stands_nowhere_a_process_list_shows() -> None:
    owner = shared_sandbox()
    async with SyncOrNothing(owner) as refused:
        assert refused == 401
    assert owner.pid is not None
    for process in family_of(owner.pid):
        if not process.is_running():
            continue
        command, environment = " ".join(process.cmdline()), process.environ()
        assert owner.token not in command
        assert all(owner.token not in value for value in environment.values())


class SyncOrNothing:
    """Status of a request without a token."""

    def __init__(self, owner: EmbeddedSandbox) -> None:
        self.owner = owner

    async def __aenter__(self) -> int:
        import httpx

        async with httpx.AsyncClient() as http:
            return (await http.post(self.owner.url + "/v1/execute", json={"code": ""})).status_code

    async def __aexit__(self, *_: object) -> None:
        return None


async def test_secrets_of_the_owner_reach_neither_the_service_nor_the_programs() -> None:
    owner = shared_sandbox()
    assert os.environ["CANARY_API_KEY"] == "canary-7f3a"
    async with owner.client() as client:
        result = await client.execute("import os\nprint(dict(os.environ))")
    assert result.status == "ok" and "canary-7f3a" not in result.stdout
    assert owner.pid is not None and "CANARY_API_KEY" not in psutil.Process(owner.pid).environ()


def test_the_synchronous_client_serves_many_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with shared_sandbox().sync_client() as client, ThreadPoolExecutor(8) as threads:
        assert isinstance(client, SyncSandboxClient)
        outputs = list(threads.map(lambda number: client.execute(f"print({number}**2)").stdout, range(24)))
    assert outputs == [f"{number**2}\n" for number in range(24)]


async def test_a_service_that_was_killed_comes_back_at_its_address_until_it_dies_too_often() -> None:
    owner = EmbeddedSandbox(EmbeddedSettings(service=ServiceSettings(slots=2), restarts=1))
    async with owner as client:
        url, first = owner.url, owner.pid
        assert first is not None
        session = await client.session()
        assert (await session.execute("x = 1")).state == "kept"
        old = family_of(first)
        code = "import time; time.sleep(0.2); print(1)"
        calls = [asyncio.ensure_future(client.execute(code, deadline=100)) for _ in range(50)]
        await asyncio.sleep(0.5)
        os.kill(first, signal.SIGKILL)
        assert await asyncio.to_thread(still_alive, old, 5.0) == []
        results = await asyncio.gather(*calls)
        assert {result.stdout for result in results} == {"1\n"}
        assert owner.url == url and owner.pid not in (None, first) and owner.restarts == 1
        lost = await session.execute("print(x)", deadline=60)  # lost, not unknown: its id verifies
        assert (lost.status, lost.state) == ("session_lost", "lost")
        assert owner.pid is not None
        fresh = family_of(owner.pid)
        os.kill(owner.pid, signal.SIGKILL)
        with pytest.raises(SandboxUnavailableError, match="died 2 times"):
            await client.execute("print(1)", deadline=20)
    assert await asyncio.to_thread(still_alive, fresh, 5.0) == []


async def test_a_tier_that_cannot_be_had_is_refused_with_the_reason() -> None:
    owner = EmbeddedSandbox(EmbeddedSettings(service=ServiceSettings(slots=1, backend="unsafe")))
    with pytest.raises(SandboxUnavailableError, match="`unsafe` is tier T0 and the least allowed is T1"):
        await owner.start_async()
    assert owner.pid is None


OWNER = """
import sys, time, signal
from sandbox.embedded import EmbeddedSandbox
from sandbox.settings import EmbeddedSettings, ServiceSettings
{prepare}
owner = EmbeddedSandbox(EmbeddedSettings(service=ServiceSettings(slots=1)))
owner.start()
client = owner.sync_client()
assert client.execute("print(42)").stdout == "42\\n"
{wait}
"""
SAY = "print(owner.pid, flush=True)"


def _start_owner(wait: str, prepare: str = "") -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    script = textwrap.dedent(OWNER).format(wait=wait, prepare=prepare)
    owner = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert owner.stdout is not None
    line = owner.stdout.readline()
    assert line.strip().isdigit(), line
    return owner, family_of(int(line))


def test_nothing_is_left_when_the_owner_is_killed_while_a_forked_child_holds_its_pipes() -> None:
    forked = f"{SAY}\nimport os\nif os.fork() == 0:\n    time.sleep(8)\n    os._exit(0)\ntime.sleep(600)"
    owner, family = _start_owner(forked)
    owner.kill()
    owner.wait(10)
    assert len(family) >= 3 and still_alive(family, 5.0) == []


def test_ctrl_c_reaches_the_owner_alone_and_nothing_is_left_when_he_ends() -> None:
    wait = (
        f"try:\n    {SAY}; time.sleep(600)\nexcept KeyboardInterrupt:\n"
        "    print(client.execute('print(43)').stdout.strip(), flush=True)"
    )
    owner, family = _start_owner(wait)
    os.killpg(owner.pid, signal.SIGINT)  # what a terminal does
    assert owner.stdout is not None
    assert owner.stdout.readline().strip() == "43"
    assert owner.wait(20) == 0
    assert still_alive(family, 5.0) == []


def test_a_port_in_use_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "sandbox", "serve", "--port", port]
        refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode != 0 and f"cannot listen on 127.0.0.1:{port}" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "set `tokens`"),
        (["--min-tier", "T9"], "no tier"),
        (["--slots", "0"], "slots"),
    ],
)
def test_bad_options_are_refused_with_the_remedy(arguments: list[str], words: str) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "sandbox", "serve", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=False, env={name: value for name, value in os.environ.items() if name != "SANDBOX_TOKENS"},
    )  # fmt: skip
    assert refused.returncode == 2 and words in refused.stderr


async def test_a_caller_who_hangs_up_frees_the_real_slot() -> None:
    async with shared_sandbox().client() as client:
        spin = ExecuteRequest(code="while True: pass", limits=Limits(wall_s=30, cpu_s=30))
        calls = [asyncio.ensure_future(client.execute(spin)) for _ in range(client.max_in_flight)]
        await asyncio.sleep(0.5)
        for call in calls:
            call.cancel()
        began = time.monotonic()
        assert (await client.execute("print(42)", deadline=20)).stdout == "42\n"
        assert time.monotonic() - began < 10
        await eventually(lambda: all(call.done() for call in calls))
