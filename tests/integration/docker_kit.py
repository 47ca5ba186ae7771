"""The runner image and the containers of slots, for tests that use a real Docker engine."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

import pytest

from sandbox.backends.docker_reaper import MARK, OWNER, Owner
from sandbox.backends.docker_settings import DockerSettings
from sandbox.backends.interpreter import source_digest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "deploy" / "runner" / "build.sh"
IMAGE, BASE = DockerSettings().image, "agent-rl-base:bookworm"
DIGEST = "import sys; sys.path.insert(0, '/opt/sandbox'); import container; print(container.source_digest())"


def docker(*arguments: str, timeout_s: float = 60) -> str:
    """What the docker client prints. Raises CalledProcessError."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=timeout_s, check=True)
    return done.stdout.strip()


def slot_containers(owner: Owner | None = None) -> list[str]:
    """Ids of every slot's container on this engine, or of those that `owner` made."""
    label = f"{MARK}=1" if owner is None else f"{OWNER}={owner}"
    return docker("ps", "-aq", "--no-trunc", "--filter", f"label={label}").split()


@functools.cache
def _missing() -> str:
    """Why there is no current runner image; empty if there is. An old one is built anew where its base is here."""
    command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python3", IMAGE, "-c", DIGEST]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if found.stdout.strip() == source_digest():
        return ""
    if not docker("image", "ls", "-q", BASE):
        return f"the image {IMAGE} is missing or out of date (deploy/runner/build.sh [--debian])"
    built = subprocess.run([BUILD, "--debian"], capture_output=True, text=True, timeout=300, check=False)
    return built.stderr[-500:] if built.returncode else ""


def require_runner(request: pytest.FixtureRequest) -> None:
    """Skip (or fail, where REQUIRE names docker) unless slots can run on a Docker engine here."""
    request.getfixturevalue("requires_docker")
    if reason := _missing():
        if "docker" in os.environ.get("REQUIRE", "").split(","):
            pytest.fail(f"REQUIRE names 'docker', but {reason}", pytrace=False)
        pytest.skip(reason)
