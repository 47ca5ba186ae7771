"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NoReturn

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


@app.command("eval")
def evaluate(
    model: Annotated[
        str | None,
        typer.Argument(help="Run folder (its newest checkpoint), checkpoint, model folder, GGUF or hub name."),
    ] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides, such as evaluation.samples=4.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file, such as configs/eval_families.yaml.")] = None,
    on: Annotated[
        list[str] | None, typer.Option(help="Problems: a benchmark's name, a file, or `families`; may be repeated.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Attempts at each problem.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many problems of each set.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="One attempt at temperature 0.")] = False,
    endpoint: Annotated[
        list[str] | None, typer.Option(help="Address of a vLLM server with the policy; may be repeated.")
    ] = None,
    served: Annotated[
        str | None, typer.Option("--model", help="Name that the endpoint serves the model under.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="Folder of the report; the same folder goes on.")] = None,
) -> None:
    """Measure a policy on problem sets: accuracy with intervals, as JSON, Markdown and a plot. Resumable."""
    from agent_rl.config import ConfigError
    from agent_rl.evaluation import command

    measured = command.sets_from_options(on or ())
    measured |= {"samples": samples} if samples is not None else {}
    measured |= {"limit": limit} if limit is not None else {}
    measured |= {"samples": 1, "temperature": 0.0} if greedy else {}
    given = ({"evaluation": measured} if measured else {}) | ({"output": output} if output is not None else {})
    try:
        given |= command.endpoint_from_options(endpoint or (), served)
    except ConfigError as error:
        _refuse(str(error))
    settings, policy = _play_settings(command.EvalConfig, model or served, config, overrides, given)
    raise typer.Exit(command.run(settings, policy))


@app.command()
def study(
    config: Annotated[Path, typer.Argument(help="YAML file, such as configs/studies/methods.yaml.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides, such as seeds=[0].")] = None,
) -> None:
    """Run one configuration with several values and seeds, and write a table. Started again, it goes on."""
    from agent_rl.config import ConfigError
    from agent_rl.study.run import load_study
    from agent_rl.study.run import study as compare

    try:
        status = compare(load_study(config, overrides or ()))
    except ConfigError as error:
        _refuse(str(error))
    raise typer.Exit(status)


@app.command()
def solve(
    question: Annotated[str, typer.Argument(help="The problem, in words.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides, such as tir.max_turns=3.")] = None,
    model: Annotated[str | None, typer.Option(help="Run folder, checkpoint, model folder, GGUF or hub name.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with model, tir and sandbox settings.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Attempts; with several, the answers are voted on.")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of sampling.")] = 0,
    gold: Annotated[str | None, typer.Option(help="The right answer, if known: each answer is compared.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Solve one problem and show the model's text and the tool's output as they come."""
    from agent_rl.play.settings import PlaySettings

    settings, _ = _play_settings(PlaySettings, model, config, overrides, {})
    from agent_rl.solve import Ask
    from agent_rl.solve import solve as answer

    raise typer.Exit(answer(Ask(question, samples, temperature, seed, gold, as_json), settings))


@app.command()
def doctor(
    config: Annotated[Path | None, typer.Argument(help="YAML file of the run that is meant.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="Overrides, such as tir.max_turns=5.")] = None,
    skip: Annotated[
        list[str] | None, typer.Option(help="A check to leave out, such as weights or sandbox; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say in plain words whether machine, model, template, data and sandbox are fit. Exit status 1 if not."""
    from agent_rl.doctor.examine import examine

    changes = list(overrides or ())
    if config is not None and "=" in str(config) and not config.exists():
        changes, config = [str(config), *changes], None
    raise typer.Exit(examine(config, changes, skip=skip or (), as_json=as_json))


@app.command()
def inspect(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of a measurement.")],
    split: Annotated[str | None, typer.Option(help="Only this set: train, or the name of a held-out set.")] = None,
    step: Annotated[int | None, typer.Option(help="Only this step.")] = None,
    key: Annotated[str | None, typer.Option(help="Show this trajectory (PROBLEM#SAMPLE) or problem.")] = None,
    search: Annotated[str | None, typer.Option(help="Only those with these words in key, answer or source.")] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only those that are not correct.")] = False,
    void: Annotated[bool, typer.Option("--void", help="Only those with a void turn.")] = False,
    truncated: Annotated[bool, typer.Option("--truncated", help="Only those with a turn that a cap cut.")] = False,
    timed_out: Annotated[bool, typer.Option("--timed-out", help="Only those with a program that timed out.")] = False,
    not_in_loss: Annotated[bool, typer.Option("--not-in-loss", help="Only those left out of the loss.")] = False,
    sort: Annotated[
        str, typer.Option(help="recorded, ratio, gated, reward, advantage, length or calls; largest first.")
    ] = "recorded",
    limit: Annotated[int | None, typer.Option(min=1, help="Most trajectories listed and in the page.")] = None,
    html: Annotated[Path | None, typer.Option(help="Where the page goes; default RUN/inspect.html.")] = None,
    no_html: Annotated[bool, typer.Option("--no-html", help="Only the terminal.")] = False,
) -> None:
    """Look at recorded trajectories, token by token: in the terminal, and as one offline HTML page."""
    from agent_rl.records.inspect import command

    given = {"wrong": wrong, "void": void, "truncated": truncated, "timed_out": timed_out, "not_in_loss": not_in_loss}
    if sort not in command.SORTS:
        _refuse(f"--sort {sort} is none of {', '.join(command.SORTS)}")
    flags = tuple(name for name, asked in given.items() if asked)
    asked = command.Asked(split, step, key, search, flags, sort, limit, html, no_html)
    raise typer.Exit(command.inspect(run, asked))


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    step: Annotated[int | None, typer.Option(help="Only this training step.")] = None,
    methods: Annotated[
        str | None, typer.Option("--with", help="Other methods for the same batches, such as grpo,gspo,ctpo,cppo.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Learn from the recorded trajectories alone.")] = False,
    no_tools: Annotated[bool, typer.Option("--no-tools", help="Do not run the programs again.")] = False,
    no_weights: Annotated[bool, typer.Option("--no-weights", help="Recompute nothing from checkpoints.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the stages as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Page of --with; default RUN/methods.html.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of --train; default RUN/replayed.")] = None,
) -> None:
    """Do a recorded run again and name the first stage that differs. Exit status 1 if one does."""
    from agent_rl.records.replay.command import Asked
    from agent_rl.records.replay.command import replay as again

    names = tuple(name.strip() for name in (methods or "").split(",") if name.strip())
    asked = Asked(step, not no_tools, not no_weights, names, train, as_json, html, output)
    raise typer.Exit(again(run, asked))


@app.command()
def diagnose(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    last: Annotated[int, typer.Option(min=1, help="Steps that are looked at, from the end.")] = 10,
) -> None:
    """Say in plain words why a run may not be learning. Exit status 1 if something is out of range."""
    from agent_rl.records.diagnose import diagnose as say

    raise typer.Exit(say(run, last=last))


def _play_settings(
    kind: type[Any], model: str | None, config: Path | None, overrides: list[str] | None, given: dict[str, Any]
) -> tuple[Any, Any]:
    """Settings and policy of a command that plays a policy."""
    from agent_rl.config import ConfigError
    from agent_rl.play.policy import ModelError, settings_for

    changes = list(overrides or ())
    if model is not None and "=" in model and not Path(model).exists():
        changes, model = [model, *changes], None
    try:
        return settings_for(kind, model=model, config=config, overrides=changes, given=given)
    except (ConfigError, ModelError) as error:
        _refuse(str(error))


def _refuse(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)


def main() -> None:
    """Entry point of the `agent-rl` command."""
    from agent_rl.records.cli import app as records
    from agent_rl.tasks.cli import app as tasks
    from sandbox.cli import app as sandbox

    app.add_typer(sandbox, name="sandbox", help="Run Python programs in isolation: the sandbox service.")
    app.add_typer(tasks, name="tasks", help="Look at problem files before training on them.")
    app.add_typer(records, name="records", help="Recorded trajectories as chat messages, and back.")
    app()


if __name__ == "__main__":
    main()
