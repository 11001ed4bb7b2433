"""All commands in the order of `equipoise --help`, and the entry point of the script."""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer

from equipoise.cli.framework import CLOSED_PIPE, CommandGroup, configure_logging, flush_output

# Module of each command; only the module of the command that runs is imported.
COMMANDS = {
    "demo": "demo",
    "stats": "data",
    "split": "data",
    "plan": "fit",
    "fit": "fit",
    "update": "fit",
    "tune": "tune",
    "evaluate": "evaluate",
    "compare": "evaluate",
    "backtest": "backtest",
    "recommend": "recommend",
    "similar": "recommend",
    "explain": "recommend",
    "vectors": "recommend",
    "report": "report",
    "serve": "serve",
    "experiment": "serve",
    "replay": "serve",
    "store": "store",
    "doctor": "doctor",
    "datasets": "datasets",
}


@functools.cache
def import_command(name: str) -> Any:
    """Import the module of a command and return the command."""
    group = typer.main.get_group(import_module(f"equipoise.cli.{COMMANDS[name]}").app)
    command = group.commands.get(name, group)
    command.name = name
    return command


class LazyCommands(Mapping[str, Any]):
    """The commands by name, each imported on first lookup."""

    def __getitem__(self, name: str) -> Any:
        return import_command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class RootGroup(CommandGroup):
    """The group of all commands, in the order of the table."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help."""
        return list(COMMANDS)


app = typer.Typer(
    cls=RootGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: equipoise demo",
)


def _print_version(requested: bool) -> None:
    if requested:
        from equipoise import __version__

        typer.echo(f"equipoise {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Linear recommenders in balance: from a table of interactions to recommendations."""
    configure_logging()


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # Replace characters that the terminal's encoding lacks instead of failing.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="equipoise")
    finally:
        if flush_output():  # as in `equipoise recommend ... | head -1`
            sys.exit(CLOSED_PIPE)
