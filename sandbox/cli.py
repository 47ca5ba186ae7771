"""Command line: `python -m sandbox`, mounted elsewhere as the typer application `app`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Run Python programs in isolation: the sandbox service.", no_args_is_help=True)


@app.callback()
def _main() -> None:
    """Run Python programs in isolation: the sandbox service."""


@app.command()
def serve(
    context: typer.Context,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on; anything but loopback needs a token.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option(help="File with bearer tokens, one a line (or SANDBOX_TOKENS, comma-separated).")
    ] = None,
    backend: Annotated[str, typer.Option(help="Isolation: auto, or a backend's name.")] = "auto",
    min_tier: Annotated[str, typer.Option(help="Refuse anything weaker (T0 ... T4).")] = "T1",
    slots: Annotated[int | None, typer.Option(help="Runs at a time; default: the number of cores.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of service settings; options here win.")] = None,
    package: Annotated[list[str] | None, typer.Option(help="Module to import warm; may be repeated.")] = None,
    log_level: Annotated[str, typer.Option(help="critical, error, warning, info or debug.")] = "warning",
) -> None:
    """Serve until interrupted."""
    from pydantic import ValidationError

    from sandbox.serve import run
    from sandbox.settings import ServiceSettings

    values: dict[str, object] = _from_file(config)
    options = {
        "host": host,
        "port": port,
        "backend": backend,
        "min_tier": min_tier,
        "slots": slots,
        "log_level": log_level,
    }
    for name, value in options.items():
        source = context.get_parameter_source(name)
        if name not in values or (source is not None and source.name != "DEFAULT"):
            values[name] = value
    if package:
        values["packages"] = package
    if tokens := _tokens(token_file):
        values["tokens"] = tokens
    try:
        settings = ServiceSettings.model_validate(values)
    except ValidationError as wrong:
        for item in wrong.errors():
            where = ".".join(str(part) for part in item["loc"])
            typer.echo(f"{where + ': ' if where else ''}{item['msg'].removeprefix('Value error, ')}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(run(settings))


@app.command(name="serve-owned", hidden=True)
def serve_owned(
    listen_fd: Annotated[int, typer.Option()],
    die_with_thread: Annotated[bool, typer.Option()] = False,
) -> None:
    """Serve for the process that started this one; see `sandbox.serve`."""
    import socket

    from sandbox.serve import read_owner, run

    owner, settings = read_owner(die_with_thread=die_with_thread)
    raise typer.Exit(run(settings, socket.socket(fileno=listen_fd), owner))


@app.command()
def token() -> None:
    """Print a fresh bearer token."""
    from sandbox.settings import new_token

    typer.echo(new_token())


@app.command()
def probe(
    backend: Annotated[str, typer.Option(help="auto, or a backend's name.")] = "auto",
    min_tier: Annotated[str, typer.Option(help="Tier that must be reached.")] = "T1",
) -> None:
    """Try the isolation backends on this machine and say what each can do."""
    import asyncio

    from sandbox.backends.select import SandboxUnavailable, choose_backend
    from sandbox.settings import ServiceSettings

    settings = ServiceSettings(min_tier=min_tier)  # type: ignore[arg-type]
    try:
        chosen, probes = asyncio.run(choose_backend(backend, settings.min_tier))
    except SandboxUnavailable as failure:
        typer.echo(str(failure), err=True)
        raise typer.Exit(3) from None
    for found in probes:
        tier = found.tier.name if found.tier is not None else "not usable"
        typer.echo(
            f"{found.backend}: {tier}{' (chosen)' if found.backend == chosen.name else ''} {found.reason}".rstrip()
        )
        for check, held in sorted(found.checks.items()):
            typer.echo(f"  {'held  ' if held else 'FAILED'} {check}")


@app.command()
def compare(
    backend: Annotated[list[str] | None, typer.Option(help="A backend's name; may be repeated. Default: all.")] = None,
) -> None:
    """Print a table of what each isolation backend guarantees on this machine, measured now."""
    import asyncio

    from sandbox.backends.compare import compare as measure
    from sandbox.backends.compare import table
    from sandbox.backends.select import BACKENDS, make_backend

    for name in backend or ():
        if name not in BACKENDS:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(BACKENDS)}", param_hint="--backend")
    typer.echo(table(asyncio.run(measure([make_backend(name) for name in backend or BACKENDS]))))


def _from_file(path: Path | None) -> dict[str, object]:
    if path is None:
        return {}
    import yaml

    values = yaml.safe_load(path.read_text())
    if not isinstance(values, dict):
        raise typer.BadParameter(f"{path} holds no mapping of settings", param_hint="--config")
    return values


def _tokens(path: Path | None) -> list[str]:
    if path is not None:
        tokens = [line.strip() for line in path.read_text().splitlines() if line.strip()]
        if not tokens:
            raise typer.BadParameter(f"{path} holds no token", param_hint="--token-file")
        return tokens
    return [part.strip() for part in os.environ.get("SANDBOX_TOKENS", "").split(",") if part.strip()]
