"""Containers that die, are removed by hand, belong to services that were killed, or come from an old image."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from docker_kit import IMAGE, docker, require_runner, slot_containers

from sandbox.backends.base import Probe, SlotError, Tier
from sandbox.backends.canary import required
from sandbox.backends.config import slot_config
from sandbox.backends.docker import DockerBackend, DockerSlot
from sandbox.backends.docker_reaper import EXPIRES, MARK, OWNER, Owner
from sandbox.backends.docker_settings import DockerSettings
from sandbox.client import SandboxClient
from sandbox.schemas import ExecuteRequest, ExecuteResult, Limits, Status
from sandbox.service import Caller, SandboxService, running
from sandbox.settings import ServiceSettings

SLEEP = "import time; print('asleep', flush=True); time.sleep(1000)"
LONG = Limits(wall_s=55, cpu_s=5)
ME = Caller()


@pytest.fixture(autouse=True)
def runner(request: pytest.FixtureRequest) -> None:
    require_runner(request)


@pytest.fixture
async def slot() -> AsyncIterator[DockerSlot]:
    made = await DockerBackend(warm=()).start_slot()
    assert isinstance(made, DockerSlot)
    yield made
    await made.destroy()


def name_of(slot: DockerSlot) -> str:
    """The container whose first process is the slot's."""
    for found in slot_containers():
        with contextlib.suppress(subprocess.CalledProcessError):
            if docker("inspect", "-f", "{{.State.Pid}}", found) == str(slot.pid):
                return found
    raise AssertionError("the slot has no container")


async def until(condition: object, seconds: float, what: str) -> None:
    """Wait for `condition()`."""
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):  # type: ignore[arg-type]
        assert time.monotonic() < deadline, f"{what} within {seconds} s"
        await asyncio.sleep(0.1)


# --- the boundary ---


async def test_docker_holds_every_check_of_its_tier() -> None:
    probe = await DockerBackend().probe()
    assert probe.tier is Tier.T3 and probe.checks["container_memory_limited"], probe
    assert all(probe.checks[name] for name in required(Tier.T3)), probe


async def test_the_kernel_agrees_about_privileges(slot: DockerSlot) -> None:
    status = Path(f"/proc/{slot.pid}/status").read_text()
    fields = {k: v.strip() for k, _, v in (line.partition(":") for line in status.splitlines())}
    assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2"
    assert {int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert int(fields["Uid"].split()[0]) >= DockerSettings().first_uid
    interfaces = [line.split(":")[0].strip() for line in Path(f"/proc/{slot.pid}/net/dev").read_text().splitlines()[2:]]
    assert interfaces == ["lo"]
    mounts = [line.split() for line in Path(f"/proc/{slot.pid}/mounts").read_text().splitlines()]
    writable = {m[1] for m in mounts if "rw" in m[3].split(",")}
    hidden = {"/proc", "/dev", "/dev/pts", "/dev/mqueue"}
    assert {w for w in writable - hidden if not w.startswith(("/proc/", "/sys"))} == {
        "/sandbox", "/tmp", "/dev/shm", "/run/sandbox"
    }  # fmt: skip


async def test_two_slots_share_no_user_and_no_process_count() -> None:
    backend = DockerBackend(warm=())
    first, second = await asyncio.gather(backend.start_slot(), backend.start_slot())
    try:
        crowd = "import subprocess, time\nfor _ in range(20): subprocess.Popen(['sleep', '2'])\nprint('all')"
        tight = Limits(wall_s=10, processes=24)
        results = await asyncio.gather(*[s.run(ExecuteRequest(code=crowd, limits=tight)) for s in (first, second)])
        assert [r.stdout for r in results] == ["all\n"] * 2, results
        more = await first.run(ExecuteRequest(code=crowd, limits=Limits(wall_s=10, processes=12)))
        assert more.status is Status.ERROR and "BlockingIOError" in more.stderr, more
    finally:
        await asyncio.gather(first.destroy(), second.destroy())


async def test_a_disk_limit_below_the_containers_is_held_by_looking(slot: DockerSlot) -> None:
    code = "import time\nwith open('f', 'wb') as f: f.write(bytes(20 << 20))\ntime.sleep(5)"
    result = await slot.run(ExecuteRequest(code=code, limits=Limits(disk_mb=8)))
    assert result.status is Status.KILLED and "more than it may have" in result.notes[-1], result


async def test_limits_beyond_the_container_are_said(slot: DockerSlot) -> None:
    result = await slot.run(ExecuteRequest(code="print(6*7)", limits=Limits(disk_mb=1000)))
    assert result.stdout == "42\n" and result.notes == ["disk_mb: 64 is the most that a container of this service has"]


async def test_what_a_program_locks_or_buries_costs_the_slot_not_the_answer(slot: DockerSlot) -> None:
    locked = "import os\nos.mkdir('d'); open('d/f', 'w'); os.chmod('d', 0); os.chmod('.', 0); os.chmod('/tmp', 0)"
    assert (await slot.run(ExecuteRequest(code=locked))).status is Status.OK
    assert not slot.dirty
    deep = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\nprint('deep')"
    result = await slot.run(ExecuteRequest(code=deep))
    assert (result.status, result.stdout) == (Status.OK, "deep\n") and slot.dirty


async def test_without_landlock_names_of_users_cannot_be_changed_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    without = functools.partial(slot_config, landlock=False)
    monkeypatch.setattr("sandbox.backends.docker.slot_config", without)
    slot = await DockerBackend(warm=()).start_slot()
    try:
        assert (await slot.run(ExecuteRequest(code="print(6*7)"))).stdout == "42\n" and not slot.dirty
        change = "import os\nos.chmod('/run/sandbox/passwd', 0o600)\nopen('/run/sandbox/passwd', 'a').write('x')"
        assert (await slot.run(ExecuteRequest(code=change))).status is Status.OK
        assert slot.dirty
    finally:
        await slot.destroy()


# --- images and engines that do not fit ---


async def test_an_old_image_is_refused_with_the_command_that_renews_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.backends.docker.source_digest", lambda: "newer")
    with pytest.raises(SlotError, match=r"another version of the supervisor.*deploy/runner/build.sh"):
        await DockerBackend(warm=()).start_slot()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": "agent-rl-nowhere:1"}, "'agent-rl-nowhere:1' is not there: build it with deploy/runner/build.sh"),
        ({"runtime": "nosuchruntime"}, "nosuchruntime"),
    ],
)
async def test_what_the_engine_lacks_is_said(changes: dict[str, str], words: str) -> None:
    probe = await DockerBackend(settings=DockerSettings(**changes)).probe()
    assert probe.tier is None and words in probe.reason, probe


# --- owners ---


def strange_container(labels: dict[str, str]) -> str:
    marks = [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
    return docker("run", "-d", "--network", "none", *marks, "--entrypoint", "sleep", IMAGE, "1000")


async def test_what_dead_owners_left_is_removed_and_what_living_ones_have_is_not() -> None:
    soon, us = str(int(time.time()) + 1000), Owner.of(os.getpid())
    assert us is not None
    gone = str(Owner(us.boot, us.namespace, us.pid, "1"))
    dead = strange_container({MARK: "1", OWNER: gone, EXPIRES: soon})
    old = strange_container({MARK: "1", OWNER: str(us), EXPIRES: "1000"})
    living = strange_container({MARK: "1", OWNER: str(us), EXPIRES: soon})
    other = strange_container({})
    try:
        slot = await DockerBackend(warm=()).start_slot()
        await slot.destroy()
        left = docker("ps", "-aq", "--no-trunc").split()
        assert living in left and other in left
        assert dead not in left and old not in left
    finally:
        docker("rm", "-f", living, other)


async def test_slots_that_came_and_went_leave_no_connection() -> None:
    backend = DockerBackend(warm=())
    counts = []
    for _ in range(4):
        slot = await backend.start_slot(bare=True)
        await slot.destroy()
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[0] == counts[-1], counts


async def test_a_container_ends_by_itself_when_its_time_is_up() -> None:
    slot = await DockerBackend(warm=(), settings=DockerSettings(life_s=60)).start_slot()
    assert isinstance(slot, DockerSlot)
    found = name_of(slot)
    assert 0 < int(label_of(found, EXPIRES)) - time.time() <= 60
    os.kill(slot.pid, signal.SIGALRM)  # what its own alarm sends when the time is up
    await until(lambda: found not in slot_containers(), 10, "the container is gone")
    with pytest.raises(SlotError):
        await slot.run(ExecuteRequest(code="print(6*7)"))
    await slot.destroy()


# --- failures under a service ---


class Proven(DockerBackend):
    """Its canaries have a test of their own above."""

    async def probe(self) -> Probe:
        return Probe(self.name, self.tier)


@contextlib.asynccontextmanager
async def small_service(slots: int = 2) -> AsyncIterator[SandboxService]:
    settings = ServiceSettings(slots=slots, backend="docker", max_sessions=0)
    async with running(settings, Proven(warm=(), settings=settings.docker)) as service:
        yield service


async def run_all(service: SandboxService, count: int, code: str) -> list[asyncio.Task[ExecuteResult]]:
    """Start `count` runs of `code`, and return when all are under way."""
    tasks = [asyncio.create_task(service.execute(ExecuteRequest(code=code, limits=LONG), ME)) for _ in range(count)]
    while service.pool.alive < count or len(service.pool.busy) < count:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)
    return tasks


async def healed(service: SandboxService, seconds: float = 30) -> None:
    """The pool is full again and answers."""
    await until(lambda: service.pool.alive == service.pool.maximum, seconds, "the pool is full")
    result = await service.execute(ExecuteRequest(code="print(6*7)"), ME)
    assert (result.status, result.stdout) == (Status.OK, "42\n"), result


async def test_containers_removed_by_hand_end_their_runs_and_are_replaced() -> None:
    async with small_service() as service:
        tasks = await run_all(service, 2, SLEEP)
        docker("rm", "-f", *[name_of(pooled.slot) for pooled in service.pool.busy])
        results = await asyncio.wait_for(asyncio.gather(*tasks), 20)
        assert {r.status for r in results} == {Status.SANDBOX_ERROR} and all(r.retryable for r in results)
        await healed(service)
        starts = service.metrics.start_failures._value.get()
        idle = {pooled.slot.pid: name_of(pooled.slot) for pooled in service.pool.free}
        docker("rm", "-f", *idle.values())
        await until(lambda: not idle.keys() & {p.slot.pid for p in service.pool.free}, 20, "idle ones are replaced")
        await healed(service)
        assert service.metrics.start_failures._value.get() == starts == 0
    assert not [c for c in slot_containers() if owner_is_us(c)]


def label_of(container: str, label: str) -> str:
    return docker("inspect", "-f", f'{{{{index .Config.Labels "{label}"}}}}', container)


def owner_is_us(container: str) -> bool:
    try:
        return label_of(container, OWNER) == str(Owner.of(os.getpid()))
    except subprocess.CalledProcessError:
        return False  # removed in between


async def test_a_killed_interpreter_ends_the_run_and_the_slot_is_replaced() -> None:
    async with small_service(1) as service:
        tasks = await run_all(service, 1, SLEEP)
        (pooled,) = service.pool.busy
        (zygote,) = psutil.Process(pooled.slot.pid).children()
        zygote.kill()
        result = await asyncio.wait_for(tasks[0], 20)
        assert result.status is Status.SANDBOX_ERROR and result.retryable, result
        await healed(service)
        (pooled,) = service.pool.free
        psutil.Process(pooled.slot.pid).children()[0].kill()  # between runs: noticed by the next
        result = await service.execute(ExecuteRequest(code="print(6*7)"), ME)
        assert result.status is Status.SANDBOX_ERROR and result.retryable, result
        await healed(service)


async def test_an_engine_that_is_gone_is_asked_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    async with small_service(1) as service:
        backend = service.backend
        assert isinstance(backend, DockerBackend)
        start = backend.start_slot

        async def refused(**_: object) -> None:
            asked.append(time.monotonic())
            raise SlotError("the Docker engine does not answer")

        monkeypatch.setattr(backend, "start_slot", refused)
        docker("rm", "-f", name_of(service.pool.free[0].slot))
        await until(lambda: len(asked) >= 5, 30, "five tries")
        pauses = [b - a for a, b in itertools.pairwise(asked)]
        assert pauses[-1] > 2 * pauses[0]
        monkeypatch.setattr(backend, "start_slot", start)
        await healed(service)


# --- fifty runs, and nobody left who owns them ---


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def fifty() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait(10)


def serve_fifty(started: list[subprocess.Popen[str]], slots: int) -> str:
    port = free_port()
    command = [sys.executable, str(Path(__file__).with_name("docker_fifty.py")), str(port), str(slots)]
    started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    assert started[-1].stdout is not None
    assert "ready" in started[-1].stdout.readline()
    return f"http://127.0.0.1:{port}"


@pytest.mark.timeout(240)
async def test_fifty_runs_of_a_killed_service_are_gone_in_five_seconds(fifty: list[subprocess.Popen[str]]) -> None:
    slots = 50
    url = await asyncio.to_thread(serve_fifty, fifty, slots)
    async with SandboxClient(url, max_in_flight=slots, attempts=1) as client:
        while (await client.ready()).slots_free < slots:
            await asyncio.sleep(0.5)
        asleep = ExecuteRequest(code=SLEEP, limits=LONG)
        runs = [asyncio.create_task(client.execute(asleep)) for _ in range(slots)]
        while (await client.ready()).slots_busy < slots:
            await asyncio.sleep(0.2)
            assert not any(run.done() for run in runs)
        service = Owner.of(fifty[-1].pid)
        assert service is not None
        ours = set(slot_containers(service))
        assert len(ours) == slots
        pids = [int(docker("inspect", "-f", "{{.State.Pid}}", found)) for found in sorted(ours)]
        inside = [p for pid in pids for p in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]
        assert len(inside) == 3 * slots  # supervisor, interpreter, program
        fifty[-1].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        await until(lambda: not any(p.is_running() for p in inside), 5, "every process is gone")
        gone = time.monotonic()
        await until(lambda: not slot_containers(service), killed + 5 - gone, "every container is gone")
        print(f"processes gone after {gone - killed:.2f} s, containers after {time.monotonic() - killed:.2f} s")
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
    again = await asyncio.to_thread(serve_fifty, fifty, 2)
    async with SandboxClient(again) as client:
        assert (await client.execute("print(6*7)")).stdout == "42\n"


@pytest.mark.skipif(
    os.environ.get("AGENT_RL_TEST_RESTART_DOCKER") != "1",
    reason="restarts the machine's Docker engine: AGENT_RL_TEST_RESTART_DOCKER=1 allows it",
)
@pytest.mark.timeout(240)
async def test_a_restarted_engine_ends_its_runs_and_the_pool_heals() -> None:
    async with small_service() as service:
        tasks = await run_all(service, 2, SLEEP)
        engine = psutil.Process(int(Path("/var/run/docker.pid").read_text()))
        command = engine.cmdline()
        engine.terminate()
        results = await asyncio.wait_for(asyncio.gather(*tasks), 40)
        assert {r.status for r in results} == {Status.SANDBOX_ERROR} and all(r.retryable for r in results)
        await asyncio.to_thread(engine.wait, 40)
        await asyncio.sleep(2)  # meanwhile nothing can start
        assert service.pool.alive == 0
        with open("/tmp/dockerd.log", "a") as log:
            subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        await healed(service, 90)
        assert service.metrics.start_failures._value.get() < 20
