"""Where problems come from and which of them are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agent_rl.settings import Settings


class ColumnSettings(Settings):
    """Explicit column names, for files whose form is not recognised. Dots reach into nested columns."""

    question: str
    """Column of the question: text, or a list of chat messages (`prompt`, `extra_info.question`)."""
    gold: str
    """Column of the reference answer (`answer`, `reward_model.ground_truth`)."""
    id: str | None = None
    """Column of a stable id; without one the id is a hash of the question."""
    source: str | None = None
    """Column that names the data set; without one the name of the file or folder is taken."""
    level: str | None = None
    """Column of the difficulty, a number or `Level 5`."""
    subject: str | None = None
    """Column of the subject or problem type."""
    gold_format: Literal["plain", "boxed", "gsm8k"] = "plain"
    """How the gold column holds the answer: as it is, in the last `\\boxed{}`, or after the last `####`."""


class GymSettings(Settings):
    """Problems from the package reasoning-gym (extra `reasoning-gym`)."""

    datasets: list[str] = Field(min_length=1)
    """Names of its data sets, such as `chain_sum` or `gsm_symbolic`."""
    options: dict[str, dict[str, int | float | str | bool]] = Field(default_factory=dict)
    """Options of a data set by its name, such as `{chain_sum: {max_terms: 4}}`."""
    kinds: dict[str, str] = Field(default_factory=dict)
    """Verifier of a data set by its name; default `math`, and `string` where answers are in another base."""


class DataSettings(Settings):
    """Problems for training or evaluation. Exactly one of `path`, `families`, `generators`, `gym` is given."""

    path: str | list[str] | None = None
    """File, glob, folder or hub name (`owner/name` or `owner/name:config`), or several of them. Files: JSONL,
    JSON, CSV, TSV, parquet, Arrow; `.gz` and `.zst` are read too. Of a folder, the files of the split are read."""
    families: list[str] | None = None
    """Generated problem families of `agent_rl.tasks.families`; an empty list means all of them."""
    generators: list[str] | None = None
    """Generators of `agent_rl.tasks.generators`, whose difficulty is set by `difficulty`; empty means all."""
    gym: GymSettings | None = None
    """Problems from reasoning-gym."""
    count: int = Field(default=1024, ge=1)
    """How many problems `families`, `generators` and `gym` make."""
    columns: ColumnSettings | None = None
    """Explicit columns; without them the form of each file is recognised."""
    seed: int = 0
    """Seed of generated problems."""
    limit: int | None = Field(default=None, ge=1)
    """Keep the first so many problems that pass the filters."""
    deduplicate: bool = True
    """Keep only the first of several questions with the same letters, digits and arithmetic signs."""
    strip_instructions: bool = True
    """Take well-known instruction sentences off questions ("put your final answer within \\boxed{}")."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Leave out problems whose prompt is longer; token counts are cached on disk."""
    difficulty: tuple[float, float] | None = None
    """Lowest and highest level kept, both included; for `generators` the levels that are made."""
    sources: list[str] | None = None
    """Keep only these sources (data sets, families)."""
    subjects: list[str] | None = None
    """Keep only these subjects."""
    mix: dict[str, float] | None = None
    """Weight of each source in an epoch; 0 leaves a source out. Every source must be named."""
    max_bad_rows: int | None = Field(default=None, ge=0)
    """Stop when more rows than this cannot be read; without it bad rows are left out and listed."""
    on_overlap: Literal["error", "drop", "warn"] = "drop"
    """What to do with training problems that are also evaluation problems."""
    cache_dir: str | None = None
    """Folder of cached token counts; default `$XDG_CACHE_HOME/agent-rl`, or `~/.cache/agent-rl`."""

    @model_validator(mode="after")
    def _consistent(self) -> DataSettings:
        given = [n for n in ("path", "families", "generators", "gym") if getattr(self, n) is not None]
        if len(given) != 1:
            found = ", ".join(given) or "none"
            raise ValueError(f"give exactly one of path, families, generators, gym (found: {found})")
        if self.columns is not None and self.path is None:
            raise ValueError("columns belong to files: give path, or leave columns out")
        if self.difficulty is not None and self.difficulty[0] > self.difficulty[1]:
            raise ValueError(f"difficulty {list(self.difficulty)} is empty: write [lowest, highest]")
        if self.mix is not None:
            if bad := {k: v for k, v in self.mix.items() if v < 0}:
                raise ValueError(f"mix: weights must not be negative, got {bad}")
            if not any(self.mix.values()):
                raise ValueError("mix: at least one weight must be above 0")
        return self
