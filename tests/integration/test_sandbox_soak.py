"""A short soak: mixed programs from many clients are all answered rightly and nothing is left or grows."""

from __future__ import annotations

import pytest
from docker_kit import require_runner

from benchmarks.sandbox_soak import KINDS, soak


@pytest.mark.timeout(280)
@pytest.mark.parametrize(("backend", "slots"), [("auto", 2), ("docker", 2)])
async def test_mixed_programs_leave_a_service_as_it_was(
    request: pytest.FixtureRequest, backend: str, slots: int
) -> None:
    if backend == "docker":
        require_runner(request)
    outcome = await soak(200, 64, backend, slots)
    assert outcome.runs == 200 and not outcome.wrong, outcome.wrong[:3]
    assert {name.split(":")[0] for name in outcome.counts} == {kind.name for kind in KINDS}
    assert not outcome.grown(), outcome.samples
    assert outcome.start_failures == 0
    assert outcome.health_ms["asked"] > 20 and outcome.health_ms["max_ms"] < 5000
