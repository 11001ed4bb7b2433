"""How a command is declared: shared groups of options, an example that is tested, tidy errors."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from equipoise.cli.output import note
from equipoise.errors import EquipoiseError, SettingError

FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")
]
Command = Callable[..., None]


class Commands(TyperGroup):
    """A group of commands that turns what a user can cause into one sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            note("interrupted", "red")
            raise typer.Exit(INTERRUPTED) from None
        except SettingError as error:
            note(f"error: {error}", "red")
            raise typer.Exit(BAD_USAGE) from None
        except EquipoiseError as error:
            note(f"error: {error}", "red")
        except BrokenPipeError:
            raise
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            note(f"error: {where}{error.strerror or error}", "red")
        except MemoryError:
            note("error: the machine is out of memory; `equipoise plan` tells what fits", "red")
        raise typer.Exit(FAILED)


def declare(app: typer.Typer, name: str, example: str) -> Callable[[Command], Command]:
    """Register a function as a command.

    Parameters of a dataclass type are spread out into one option per field; the function gets the
    dataclass back.

    Parameters
    ----------
    app
        Where to register it.
    name
        Of the command.
    example
        A command line that works; shown by ``--help`` and run by the tests.
    """

    def register(function: Command) -> Command:
        app.command(name, epilog=f"Example: {example}", no_args_is_help=False)(_spread(function))
        return function

    return register


def _spread(function: Command) -> Command:
    hints = typing.get_type_hints(function, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            parameters.append(
                parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY)
            )
            continue
        groups[name] = kind
        types = typing.get_type_hints(kind, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=types[field.name],
            )
            for field in dataclasses.fields(kind)
        ]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        for name, kind in groups.items():
            fields = [field.name for field in dataclasses.fields(kind)]
            values[name] = kind(**{field: values.pop(field) for field in fields})
        function(**values)

    command.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(command)["__signature__"] = inspect.Signature(parameters)
    return command
