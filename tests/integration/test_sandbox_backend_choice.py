"""A tier is what canaries prove; below the floor there is no service, and the message says why."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from sandbox.backends.base import Backend, Probe, Slot, SlotError, Tier
from sandbox.backends.bwrap import BwrapBackend
from sandbox.backends.canary import REQUIRED, required, try_out
from sandbox.backends.docker_settings import DockerSettings
from sandbox.backends.embedded import LandlockBackend, UnsafeBackend
from sandbox.backends.select import AUTO, SandboxUnavailable, choose_backend
from sandbox.inside import confine


async def test_bubblewrap_holds_every_check(requires_bwrap: None) -> None:
    probe = await BwrapBackend().probe()
    assert probe.tier in (Tier.T2, Tier.T3), probe
    assert all(probe.checks[name] for name in required(Tier.T2)), probe


async def test_landlock_holds_every_check_of_its_tier() -> None:
    if not confine.landlock_abi():
        pytest.skip("the kernel has no Landlock")
    probe = await LandlockBackend().probe()
    assert probe.tier is Tier.T1 and all(probe.checks[name] for name in required(Tier.T1)), probe


async def test_limits_alone_prove_no_more_than_t0() -> None:
    probe = await UnsafeBackend().probe()
    assert probe.tier is Tier.T0
    assert not probe.checks["network_blocked"] and not probe.checks["host_files_hidden"]
    as_t1 = await try_out(UnsafeBackend(), Tier.T1, "remedy")
    assert as_t1.tier is Tier.T0  # whatever is claimed, the canaries decide


async def test_unsafe_needs_a_floor_of_t0_and_its_name() -> None:
    with pytest.raises(SandboxUnavailable, match="does not isolate"):
        await choose_backend("unsafe", Tier.T1)
    backend, probes = await choose_backend("unsafe", Tier.T0)
    assert backend.name == "unsafe" and len(probes) == 1


async def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="chroot"):
        await choose_backend("chroot")


async def test_without_bubblewrap_and_docker_auto_takes_landlock_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    if not confine.landlock_abi():
        pytest.skip("the kernel has no Landlock")
    monkeypatch.setattr("sandbox.backends.bwrap.shutil.which", lambda _: None)
    nowhere = DockerSettings(host="unix:///nowhere/docker.sock")
    backend, probes = await choose_backend(docker=nowhere)
    assert backend.name == "landlock" and [probe.backend for probe in probes] == ["bwrap", "docker", "landlock"]
    assert probes[0].tier is None and "bubblewrap" in probes[0].reason
    assert probes[1].tier is None and "/nowhere/docker.sock" in probes[1].reason
    with pytest.raises(SandboxUnavailable, match="T2") as refused:
        await choose_backend("auto", Tier.T2, docker=nowhere)
    assert "package `bubblewrap`" in str(refused.value) and "package `docker.io`" in str(refused.value)


@pytest.mark.parametrize(
    ("tiers", "chosen", "tried"),
    [
        ({"bwrap": Tier.T3, "docker": Tier.T3}, "bwrap", 1),
        ({"bwrap": Tier.T2, "docker": Tier.T3}, "docker", 2),
        ({"bwrap": Tier.T2, "docker": None}, "bwrap", 2),
        ({"bwrap": None, "docker": None, "landlock": Tier.T1}, "landlock", 3),
    ],
)
async def test_auto_takes_the_strongest_and_of_equals_the_first(
    monkeypatch: pytest.MonkeyPatch, tiers: dict[str, Tier | None], chosen: str, tried: int
) -> None:
    class Claims:
        def __init__(self, name: str, **_: object) -> None:
            self.name, self.tier = name, Tier.T1 if name == "landlock" else Tier.T3

        async def probe(self) -> Probe:
            return Probe(self.name, tiers[self.name], reason="as told")

    backends = {name: functools.partial(Claims, name) for name in ("bwrap", "docker", "landlock")}
    monkeypatch.setattr("sandbox.backends.select.BACKENDS", backends)
    backend, probes = await choose_backend()
    assert backend.name == chosen and len(probes) == tried


class Leaky(UnsafeBackend):
    """Claims to be landlock."""

    name, tier = "landlock", Tier.T1


async def test_a_boundary_that_does_not_hold_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.backends.select.BACKENDS", dict.fromkeys(AUTO, Leaky))
    with pytest.raises(SandboxUnavailable, match="network_blocked"):
        await choose_backend()


class Broken:
    """Cannot start."""

    name = "broken"

    async def probe(self) -> object:
        return await try_out(self, Tier.T1, "Mend it.")

    async def start_slot(self, *, bare: bool = False) -> Slot:
        raise SlotError("it is broken")


async def test_a_backend_that_cannot_start_gives_its_reason_and_remedy() -> None:
    backend: Backend = Broken()  # type: ignore[assignment]
    probe = await backend.probe()
    assert probe.tier is None and probe.reason == "it is broken. Mend it."


def test_every_tier_adds_to_what_must_hold() -> None:
    for lower, higher in zip(sorted(REQUIRED), sorted(REQUIRED)[1:], strict=False):
        assert set(required(lower)) < set(required(higher))


async def test_what_a_killed_owner_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead, living, foreign = (
        tmp_path / f"agent-rl-sandbox-{name}" for name in ("99999999-a", f"{os.getpid()}-b", "c-d")
    )
    for folder in (dead, living, foreign):
        (folder / "sandbox").mkdir(parents=True)
    slot = await UnsafeBackend(cgroups=False).start_slot(bare=True)
    await slot.destroy()
    assert not dead.exists() and living.exists() and foreign.exists()
    assert sorted(tmp_path.iterdir()) == sorted([living, foreign])
