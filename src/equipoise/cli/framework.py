"""What all commands share: how they are declared and how they print.

A command has groups of options, an example that is tested, and tidy errors. Tables and JSON go to
stdout; notes, progress and errors to stderr.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import json
import logging
import math
import os
import re
import shlex
import sys
import threading
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from equipoise.errors import EquipoiseError, SettingError

if TYPE_CHECKING:
    from rich.table import Table

running: ContextVar[Any] = ContextVar("running", default=None)  # the group's context

QUOTES = ("'", '"')
ID_FIELDS = ("user", "item", "sources")  # in the documents that commands print with --json
WIDTH = 1000  # where stdout is a file or a pipe, nothing is folded or cut


PATIENCE = 2.0  # seconds before a silent command says what it does


LONG = 600.0  # seconds from which on a command asks first


REMINDER = 30.0  # seconds between the lines of a long one without a terminal


# A setting as the library's messages name it: header=False, encoding='latin-1', separator=
SETTING = re.compile(r"""\b([a-z]\w*)=('[^']*'|"[^"]*"|True\b|False\b|-?\d[\w.]*\b|)""")


# how the library's messages say to leave out items or users
FILTER = re.compile(r"data\.filter\((\w+)=\.\.\.\)")


NUMERIC = re.compile(r"[-+]?[\d.]|-?$")

Report = Callable[[int, int], None]


class Printer(Console):
    """A console that leaves a closed pipe to `Commands`, as everything else that is written."""

    def on_broken_pipe(self) -> None:
        """Pass the error on."""
        raise BrokenPipeError


def console(*, error: bool = False) -> Console:
    """Return a console for stdout or stderr, with a fixed width where there is no terminal."""
    stream = sys.stderr if error else sys.stdout
    fixed = None if stream.isatty() else WIDTH
    return Printer(stderr=error, width=fixed, highlight=False, markup=False, emoji=False)


def say(text: str | Text = "", style: str | None = None) -> None:
    """Print a line on stdout."""
    console().print(clean(text) if isinstance(text, str) else text, style=style)


def note(text: str, style: str = "dim") -> None:
    """Print a remark on stderr."""
    console(error=True).print(clean(text), style=style, soft_wrap=True)


def emit(value: Any) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(as_json(value), indent=2, allow_nan=False) + "\n")


def as_json(value: Any) -> Any:
    """Return plain values: arrays as lists, NaN and infinities as null, ids as text.

    Ids are the fields `ID_FIELDS`. As numbers they would be rounded above 2^53 by JavaScript, jq
    and other readers of JSON.
    """
    if isinstance(value, dict):
        plain = {str(key): as_json(part) for key, part in value.items()}
        return {k: _as_text(part) if k in ID_FIELDS else part for k, part in plain.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(part) for part in value]
    if hasattr(value, "tolist"):  # numpy arrays and numbers
        return as_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _as_text(ids: Any) -> Any:
    """Return an id, or a list of ids, as text."""
    if isinstance(ids, list):
        return [_as_text(each) for each in ids]
    return str(ids) if isinstance(ids, int) else ids


def clean(text: Any) -> str:
    """Return text that cannot steer a terminal: control characters become question marks."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in str(text))


def number(value: float) -> str:
    """Return a number for a table, such as "0.1250" or "1,234.5"."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"


def table(rows: Iterable[Iterable[Any]], *headings: str) -> Table:
    """Return a table: columns of numbers to the right, text to the left and folded where narrow.

    Texts are taken literally, never as markup; None is an empty cell.
    """
    from rich.table import Table

    cells = [[_cell(value) for value in row] for row in rows]
    out = Table(box=None, pad_edge=False, header_style="dim", show_header=bool(headings))
    out.padding = (0, 2, 0, 0)
    for place in range(len(headings) or len(cells[0])):
        heading = Text(clean(headings[place])) if headings else ""
        if all(NUMERIC.match(row[place].plain) for row in cells):
            out.add_column(heading, justify="right", no_wrap=True)
        else:
            out.add_column(heading, overflow="fold")
    for row in cells:
        out.add_row(*row)
    return out


def _cell(value: Any) -> Text:
    if isinstance(value, Text):
        return value
    if value is None or isinstance(value, str):
        return Text(clean(value or ""))
    return Text(number(value))


def show(rows: Iterable[Iterable[Any]], *headings: str, title: str | None = None) -> None:
    """Print a table on stdout, with a line of space and perhaps a title above."""
    say()
    if title is not None:
        say(title, "bold")
    console().print(table(rows, *headings))


def legend(words: Mapping[str, str]) -> None:
    """Print what the words of a table mean, one line each."""
    say()
    for word, meaning in words.items():
        say(Text.assemble((word, "italic"), f": {meaning}", style="dim"))


def size_text(size: float) -> str:
    """Return a number of bytes in words.

    >>> size_text(16_000), size_text(2.13e7), size_text(6.7e9)
    ('16 KB', '21 MB', '6.7 GB')
    """
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:,.2g} {unit}" if size < 10 else f"{size:,.0f} {unit}"


@contextmanager
def working(what: str) -> Iterator[Report]:
    """Say on stderr what takes long: a spinner, or lines where there is no terminal."""
    with _spinner(clean(what)) if sys.stderr.isatty() else _lines(what) as report:
        yield report


@contextmanager
def _spinner(text: str) -> Iterator[Report]:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(error=True), transient=True) as progress:
        task = progress.add_task(text, total=None)

        def report(done: int, total: int) -> None:
            progress.update(task, description=f"{text} {done / max(total, 1):.0%}")

        yield report


@contextmanager
def _lines(what: str) -> Iterator[Report]:
    finished, share, start = threading.Event(), "", time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal share
        share = f", {done / max(total, 1):.0%} done"

    def remind() -> None:
        from equipoise.runtime.machine import duration

        pause = PATIENCE
        while not finished.wait(pause):
            passed = f", {duration(time.monotonic() - start)} so far" if pause == REMINDER else ""
            note(f"{what}{share}{passed} ...")
            pause = REMINDER

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        finished.set()
        thread.join()


def agree(seconds: float, what: str, advice: Iterable[str], yes: bool) -> None:
    """Say how long a work takes, if that is long, and what is shorter; ask whether to go on.

    Without a terminal, or where the answer was given beforehand, it goes on.
    """
    if seconds < LONG:
        return
    from equipoise.runtime.machine import duration

    note(f"{what} takes about {duration(seconds)}", "yellow")
    for sentence in advice:
        note(f"  {sentence}")
    if yes:
        return
    if not is_terminal():
        note("going on without asking, as there is no terminal")
        return
    if not typer.confirm("Go on?", err=True):
        note("nothing was done")
        raise typer.Exit(FAILED)


def is_terminal() -> bool:
    """Whether a question can be shown and answered."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class NoteHandler(logging.Handler):
    """Passes what the library logs on to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message of a record."""
        note(record.getMessage(), "yellow" if record.levelno >= logging.WARNING else "dim")


def hear_the_library() -> None:
    """Show the library's warnings, and the origin and licence of what it downloads."""
    logger = logging.getLogger("equipoise")
    if not any(isinstance(handler, NoteHandler) for handler in logger.handlers):
        logger.addHandler(NoteHandler())
        logger.propagate = False
    logging.getLogger("equipoise.data.datasets").setLevel(logging.INFO)
    # What a reader skipped is in the notes of the data, which commands print themselves.
    logging.getLogger("equipoise.data.readers").setLevel(logging.ERROR)


FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130
CLOSED_PIPE = 141  # as the shell reports a program that such a pipe ended

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")
]


Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Go on without asking, however long it takes.")
]


Saved = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that `equipoise fit` wrote.")]


Command = Callable[..., None]


def option(help: str, *names: str, panel: str | None = None) -> Any:
    """Declare an option, perhaps in a panel of the help text."""
    return typer.Option(*names, help=help, rich_help_panel=panel)


Cluster = Annotated[
    str | None, option("Let a Dask cluster work: its scheduler's address, or local.", "--cluster")
]


class Commands(TyperGroup):
    """A group of commands that turns what a user can cause into one sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        running.set(ctx)
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message += _suggestion(error)
            raise
        except KeyboardInterrupt:
            message, code = "interrupted", INTERRUPTED
        except SettingError as error:
            message, code = f"error: {error}", BAD_USAGE
        except EquipoiseError as error:
            message, code = f"error: {error}", FAILED
        except BrokenPipeError:
            discard_unwritten()
            raise typer.Exit(CLOSED_PIPE) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            message, code = f"error: {where}{error.strerror or error}", FAILED
        except MemoryError:
            message = "error: the machine is out of memory; `equipoise plan` tells what fits"
            code = FAILED
        note(told(message), "red")
        raise typer.Exit(code)


def discard_unwritten() -> bool:
    """Flush stdout and stderr; where a reader is gone, discard the text and return True."""
    closed = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # Python would report it once more when it ends
            closed = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
    return closed


def _suggestion(error: typer.BadParameter) -> str:
    """Return which of the values of an option was probably meant, where one is near."""
    if "is not one of" not in error.message:
        return ""
    given, *values = re.findall("'([^']*)'", error.message)
    plain = {value.replace("-", ""): value for value in values}
    near = difflib.get_close_matches(given.lower().replace("-", ""), plain, n=1, cutoff=0.5)
    return f" Did you mean {plain[near[0]]!r}?" if near else ""


Options = Mapping[str, tuple[str, str]]  # a setting's name in Python: its option, and the opposite


def told(text: str) -> str:
    """Return a sentence of the library in the words of the command that runs."""
    ctx = running.get()
    return text if ctx is None else in_options(text, options_of(ctx))


def options_of(ctx: Any) -> Options:
    """Return the options of the command that runs, which `ctx` may be the group of."""
    command = ctx.command
    if hasattr(command, "commands"):
        command = command.commands.get(ctx.invoked_subcommand, command)
    inner = getattr(command, "commands", {"": command})  # `datasets` has commands of its own
    return {
        parameter.name: (parameter.opts[0], *parameter.secondary_opts, "")[:2]
        for each in inner.values()
        for parameter in each.params
        if parameter.opts[0].startswith("-")
    }


def in_options(text: str, options: Options) -> str:
    """Say the settings in a sentence as options of a command.

    >>> known = {"on_bad": ("--on-bad", ""), "header": ("--header", "--no-header")}
    >>> in_options("correct it, or pass on_bad='skip'; header=False if it is data", known)
    'correct it, or pass --on-bad skip; --no-header if it is data'
    >>> in_options("keep items with data.filter(min_item=...)", {"min_item": ("--min-item", "")})
    'keep items with --min-item'
    """

    def option(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name not in options:
            return found[0]
        yes, no = options[name]
        if value in ("True", ""):
            return yes
        if value == "False":
            return no or f"{yes} none"
        return f"{yes} {shlex.quote(value[1:-1] if value[0] in QUOTES else value)}"

    return SETTING.sub(option, FILTER.sub(r"\1=", text))


def refuse_given(options: Any, why: str, *allowed: str) -> None:
    """Refuse options of a group that would have no effect: all but those allowed."""
    for field in dataclasses.fields(options):
        if field.name not in allowed and getattr(options, field.name) != field.default:
            raise SettingError(f"{why}: leave out {field.name}=")


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
        found = {name: (hints[name], parameter.default)}
        if dataclasses.is_dataclass(hints[name]):
            types = typing.get_type_hints(hints[name], include_extras=True)
            fields = dataclasses.fields(hints[name])
            found = {field.name: (types[field.name], field.default) for field in fields}
            groups[name] = list(found)
        if twice := options.keys() & found.keys():  # one of the two would never get its value
            raise TypeError(f"{function.__name__} declares {', '.join(twice)} twice")
        options |= found

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
