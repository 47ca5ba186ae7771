"""What a slot's container is allowed, whose it is, and what its streams say; no engine needed."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.backends.docker import clamped, within
from sandbox.backends.docker_engine import Engine, EngineError
from sandbox.backends.docker_reaper import EXPIRES, MARK, OWNER, Owner, abandoned, slot_labels
from sandbox.backends.docker_settings import DockerSettings
from sandbox.backends.docker_spec import container_spec, draw_uid
from sandbox.backends.docker_stream import ContainerProcess
from sandbox.schemas import ExecuteRequest, Limits

SETTINGS = DockerSettings()


def spec(**changes: object) -> dict[str, object]:
    made = SETTINGS.model_copy(update=changes)
    return container_spec(made, {MARK: "1"}, "{}", 1234, 1.0)


# --- what it may do ---


def test_nothing_is_mounted_shared_or_granted() -> None:
    host = spec()["HostConfig"]
    assert not {"Binds", "Mounts", "VolumesFrom", "Devices", "CapAdd", "PortBindings", "PidMode"} & set(host)
    assert host["NetworkMode"] == "none" and host["IpcMode"] == "none" and not host["Privileged"]
    assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]  # beside the engine's own seccomp profile
    assert host["LogConfig"]["Type"] == "none" and host["AutoRemove"]


def test_memory_has_no_swap_and_everything_writable_has_a_size() -> None:
    host = spec(memory_mb=100, warm_mb=50, disk_mb=7, inodes=99)["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 150 << 20
    for place, options in host["Tmpfs"].items():
        assert {"nosuid", "nodev", "uid=1234"} <= set(options.split(",")), place
        assert any(o.startswith("size=") for o in options.split(",")), place
        assert any(o.startswith("nr_inodes=") for o in options.split(",")), place
    assert f"size={7 << 20},nr_inodes=99" in host["Tmpfs"]["/dev/shm"] and "noexec" in host["Tmpfs"]["/dev/shm"]


def test_it_is_never_root_and_no_two_slots_are_the_same_user() -> None:
    assert spec()["User"] == "1234:1234"
    drawn = {draw_uid(SETTINGS) for _ in range(200)}
    assert len(drawn) == 200 and min(drawn) >= SETTINGS.first_uid > 65536
    assert max(drawn) < 2**31


def test_runtime_and_profile_are_passed_on(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text('{"defaultAction": "SCMP_ACT_ERRNO"}')
    host = spec(runtime="runsc", seccomp=profile)["HostConfig"]
    assert host["Runtime"] == "runsc" and f"seccomp={profile.read_text()}" in host["SecurityOpt"]
    assert "Runtime" not in spec()["HostConfig"]


def test_the_end_of_its_input_is_the_end_of_the_only_connection() -> None:
    made = spec()
    assert made["OpenStdin"] and made["StdinOnce"] and not made["Tty"]


def test_limits_beyond_the_container_are_clamped_and_said_so() -> None:
    limits, notes = clamped(Limits(memory_mb=8192, inodes=9999), SETTINGS)
    assert (limits.memory_mb, limits.inodes) == (SETTINGS.memory_mb, SETTINGS.inodes)
    assert [note.split(":")[0] for note in notes] == ["memory_mb", "inodes"]
    request = ExecuteRequest(code="1")
    assert within(request, SETTINGS) == (request, [])


# --- whose it is ---


def test_a_living_owner_keeps_its_containers() -> None:
    labels = slot_labels(SETTINGS)
    assert labels[MARK] == "1" and abandoned(labels, time.time()) == ""


def test_owners_are_told_apart_by_boot_namespace_and_start() -> None:
    us = Owner.of(os.getpid())
    assert us is not None and Owner.parse(str(us)) == us
    later = str(int(time.time()) + 100)
    cases = {
        "gone": Owner(us.boot, us.namespace, us.pid, "1"),  # the number is used again
        "boot": Owner("another-boot", us.namespace, us.pid, us.started),
        "": Owner(us.boot, "pid:[1]", us.pid, "1"),  # cannot be looked up from here: left to its connection
    }
    for words, owner in cases.items():
        reason = abandoned({OWNER: str(owner), EXPIRES: later}, time.time())
        assert (words in reason) if words else reason == ""


@pytest.mark.parametrize("labels", [{}, {EXPIRES: "soon"}, {EXPIRES: "5", OWNER: "a b 1 c"}, {OWNER: "1"}])
def test_what_does_not_say_whose_it_is_or_has_expired_is_abandoned(labels: dict[str, str]) -> None:
    assert abandoned(labels, time.time())
    assert abandoned({EXPIRES: str(int(time.time()) + 9), OWNER: "x"}, time.time()) == "it does not say whose it is"


# --- what is said where there is no engine ---


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("unix:///nowhere/docker.sock", "no Docker engine at /nowhere/docker.sock: install one"),
        ("tcp://10.0.0.1:2375", "not on a Unix socket"),
    ],
)
async def test_an_engine_that_is_not_there_is_said_in_plain_words(host: str, words: str) -> None:
    pytest.importorskip("docker")
    with pytest.raises(EngineError, match=words):
        await Engine(DockerSettings(host=host)).call(lambda client: client.ping())


async def test_an_engine_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    pytest.importorskip("docker")
    path = tmp_path / "docker.sock"
    server = await asyncio.start_unix_server(lambda reader, writer: asyncio.sleep(60), path)
    engine = Engine(DockerSettings(host=f"unix://{path}", call_s=0.3))
    with pytest.raises(EngineError, match="no Docker engine answers"):
        await asyncio.wait_for(engine.call(lambda client: client.ping()), 20)
    server.close()


# --- what its streams say ---


class Pipe(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.paused = self.ended = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.ended


def frame(which: int, data: bytes) -> bytes:
    return struct.pack(">BxxxI", which, len(data)) + data


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=12),
    cuts=st.lists(st.integers(1, 60), max_size=12),
)
async def test_frames_cut_anywhere_reach_their_own_stream_whole(
    pieces: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    process = ContainerProcess(lambda: None)
    process.connection_made(Pipe())
    raw = b"".join(frame(which, data) for which, data in pieces)
    for cut in cuts:
        process.data_received(raw[:cut])
        raw = raw[cut:]
    process.data_received(raw)
    process.connection_lost(None)
    for which, stream in ((1, process.stdout), (2, process.stderr)):
        assert await stream.read() == b"".join(data for w, data in pieces if w == which)


async def test_a_reader_that_does_not_keep_up_stops_the_connection() -> None:
    process, pipe = ContainerProcess(lambda: None), Pipe()
    process.connection_made(pipe)
    process.data_received(frame(1, bytes(1 << 20)))
    assert pipe.paused
    await process.stdout.readexactly(1 << 20)
    assert not pipe.paused


async def test_the_end_is_seen_by_everyone_who_waits() -> None:
    process, seen = ContainerProcess(lambda: None), []
    process.connection_made(Pipe())
    process.on_end = lambda: seen.append(True)
    process.pause_writing()
    drain, wait = asyncio.ensure_future(process.drain()), asyncio.ensure_future(process.wait())
    await asyncio.sleep(0)
    process.connection_lost(None)
    await wait
    with pytest.raises(ConnectionError):
        await drain
    with pytest.raises(asyncio.IncompleteReadError):
        await process.stdout.readexactly(8)
    assert seen == [True]
