"""All commands in the order of `equipoise --help`, and the entry point of the script."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from equipoise.cli import (
    data,
    datasets,
    demo,
    doctor,
    evaluate,
    fit,
    recommend,
    report,
    serve,
    tune,
)
from equipoise.cli.framework import Commands, hear_the_library

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: equipoise demo",
)


def _version(wanted: bool) -> None:
    if wanted:
        from equipoise import __version__

        typer.echo(f"equipoise {__version__}")
        raise typer.Exit


@app.callback()
def every(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Linear recommenders in balance: from a table of who used what to recommendations."""
    hear_the_library()


for each in (demo, data, fit, tune, evaluate, recommend, report, serve, doctor):
    app.add_typer(each.app)
app.add_typer(datasets.app, name="datasets")


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # A title that the terminal's encoding lacks is no reason to fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app(prog_name="equipoise")
