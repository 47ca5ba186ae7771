"""Supervised warm-up: demonstrations in, a policy folder out (`agent-rl sft CONFIG`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_rl.sft.settings import SftSettings
    from agent_rl.sft.warmup import run

__all__ = ["SftSettings", "run"]


def __getattr__(name: str) -> Any:
    """Import late: the settings must load without torch, and `run` needs it."""
    if name == "SftSettings":
        from agent_rl.sft.settings import SftSettings

        return SftSettings
    if name == "run":
        from agent_rl.sft.warmup import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
