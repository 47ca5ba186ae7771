"""What a problem file holds and what is wrong with it: `agent-rl tasks check FILE`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_rl.tasks.files import BadRow, read_rows, resolve
from agent_rl.tasks.load import RowReader, source_of
from agent_rl.tasks.overlap import find_overlaps
from agent_rl.tasks.settings import ColumnSettings
from agent_rl.tasks.text import signed_key, strip_instructions
from agent_rl.types import Problem

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 20
"""Findings of a kind that the terminal shows; JSON has all."""

GoldAudit = Callable[[Sequence[Problem]], dict[int, str]]
"""Index of each problem whose gold answer is not accepted by its own verifier, with the reason."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One row that deserves a look."""

    where: str
    reason: str


@dataclass(slots=True)
class FileReport:
    """The check of one file. `rows` counts all, `bad_rows` those that cannot be used."""

    file: str
    schema: str
    rows: int = 0
    problems: int = 0
    bad_rows: list[Finding] = field(default_factory=list)
    duplicates: list[Finding] = field(default_factory=list)
    failing_golds: list[Finding] = field(default_factory=list)
    golds_audited: bool = False
    instructions_stripped: int = 0
    levels: dict[str, int] = field(default_factory=dict)
    subjects: dict[str, int] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class CheckReport:
    """The checks of all files, and the problems that several of them share."""

    files: list[FileReport]
    overlaps: list[Finding] = field(default_factory=list)
    lookalikes: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every file has problems, and no row of any is bad."""
        return all(f.problems and not f.bad_rows for f in self.files)

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def check(
    paths: Sequence[str], *, columns: ColumnSettings | None = None, audit: GoldAudit | None = None, split: str = "train"
) -> CheckReport:
    """Read every row of every file behind `paths` and report on it.

    Args:
        paths: files, globs or folders (of a folder, the files of `split`).
        columns: explicit columns, as in the settings.
        audit: compares gold answers with themselves; without it that part is left out, and the report says so.
        split: split of folders.
    """
    files: list[Path] = []
    for path in paths:
        found = resolve(path, split)
        if found is None:
            raise ValueError(f"{path!r} is no file here; the check reads files, so download the data set first")
        files += found
    problems = {str(file): [] for file in files}
    report = CheckReport([_check_file(file, columns, audit, problems[str(file)]) for file in files])
    _compare(report, problems)
    return report


def _check_file(file: Path, columns: ColumnSettings | None, audit: GoldAudit | None, kept: list[Problem]) -> FileReport:
    report = FileReport(str(file), schema="none")
    reader = RowReader(source_of(file), columns)
    places: list[str] = []
    seen: dict[bytes, str] = {}
    for row in read_rows(file):
        report.rows += 1
        problem = reader(row)
        if isinstance(problem, BadRow):
            report.bad_rows.append(Finding(problem.where, problem.reason))
            continue
        question = strip_instructions(problem.question)
        report.instructions_stripped += question != problem.question
        kept.append(replace(problem, question=question))
        places.append(row.where)
        if (first := seen.setdefault(signed_key(question), row.where)) != row.where:
            report.duplicates.append(Finding(row.where, f"the same question as {first}"))
    report.schema = reader.schema.name if reader.schema else "none"
    report.problems = len(kept)
    _count(report, kept)
    if audit is not None and kept:
        report.golds_audited = True
        failures = sorted(audit(kept).items())
        report.failing_golds = [Finding(f"{places[i]} ({kept[i].id})", reason) for i, reason in failures]
    return report


def _count(report: FileReport, kept: list[Problem]) -> None:
    report.levels = dict(sorted(Counter(str(p.metadata["level"]) for p in kept if "level" in p.metadata).items()))
    report.subjects = dict(Counter(str(p.metadata["subject"]) for p in kept if "subject" in p.metadata).most_common())
    report.sources = dict(Counter(p.source for p in kept).most_common())


def _compare(report: CheckReport, problems: dict[str, list[Problem]]) -> None:
    """Problems that a file shares with a later one."""
    names = list(problems)
    for number, name in enumerate(names):
        for overlap in find_overlaps(problems[name], {other: problems[other] for other in names[number + 1 :]}):
            finding = Finding(
                f"{name} and {overlap.benchmark}",
                f"{overlap.train.id} and {overlap.evaluation.id}: {overlap.train.question[:80]!r}",
            )
            (report.overlaps if overlap.same else report.lookalikes).append(finding)


def verifier_audit(problems: Sequence[Problem]) -> dict[int, str]:
    """The `GoldAudit` of `agent_rl.rewards`: each gold answer against the verifier that its problem names."""
    from agent_rl.rewards.audit import audit_golds

    failures: dict[int, str] = {}
    for kind in sorted({p.kind for p in problems}):
        indices = [i for i, p in enumerate(problems) if p.kind == kind]
        for failure in audit_golds((problems[i].gold for i in indices), kind=kind):
            failures[indices[failure.index]] = f"{failure.gold[:80]!r}: {failure.reason}"
    return failures


def show(report: CheckReport, console: Console) -> None:
    """Print the report. Findings are never wrapped, so that their lines can be searched."""
    from rich.table import Table

    table = Table(title="Problem files")
    for column in ("file", "form", "rows", "problems", "bad rows", "duplicates", "golds that fail"):
        table.add_column(column, justify="left" if column in ("file", "form") else "right", overflow="fold")
    for f in report.files:
        failing = str(len(f.failing_golds)) if f.golds_audited else "not checked"
        counts = (f.rows, f.problems, len(f.bad_rows), len(f.duplicates))
        table.add_row(f.file, f.schema, *map(str, counts), failing)
    lines: list[str] = []
    for f in report.files:
        for label, findings in (
            ("bad row", f.bad_rows),
            ("duplicate", f.duplicates),
            ("gold answer fails its own verifier", f.failing_golds),
        ):
            lines += _listed(label, f.file, findings)
        if f.instructions_stripped:
            lines.append(f"{f.file}: {f.instructions_stripped} questions carry a known instruction sentence")
        if f.levels:
            lines.append(f"{f.file}: levels " + ", ".join(f"{k}: {n}" for k, n in f.levels.items()))
    lines += _listed("in both files", "", report.overlaps) + _listed("look-alike, other signs", "", report.lookalikes)
    console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _listed(label: str, file: str, findings: Sequence[Finding]) -> list[str]:
    lines = [f"{label}: {file + ', ' if file else ''}{x.where}: {x.reason}" for x in findings[:SHOWN]]
    if len(findings) > SHOWN:
        lines.append(f"{label}: and {len(findings) - SHOWN} more")
    return lines
