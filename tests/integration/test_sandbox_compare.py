"""The table of what each tier guarantees says what was measured, differences and all."""

from __future__ import annotations

import pytest
from docker_kit import require_runner
from typer.testing import CliRunner

from sandbox.backends.base import Backend, Probe, Tier
from sandbox.backends.bwrap import BwrapBackend
from sandbox.backends.canary import REQUIRED, required
from sandbox.backends.compare import CHECKS, TRAITS, Column, compare, table
from sandbox.backends.docker import DockerBackend
from sandbox.backends.docker_settings import DockerSettings
from sandbox.backends.embedded import LandlockBackend
from sandbox.cli import app
from sandbox.inside import confine

WEAKER = {"disk_full_is_enospc", "pools_work", "metadata_can_change", "host_names_hidden", "host_name_hidden"}
"""What Landlock alone cannot give."""


def test_every_canary_of_every_tier_has_words() -> None:
    assert set(required(max(REQUIRED))) - {"runs"} <= CHECKS.keys()
    assert not CHECKS.keys() & {trait.name for trait in TRAITS}


@pytest.mark.parametrize("name", ["bwrap", "docker", "landlock"])
async def test_a_tier_shows_its_strengths_and_its_weaknesses(request: pytest.FixtureRequest, name: str) -> None:
    backend: Backend
    if name == "docker":
        require_runner(request)
        backend = DockerBackend(warm=())
    elif name == "bwrap":
        request.getfixturevalue("requires_bwrap")
        backend = BwrapBackend(warm=())
    elif confine.landlock_abi():
        backend = LandlockBackend(warm=())
    else:
        pytest.skip("the kernel has no Landlock")
    (column,) = await compare([backend])
    missing = {trait.name for trait in TRAITS if not column.held[trait.name]}
    assert missing == {"own_kernel"} | (WEAKER if name == "landlock" else set()), column
    assert column.held["container_memory_limited"] is (True if name == "docker" else None)


async def test_what_cannot_be_used_has_a_reason_and_no_claims() -> None:
    columns = await compare([DockerBackend(settings=DockerSettings(host="unix:///nowhere/docker.sock"))])
    assert not any(columns[0].held.values())
    assert "docker: there is no Docker engine at /nowhere/docker.sock" in table(columns)


def test_the_table_has_a_row_for_each_guarantee_and_a_column_for_each_backend() -> None:
    held = {name: True for name in CHECKS} | {TRAITS[0].name: False}
    text = table([Column("one", Probe("one", Tier.T3), held), Column("two", Probe("two", None, reason="not here"), {})])
    lines = text.splitlines()
    assert lines[0].split() == ["one", "two"] and lines[1].split() == ["tier", "reached", "T3", "none"]
    assert len(lines) == 2 + len(CHECKS) + len(TRAITS) + 1 and lines[-1] == "two: not here"
    row = next(line for line in lines if line.startswith(TRAITS[0].name))
    assert row.split()[-2:] == ["NO", "-"]


def test_the_command_refuses_names_it_does_not_know() -> None:
    said = CliRunner().invoke(app, ["compare", "--backend", "chroot"])
    assert said.exit_code == 2 and "chroot" in said.output
