"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

app = typer.Typer(
    name="agent-rl",
    help="Train language models to solve mathematics by writing and running Python over several turns.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

INTERRUPTED = 130
"""Exit status after Ctrl-C, by the shell's convention."""


@app.command()
def train(
    config: Annotated[Path | None, typer.Argument(help="YAML file, such as configs/quickstart.yaml.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides, such as tir.max_turns=5.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen, start nothing heavy.")] = False,
) -> None:
    """Train a policy."""
    from agent_rl.config import ConfigError, load
    from agent_rl.training.run_dir import RunDir
    from agent_rl.training.settings import RunConfig

    changes = list(overrides or ())
    if config is not None and "=" in str(config) and not config.exists():
        changes, config = [str(config), *changes], None
    try:
        if resume is not None:
            if config is not None:
                raise ConfigError(f"--resume {resume} goes on with that run's own configuration; leave out {config}")
            run, settings = RunDir.open(resume, tuple(changes))
        elif config is None:
            raise ConfigError("give a configuration, such as configs/quickstart.yaml, or --resume RUN")
        else:
            run, settings = None, load(config, changes, model=RunConfig)
    except ConfigError as error:
        _refuse(str(error))
    from agent_rl.training import entry

    raise typer.Exit(entry.dry_run(settings) if dry_run else entry.train(settings, run))


@app.command()
def sft(
    config: Annotated[Path, typer.Argument(help="YAML file, such as configs/quickstart_seed.yaml.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides, such as steps=100.")] = None,
) -> None:
    """Supervised warm-up: traces of generated families, or messages and traces from a JSONL file."""
    from agent_rl.config import ConfigError, load
    from agent_rl.sft.settings import SftSettings

    try:
        settings = load(config, overrides or (), model=SftSettings)
    except ConfigError as error:
        _refuse(str(error))
    from agent_rl.sft import run

    run(settings)


def _refuse(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)


def main() -> None:
    """Entry point of the `agent-rl` command."""
    from agent_rl.tasks.cli import app as tasks
    from sandbox.cli import app as sandbox

    app.add_typer(sandbox, name="sandbox", help="Run Python programs in isolation: the sandbox service.")
    app.add_typer(tasks, name="tasks", help="Look at problem files before training on them.")
    app()


if __name__ == "__main__":
    main()
