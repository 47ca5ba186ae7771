"""`agent-rl records`: recordings as chat messages, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    output: Annotated[Path, typer.Argument(help="JSONL file to write.")],
    split: Annotated[str | None, typer.Option(help="Only this set.")] = None,
    step: Annotated[int | None, typer.Option(help="Only this step.")] = None,
    correct: Annotated[bool, typer.Option("--correct", help="Only trajectories with a right answer.")] = False,
    instruction: Annotated[str | None, typer.Option(help="System message put first.")] = None,
) -> None:
    """Write trajectories as chat messages, one JSON object a line, for supervised training."""
    from agent_rl.records.messages import export as write
    from agent_rl.records.reader import trajectories
    from agent_rl.records.shards import RecordError

    try:
        count = write(trajectories(run, split=split, step=step), output, correct_only=correct, instruction=instruction)
    except (RecordError, OSError) as error:
        _refuse(str(error))
    typer.echo(f"{count} trajectories: {output}")


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="JSONL file with `messages` in each row.")],
    output: Annotated[Path, typer.Argument(help="Folder of the recording to make.")],
    split: Annotated[str, typer.Option(help="Name of the set.")] = "imported",
) -> None:
    """Make a recording (of level text) out of chat messages, to be looked at."""
    from agent_rl.records.messages import import_messages
    from agent_rl.records.shards import RecordError

    try:
        count = import_messages(source, output / "trajectories", split=split)
    except (RecordError, OSError) as error:
        _refuse(str(error))
    typer.echo(f"{count} trajectories; look at them with: agent-rl inspect {output}")


def _refuse(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)
