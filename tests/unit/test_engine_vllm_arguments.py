"""Settings as vLLM's arguments, and what is refused before vLLM is started. Needs no vLLM."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent_rl.config import ConfigError
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.vllm.arguments import check_names, engine_arguments, environment
from agent_rl.engines.vllm.routing import Routes
from agent_rl.engines.vllm.wire import parse_event
from agent_rl.types import InfrastructureError


def arguments(cpu: bool = True, can_sleep: bool = False, **vllm):
    settings = EngineSettings(kind="vllm", max_length=500, kv_budget_mb=100, max_rows=7, vllm=vllm)
    return engine_arguments("folder", settings, cpu=cpu, can_sleep=can_sleep)


def test_log_probs_are_asked_for_as_sampled_and_cache_and_length_as_set():
    found = arguments()
    assert found["logprobs_mode"] == "processed_logprobs"
    assert found["max_model_len"] == 500
    assert found["kv_cache_memory_bytes"] == 100 << 20
    assert found["enable_prefix_caching"] is True
    assert (found["dtype"], found["enforce_eager"]) == ("float32", True)


def test_an_accelerator_takes_its_share_of_memory_and_the_checkpoints_number_format():
    found = arguments(cpu=False, gpu_memory_utilization=0.4, tensor_parallel_size=2, engines=3)
    assert "kv_cache_memory_bytes" not in found
    assert (found["gpu_memory_utilization"], found["dtype"]) == (0.4, "auto")
    assert (found["tensor_parallel_size"], found["data_parallel_size"]) == (2, 3)
    assert found["enforce_eager"] is False


@pytest.mark.parametrize(("placement", "can_sleep", "asked"), [
    ("colocated", True, True), ("colocated", False, None), ("side_by_side", True, None),
])  # fmt: skip
def test_sleep_is_asked_for_where_it_is_of_use(placement, can_sleep, asked):
    assert arguments(can_sleep=can_sleep, placement=placement).get("enable_sleep_mode") is asked


def test_extra_arguments_are_handed_on_and_checked():
    assert arguments(extra={"swap_space": 2})["swap_space"] == 2
    with pytest.raises(ConfigError, match="'dtype', which other settings decide"):
        arguments(extra={"dtype": "float16"})
    with pytest.raises(ConfigError, match=r"'swap_spce'.*did you mean 'swap_space'"):
        check_names({"swap_spce": 1}, frozenset(["swap_space", "model"]))


def test_devices_are_set_while_the_engine_starts_and_put_back(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    with environment(EngineSettings(kind="vllm", vllm={"devices": "2,3"})):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
        assert os.environ["VLLM_LOGGING_LEVEL"] == "INFO"
        assert os.environ["VLLM_NO_USAGE_STATS"] == "1"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


@given(st.lists(st.integers(0, 30), max_size=80), st.integers(2, 5))
def test_a_trajectory_stays_where_it_began_and_engines_are_loaded_evenly(steps, engines):
    routes, alive = Routes(engines), {}
    for number in steps:
        name = str(number)
        if number % 3 == 0 and name in alive:
            routes.forget(name)
            del alive[name]
        else:
            before = Counter(alive.values())
            rank = routes.rank(name)
            if name in alive:
                assert rank == alive[name]
            else:
                assert before[rank] == min(before[place] for place in range(engines))
            alive[name] = rank


def test_one_engine_needs_no_route():
    assert Routes(1).rank("t") is None


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_addresses_may_be_given_with_or_without_v1(url):
    assert EngineSettings(remote={"url": [url]}).remote.urls == ["http://h:1"]


@pytest.mark.parametrize("url", ["h:8000", [], "ftp://h"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ValidationError, match=r"engine\.remote\.url"):
        EngineSettings(remote={"url": url})


def test_events_of_the_stream():
    event = 'data: {"choices": [{"text": "a", "token_ids": [5, 6], "logprobs": {"token_logprobs": [-1, -0.5]}}]}'
    chunk = parse_event(event)
    assert (chunk.ids, chunk.logprobs, chunk.finish) == ((5, 6), (-1.0, -0.5), None)
    assert parse_event("data: [DONE]") is None
    assert parse_event(": keep-alive") is None
    with pytest.raises(InfrastructureError, match="the server failed: out of cheese"):
        parse_event('data: {"error": {"message": "out of cheese"}}')
    with pytest.raises(InfrastructureError, match="without token ids"):
        parse_event('data: {"choices": [{"text": "a"}]}')


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_run_without_vllm_names_the_extra():
    done = subprocess.run(
        [sys.executable, "-m", "agent_rl.cli", "train", "configs/quickstart.yaml", "engine.kind=vllm", "--dry-run"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'agent-rl[vllm]'" in done.stdout + done.stderr
