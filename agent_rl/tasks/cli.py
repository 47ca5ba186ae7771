"""`agent-rl tasks`: look at problem files before training on them."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Problems: check files, list generated families and benchmarks.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Problems: check files, list generated families and benchmarks."""


@app.command("check")
def check_command(
    files: Annotated[list[str], typer.Argument(help="Files, globs or folders.")],
    question: Annotated[str | None, typer.Option(help="Column of the question, where the form is unknown.")] = None,
    gold: Annotated[str | None, typer.Option(help="Column of the gold answer.")] = None,
    split: Annotated[str, typer.Option(help="Split of folders: train or test.")] = "train",
    audit: Annotated[bool, typer.Option(help="Compare each gold answer with itself through its verifier.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON.")] = False,
) -> None:
    """Report rows, form, bad rows with line numbers, duplicates, shared problems, gold answers that fail.

    Exit status: 0 if every row is usable, 1 if a row is bad or a file has no problem, 2 if a file cannot be read.
    """
    from agent_rl.tasks.check import check, show, verifier_audit
    from agent_rl.tasks.settings import ColumnSettings

    if (question is None) != (gold is None):
        raise typer.BadParameter("give --question and --gold together")
    columns = ColumnSettings(question=question, gold=gold) if question and gold else None
    try:
        report = check(files, columns=columns, split=split, audit=verifier_audit if audit else None)
    except (ValueError, OSError) as error:
        typer.echo(f"agent-rl tasks check: {error}", err=True)
        raise typer.Exit(2) from error
    if as_json:
        import json

        typer.echo(json.dumps(report.as_dict(), indent=2, ensure_ascii=False))
    else:
        from rich.console import Console

        show(report, Console())
    raise typer.Exit(0 if report.ok else 1)


@app.command("benchmarks")
def benchmarks_command(
    folder: Annotated[str, typer.Argument(help="Folder in which to look for their files.")] = "data",
) -> None:
    """List the known benchmarks, how many problems each has, and where its file is or is to be had."""
    from rich.console import Console
    from rich.table import Table

    from agent_rl.evaluation.presets import BENCHMARKS, BenchmarkAbsent, find_benchmark

    table = Table("name", "benchmark", "problems", f"in {folder!r}, or where to get it")
    for name, benchmark in BENCHMARKS.items():
        try:
            where = str(find_benchmark(name, folder))
        except BenchmarkAbsent:
            where = f"absent: {benchmark.origin}"
        table.add_row(name, benchmark.title, str(benchmark.rows), where)
    Console().print(table)


@app.command("families")
def families_command() -> None:
    """List the generated problem families and the scaled generators."""
    from rich.console import Console
    from rich.table import Table

    from agent_rl.tasks.families import FAMILIES, UNSEEN
    from agent_rl.tasks.generators import GENERATORS

    table = Table("name", "kind", "what is asked")
    for kind, families in (("family", FAMILIES), ("family, for evaluation only", UNSEEN)):
        for family in families.values():
            table.add_row(family.name, kind, family.summary)
    for name, generator in GENERATORS.items():
        table.add_row(name, "generator, levels 1 to 10", (generator.__doc__ or "").strip())
    Console().print(table)
