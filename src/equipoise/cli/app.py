"""All commands in the order of `equipoise --help`, and the entry point of the script."""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from equipoise.cli.framework import CLOSED_PIPE, CommandGroup, configure_logging, flush_output

# Module and summary of each command; only the module of the command that runs is imported.
COMMANDS = {
    "demo": ("demo", "Compare EASE with and without dropout and DAN on MovieLens 100K."),
    "stats": ("data", "Describe data: size, density, Gini, homophily; one row per DATA."),
    "split": ("data", "Split data into train, valid and test."),
    "plan": ("fit", "Estimate memory, operations and time of a fit without running it."),
    "fit": ("fit", "Fit a model and save it; uses the train part of a saved split."),
    "update": ("fit", "Add and remove interactions; the result equals a full refit."),
    "tune": ("tune", "Search hyper-parameters; writes model, trials and frontier plot."),
    "evaluate": ("evaluate", "Evaluate a saved model, or one fitted with --model, on a split."),
    "compare": ("evaluate", "Test per user whether results differ from the first, the baseline."),
    "recommend": ("recommend", "Recommend items to training users or for any history."),
    "similar": ("recommend", "List the items most similar to one item, or to every item."),
    "explain": ("recommend", "Show how much each item of a history adds to an item's score."),
    "report": ("report", "Write a self-contained HTML report on data and models."),
    "serve": (
        "serve",
        "Serve recommendations over HTTP, from live events, with a page to try them on.",
    ),
    "experiment": (
        "serve",
        "Compare the models of an experiment by the clicks on their lists.",
    ),
    "doctor": ("doctor", "Show versions, BLAS, memory, GPU, extras and cache; run a self-test."),
    "datasets": ("datasets", "List, show and fetch named data sets."),
}


@functools.cache
def import_command(name: str) -> Any:
    """Import the module of a command and return the command."""
    module, _ = COMMANDS[name]
    group = typer.main.get_group(import_module(f"equipoise.cli.{module}").app)
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
    """The group of all commands; its help shows their summaries without importing them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a placeholder with the summary of a command."""
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that was called."""
        name, placeholder, arguments = super().resolve_command(ctx, args)
        return name, self.commands.get(name, placeholder), arguments


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
