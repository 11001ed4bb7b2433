"""How a command is declared: shared groups of options, an example that is tested, tidy errors."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from equipoise.cli.output import note
from equipoise.errors import EquipoiseError, SettingError

FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")
]
Saved = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that `equipoise fit` wrote.")]
Command = Callable[..., None]


def option(help: str, *names: str, panel: str | None = None) -> Any:
    """Declare an option, perhaps in a panel of the help text."""
    return typer.Option(*names, help=help, rich_help_panel=panel)


class Commands(TyperGroup):
    """A group of commands that turns what a user can cause into one sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            message, code = "interrupted", INTERRUPTED
        except SettingError as error:
            message, code = f"error: {error}", BAD_USAGE
        except EquipoiseError as error:
            message, code = f"error: {error}", FAILED
        except BrokenPipeError:
            raise
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            message, code = f"error: {where}{error.strerror or error}", FAILED
        except MemoryError:
            message = "error: the machine is out of memory; `equipoise plan` tells what fits"
            code = FAILED
        note(message, "red")
        raise typer.Exit(code)


def declare(app: typer.Typer, name: str, example: str) -> Callable[[Command], Command]:
    """Register a function as a command, with an example that ``--help`` shows and the tests run.

    A parameter of a dataclass type is spread out into an option per field; the function gets the
    dataclass back.
    """

    def register(function: Command) -> Command:
        app.command(name, epilog=f"Example: {example}", no_args_is_help=False)(_spread(function))
        return function

    return register


def _spread(function: Command) -> Command:
    hints = typing.get_type_hints(function, include_extras=True)
    groups: dict[str, list[str]] = {}
    options: dict[str, tuple[Any, Any]] = {}  # type and default by name
    for name, parameter in inspect.signature(function).parameters.items():
        if not dataclasses.is_dataclass(hints[name]):
            options[name] = hints[name], parameter.default
            continue
        types = typing.get_type_hints(hints[name], include_extras=True)
        fields = {field.name: field.default for field in dataclasses.fields(hints[name])}
        groups[name] = list(fields)
        options |= {field: (types[field], default) for field, default in fields.items()}

    @functools.wraps(function)
    def command(**values: Any) -> None:
        for name, fields in groups.items():
            values[name] = hints[name](**{field: values.pop(field) for field in fields})
        function(**values)

    command.__annotations__ = {name: kind for name, (kind, _) in options.items()}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    return command
