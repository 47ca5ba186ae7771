"""Starts the sandbox as a run would, and lets it run programs: one that works, one that never ends."""

from __future__ import annotations

import os

from agent_rl.doctor.findings import Finding, fault, ok, warning
from agent_rl.rollout.settings import SandboxSettings
from sandbox.client import SandboxClientError
from sandbox.schemas import ExecuteRequest, Limits, Status
from sandbox.sync_client import SyncSandboxClient

_WORKS = "import sympy\nprint(sympy.integrate(2 * sympy.Symbol('x'), (sympy.Symbol('x'), 0, 7)) - 7)"
_ENDLESS = "while True:\n    pass"
_SHORT = Limits(wall_s=2.0, cpu_s=1.0)
_DEADLINE_S = 60.0


def check_sandbox(settings: SandboxSettings) -> list[Finding]:
    """Isolation of at least `min_tier`, and a self-test. What goes wrong is a finding, never an exception."""
    try:
        if settings.url is not None:
            token = os.environ.get(settings.token_env)
            with SyncSandboxClient(settings.url, token) as client:
                ready = client.ready()
                return _judge(client, str(ready.tier), f"service at {settings.url}, {ready.backend}", settings)
        return _own(settings)
    except (SandboxClientError, ValueError) as error:
        remedy = (
            "lower sandbox.min_tier only if the programs are trusted; `agent-rl sandbox probe` says what is missing"
        )
        if settings.url is not None:
            remedy = f"start the service, or check sandbox.url and the token in {settings.token_env}"
        return [fault("sandbox", str(error), remedy)]


def _own(settings: SandboxSettings) -> list[Finding]:
    from sandbox.embedded import EmbeddedSandbox
    from sandbox.settings import EmbeddedSettings, ServiceSettings

    service = ServiceSettings(port=0, backend=settings.backend, min_tier=settings.min_tier, slots=1)
    owner = EmbeddedSandbox(EmbeddedSettings(service=service))
    with owner as client:
        return _judge(client, owner.tier, f"our own service, {owner.backend}", settings)


def _judge(client: SyncSandboxClient, tier: str, name: str, settings: SandboxSettings) -> list[Finding]:
    if tier < settings.min_tier:
        sentence = f"{name} offers tier {tier}, below sandbox.min_tier = {settings.min_tier}"
        return [fault("sandbox", sentence, "start it on a stronger tier, or lower min_tier")]
    works = client.execute(ExecuteRequest(code=_WORKS, limits=Limits(wall_s=20.0)), deadline=_DEADLINE_S)
    if works.status is not Status.OK or works.stdout.strip() != "42":
        said = (works.stderr or works.stdout).strip()[-200:]
        return [fault("sandbox", f"{name} ({tier}): a program that should print 42 ended as {works.status}: {said}")]
    endless = client.execute(ExecuteRequest(code=_ENDLESS, limits=_SHORT), deadline=_DEADLINE_S)
    if endless.status not in (Status.TIMEOUT, Status.CPU_TIMEOUT):
        return [fault("sandbox", f"{name} ({tier}): a program that never ends was not stopped ({endless.status})")]
    if tier == "T0":
        sentence = f"{name}: programs of the model run WITHOUT isolation (T0)"
        return [warning("sandbox", sentence, "use sandbox.backend = auto unless every program is trusted")]
    return [
        ok("sandbox", f"{name} ({tier}): runs programs ({works.wall_ms:.0f} ms with sympy), stops one that never ends")
    ]
