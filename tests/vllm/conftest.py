"""One vLLM engine for all tests here: it takes half a minute to start.

.venv/vllm/bin/python -m pytest tests/vllm
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent_rl.engines.loading import load_model, save_model
from agent_rl.engines.settings import EngineSettings
from tests.engine_models import EOS, byte_tokenizer
from tests.vllm.models import untied_model

os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")

QUICKSTART = "package://agent_rl/assets/quickstart"
SETTINGS = EngineSettings(kind="vllm", max_rows=64, kv_budget_mb=256, prefill_tokens=2048)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """All asynchronous tests share the loop that the engine lives in, and wait for slow starts."""
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            if inspect.iscoroutinefunction(getattr(item, "function", None)):
                item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def shipped() -> tuple[Any, Any]:
    """The shipped model (tied embeddings) and its tokenizer."""
    return load_model(QUICKSTART, device="cpu")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(requires_vllm: None, shipped: tuple[Any, Any]) -> AsyncIterator[Any]:
    """vLLM with the shipped model; tests that change its weights put them back."""
    from agent_rl.engines.sources import resolve_model
    from agent_rl.engines.transformers import default_eos_ids
    from agent_rl.engines.vllm.engine import VllmEngine
    from agent_rl.tir.fence import FenceScanner

    model, tokenizer = shipped
    running = VllmEngine(
        resolve_model(QUICKSTART).location,
        tokenizer,
        eos_ids=default_eos_ids(model, tokenizer),
        settings=SETTINGS,
        scanner=FenceScanner,
    )
    await running.start()
    yield running
    await running.close()


@pytest.fixture(scope="session")
def untied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, str]:
    """A random Llama with a head of its own, a byte tokenizer, and the folder that holds both."""
    model = untied_model(seed=3)
    tokenizer = byte_tokenizer()
    folder = str(tmp_path_factory.mktemp("untied"))
    save_model(model, tokenizer, folder)
    return model, tokenizer, folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def untied_engine(requires_vllm: None, untied: tuple[Any, Any, str]) -> AsyncIterator[Any]:
    """vLLM with the untied model; a test that needs other weights loads them first."""
    from agent_rl.engines.vllm.engine import VllmEngine
    from agent_rl.tir.fence import FenceScanner

    _, tokenizer, folder = untied
    running = VllmEngine(folder, tokenizer, eos_ids=[EOS, ord("!")], settings=SETTINGS, scanner=FenceScanner)
    await running.start()
    yield running
    await running.close()
