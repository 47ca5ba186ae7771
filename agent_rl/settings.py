"""The base of every settings model: unknown keys are refused, values are frozen, defaults are validated."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Base class for settings. Fields carry their help text as docstrings below them."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )
