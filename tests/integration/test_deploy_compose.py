"""The compose file, brought up with images built from Debian packages and wheels alone, and trained against over HTTP.

The images are built first (`deploy/offline.sh base service`; seconds where they are there already). The trainer is this
environment's, against the container's address; with AGENT_RL_TEST_TRAINER_IMAGE=1 its image is built too and trains as
the compose file says, on the network that has no way out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox.client import SandboxRejectedError
from sandbox.schemas import Status
from sandbox.settings import new_token
from sandbox.sync_client import SyncSandboxClient
from tests.conftest import _absent

TOP = Path(__file__).resolve().parents[2]
DEPLOY = TOP / "deploy"
SMALL = ["steps=2", "problems_per_step=8", "threads=1", "evals.eval.data.count=8", "evals.eval_unseen.data.count=8"]
WITH_TRAINER_IMAGE = os.environ.get("AGENT_RL_TEST_TRAINER_IMAGE") == "1"

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Deployment:
    """The compose project of this run of the tests."""

    command: list[str]
    environment: dict[str, str]
    token: str
    container: str

    def compose(self, *arguments: str, timeout: float = 300) -> str:
        return run([*self.command, *arguments], timeout, self.environment)

    def inspect(self) -> dict[str, Any]:
        return json.loads(run(["docker", "inspect", self.container]))[0]

    @property
    def url(self) -> str:
        (network,) = self.inspect()["NetworkSettings"]["Networks"].values()
        return f"http://{network['IPAddress']}:8080"


def run(command: list[str], timeout: float = 60, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=environment, cwd=TOP, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def compose_program() -> list[str]:
    probe = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30, check=False)
    if probe.returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    _absent("docker", "neither `docker compose` nor `docker-compose` is installed")
    raise AssertionError("unreachable")


@pytest.fixture(scope="module")
def deployment(requires_docker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    program = compose_program()
    images = ["base", "service", *(["trainer"] if WITH_TRAINER_IMAGE else [])]
    run([str(DEPLOY / "offline.sh"), *images], 1500, os.environ | {"PYTHON": sys.executable})
    folder = tmp_path_factory.mktemp("compose")
    token = new_token()
    (folder / "token").write_text(token + "\n")
    (folder / "small.yaml").write_text(yaml.safe_dump({"services": {"trainer": {"command": trainer_command()}}}))
    project = f"agent-rl-test-{uuid.uuid4().hex[:8]}"
    files = [DEPLOY / "compose.yaml", DEPLOY / "compose.registry-free.yaml", folder / "small.yaml"]
    command = [*program, "-p", project, *(word for file in files for word in ("-f", str(file)))]
    environment = os.environ | {"SANDBOX_TOKEN_FILE": str(folder / "token")}
    try:
        run([*command, "up", "-d", "sandbox"], 300, environment)
        container = run([*command, "ps", "-q", "sandbox"], 60, environment).strip()
        found = Deployment(command, environment, token, container)
        deadline = time.monotonic() + 300
        while (facts := found.inspect())["State"]["Health"]["Status"] != "healthy":
            if facts["RestartCount"] > 2 or time.monotonic() > deadline:
                log = subprocess.run(["docker", "logs", "--tail", "40", container], capture_output=True, timeout=60)
                pytest.fail(f"the sandbox is {facts['State']}: {log.stdout.decode()}{log.stderr.decode()}")
            time.sleep(1)
        yield found
    finally:
        run([*command, "down", "-v", "-t", "5"], 120, environment)


def trainer_command() -> list[str]:
    (compose,) = yaml.safe_load_all((DEPLOY / "compose.yaml").read_text())
    return [*compose["services"]["trainer"]["command"], *SMALL]


@pytest.fixture(scope="module")
def client(deployment: Deployment) -> Iterator[SyncSandboxClient]:
    with SyncSandboxClient(deployment.url, deployment.token) as client:
        yield client


def test_the_container_is_confined_and_bounded(deployment: Deployment) -> None:
    facts = deployment.inspect()
    host = facts["HostConfig"]
    assert facts["Config"]["User"] == "10001:10001"
    assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and not host["Privileged"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["Memory"] == host["MemorySwap"] == 4 << 30
    assert host["NanoCpus"] == 2_000_000_000 and host["PidsLimit"] == 1024
    assert not host["PortBindings"]
    assert deployment.token not in json.dumps(facts)


def test_programs_run_isolated_for_whoever_has_the_token(deployment: Deployment, client: SyncSandboxClient) -> None:
    result = client.execute("print(6*7)")
    assert (result.status, result.stdout) == (Status.OK, "42\n")
    assert result.tier in ("T1", "T2", "T3")
    with SyncSandboxClient(deployment.url, "wrong" * 8) as stranger, pytest.raises(SandboxRejectedError, match="401"):
        stranger.execute("print(6*7)")


@pytest.mark.parametrize(
    "attack",
    [
        "open('/run/secrets/sandbox_token').read()",
        "open('/etc/agent-rl/service.yaml').read()",
        "open('/proc/1/environ').read()",
        "import socket; socket.create_connection(('127.0.0.1', 8080), 2)",
        "open('/opt/agent-rl/app/sandbox/x', 'w')",
    ],
)
def test_programs_reach_neither_the_token_nor_the_service(client: SyncSandboxClient, attack: str) -> None:
    result = client.execute(attack)
    assert result.status is Status.ERROR and result.error is not None
    assert result.error.type in ("PermissionError", "FileNotFoundError", "OSError", "ConnectionRefusedError")


def test_the_container_itself_has_no_way_out_and_nothing_to_write_to(deployment: Deployment) -> None:
    program = (
        "import socket, os\n"
        "for address in ('192.0.2.1', '169.254.169.254'):\n"
        "    try: socket.create_connection((address, 80), 3)\n"
        "    except OSError as error: print(type(error).__name__)\n"
        "try: open('/opt/agent-rl/x', 'w')\n"
        "except OSError as error: print(error.errno)\n"
    )
    out = run(["docker", "exec", deployment.container, "python", "-c", program]).split()
    assert len(out) == 3 and out[2] == "30"


def test_the_quickstart_trains_against_the_service(deployment: Deployment, tmp_path: Path) -> None:
    if WITH_TRAINER_IMAGE:
        deployment.compose("up", "--no-build", "--exit-code-from", "trainer", "trainer", timeout=900)
        trainer = deployment.compose("ps", "-q", "-a", "trainer").strip()
        run(["docker", "cp", f"{trainer}:/runs/quickstart", str(tmp_path)])
    else:
        command = [str(Path(sys.executable).with_name("agent-rl")), *trainer_command()]
        command += [f"runs_dir={tmp_path}", f"sandbox.url={deployment.url}"]
        run(command, 900, os.environ | {"AGENT_RL_SANDBOX_TOKEN": deployment.token})
    lines = [json.loads(line) for line in (tmp_path / "quickstart" / "metrics.jsonl").read_text().splitlines()]
    steps = {line["step"] for line in lines if "step" in line}
    assert {1, 2} <= steps
    assert (tmp_path / "quickstart" / "report.html").is_file()
