"""A runtime with a kernel of its own, where the engine has one: programs run in it, one a container."""

from __future__ import annotations

import json
import platform

import pytest
from docker_kit import docker, require_runner

from sandbox.backends.base import Tier
from sandbox.backends.docker import DockerBackend
from sandbox.backends.docker_settings import DockerSettings
from sandbox.schemas import ExecuteRequest, Limits, Status


@pytest.fixture
def gvisor(request: pytest.FixtureRequest) -> DockerBackend:
    require_runner(request)
    if "runsc" not in json.loads(docker("info", "-f", "{{json .Runtimes}}")):
        pytest.skip("the engine has no runtime `runsc` (gVisor)")
    return DockerBackend(warm=(), settings=DockerSettings(runtime="runsc"))


async def test_programs_run_on_another_kernel_and_their_container_is_spent(gvisor: DockerBackend) -> None:
    slot = await gvisor.start_slot()
    try:
        code = "import os\nprint(os.uname().release)\nif os.fork() == 0:\n  import time; time.sleep(1000)"
        result = await slot.run(ExecuteRequest(code=code, limits=Limits(wall_s=20)))
        assert result.status is Status.OK and result.stdout.strip() != platform.release(), result
        assert slot.tier is Tier.T4 and slot.dirty  # what the program left cannot be seen from inside
    finally:
        await slot.destroy()


@pytest.mark.parametrize(
    ("code", "status", "limits"),
    [("while True: pass", Status.CPU_TIMEOUT, {"cpu_s": 1}),
     ("import time; time.sleep(1000)", Status.TIMEOUT, {"wall_s": 3}),
     ("1/0", Status.ERROR, {}), ("hoard = []\nwhile True: hoard.append(bytearray(1 << 20))", Status.OOM, {})],
)  # fmt: skip
async def test_limits_hold_there_too(
    gvisor: DockerBackend, code: str, status: Status, limits: dict[str, float]
) -> None:
    slot = await gvisor.start_slot()
    try:
        tight = Limits(**{"wall_s": 40, "cpu_s": 30, "memory_mb": 256} | limits)
        assert (await slot.run(ExecuteRequest(code=code, limits=tight))).status is status
    finally:
        await slot.destroy()


@pytest.mark.timeout(280)
async def test_its_tier_is_what_its_canaries_prove(gvisor: DockerBackend) -> None:
    probe = await gvisor.probe()
    assert probe.tier is not None and probe.tier >= Tier.T2, probe
    assert probe.checks["network_blocked"] and probe.checks["host_files_hidden"] and probe.checks["no_capabilities"]
    assert probe.tier is Tier.T4 or "did not hold" in probe.reason
