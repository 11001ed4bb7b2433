"""All commands in the order of `equipoise --help`, and the entry point of the script."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from equipoise.cli.framework import CLOSED_PIPE, Commands, discard_unwritten, hear_the_library

# Module and summary of each command, in the order of the help: only the one that runs is imported.
COMMANDS = {
    "demo": ("demo", "Fit EASE with and without dropout and DAN on MovieLens 100K, side by side."),
    "stats": (
        "data",
        "Describe data: size, density, Gini, homophily and more; one row for each DATA.",
    ),
    "split": ("data", "Cut data into train, valid and test."),
    "plan": (
        "fit",
        "Tell what a fit would cost before anything is allocated: memory, operations, time.",
    ),
    "fit": ("fit", "Fit a model and save it; of a saved split the train part is used."),
    "update": (
        "fit",
        "Add and remove interactions without a new fit; the result equals one.",
    ),
    "tune": ("tune", "Search settings; OUT gets model, trials and frontier plot."),
    "evaluate": (
        "evaluate",
        "Evaluate a saved model on a split, or one that is fitted in place with --model.",
    ),
    "compare": (
        "evaluate",
        "Test user by user whether models differ; the first result is the baseline.",
    ),
    "recommend": (
        "recommend",
        "Recommend items to training users, or to any user with a history.",
    ),
    "similar": (
        "recommend",
        "List the items that most follow from one item alone, or from each item of the catalogue.",
    ),
    "explain": ("recommend", "Tell what each item of a history adds to the score of an item."),
    "report": (
        "report",
        "Write one self-contained page: statistics, accuracy, the dial, exposure, users.",
    ),
    "serve": (
        "serve",
        "Answer over HTTP: recommendations from live events, and a page to try them on.",
    ),
    "experiment": (
        "serve",
        "Compare the models of an experiment by the clicks on their lists.",
    ),
    "doctor": (
        "doctor",
        "Show versions, BLAS, threads, memory, GPU, extras, cache, and run a short self-test.",
    ),
    "datasets": ("datasets", "List, show and fetch named data sets."),
}


class Loaded(Mapping[str, Any]):
    """The commands by name; one is imported when it is looked up."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            module, _ = COMMANDS[name]
            group = typer.main.get_group(import_module(f"equipoise.cli.{module}").app)
            self._found[name] = group.commands.get(name, group)
            self._found[name].name = name
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Everything(Commands):
    """The group of all commands; its help shows their summaries and imports none of them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = Loaded()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return what the help shows of a command."""
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that was called, and import it."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, self.commands.get(name, found), rest


app = typer.Typer(
    cls=Everything,
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


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # A title that the terminal's encoding lacks is no reason to fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="equipoise")
    finally:
        if discard_unwritten():  # as in `equipoise recommend ... | head -1`
            sys.exit(CLOSED_PIPE)
