"""Recorded trajectories: writing, reading, looking, replaying.

The reader is three functions: `summaries`, `trajectories`, `updates`.
"""

from __future__ import annotations

from typing import Any

__all__ = ["summaries", "trajectories", "updates"]


def __getattr__(name: str) -> Any:
    """Imported when first used, so that the package itself costs nothing."""
    if name in __all__:
        from agent_rl.records import reader

        return getattr(reader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
