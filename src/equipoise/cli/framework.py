"""Base of all commands: declaring options, printing, progress and error messages.

Tables and JSON go to stdout; notes, progress and errors to stderr.
"""

from __future__ import annotations

import copy
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

# consoles of the progress displays that run, whatever thread writes
live_consoles: list[Console] = []
# context of the command group that runs
current_context: ContextVar[Any] = ContextVar("current_context", default=None)

ID_FIELDS = ("user", "item", "sources")  # printed as text with --json
MOST_CHOICES = 16  # characters of the choices that are the placeholder of their option
PIPE_WIDTH = 1000  # columns where stdout is a file or a pipe: nothing is folded or cut
FIRST_NOTE = 2.0  # seconds before a running command prints its first progress line
REMINDER = 30.0  # seconds between progress lines without a terminal
CONFIRM_ABOVE = 600.0  # seconds of estimated time from which on a command asks first
FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130
CLOSED_PIPE = 141  # exit code of a shell for a program ended by SIGPIPE

# A setting as the library's messages name it: header=False, encoding='latin-1', separator=
SETTING = re.compile(r"""\b([a-z]\w*)=('[^']*'|"[^"]*"|True\b|False\b|-?\d[\w.]*\b|)""")
# a filter as the library's messages propose it
FILTER = re.compile(r"data\.filter\((\w+)=\.\.\.\)")
# a column that they ask for
COLUMN = re.compile(r"eq\.read\(\.\.\., (\w+)=\.\.\.\)")
# a cell with a number, perhaps with its unit or error: 1,234, 5.0%, 16 KB, 0.1 ± 0.01
NUMERIC = re.compile(r"-?$|(± )?[-+]?[\d.][\d,.e+-]*( ?(%|[^\W\d]+))?( ± [\d.]+)?$")

Report = Callable[[int, int], None]  # called with steps done and steps in all
Command = Callable[..., None]
Options = Mapping[str, tuple[str, str]]  # setting in Python -> its option and the negated option


def option(help: str, *names: str, panel: str | None = None) -> Any:
    """Declare an option, perhaps in a panel of the help text."""
    return typer.Option(*names, help=help, rich_help_panel=panel)


Json = Annotated[bool, option("Print one JSON document on stdout and nothing else.", "--json")]
Yes = Annotated[bool, option("Do not ask for confirmation of long runs.", "--yes", "-y")]
Saved = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that `equipoise fit` wrote.")]
Cluster = Annotated[
    str | None, option("Dask cluster to use: address of its scheduler, or local.", "--cluster")
]


class Printer(Console):
    """A console that raises on a closed pipe; `CommandGroup` handles it."""

    def on_broken_pipe(self) -> None:
        """Raise instead of exiting."""
        raise BrokenPipeError


def console(*, error: bool = False) -> Console:
    """Return a console for stdout or stderr, with a fixed width where there is no terminal.

    While a progress display runs, its console is that of stderr: text that another one wrote would
    leave parts of the display between the lines.
    """
    if error and live_consoles:
        return live_consoles[-1]
    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Printer(stderr=error, width=width, highlight=False, markup=False, emoji=False)


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

    JavaScript and jq would round integer ids above 2^53.
    """
    if isinstance(value, dict):
        plain = {str(key): as_json(entry) for key, entry in value.items()}
        return {key: _as_text(v) if key in ID_FIELDS else v for key, v in plain.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(entry) for entry in value]
    if hasattr(value, "tolist"):  # numpy arrays and numbers
        return as_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _as_text(ids: Any) -> Any:
    if isinstance(ids, list):
        return [_as_text(raw_id) for raw_id in ids]
    return str(ids) if isinstance(ids, int) else ids


def clean(text: Any) -> str:
    """Replace control characters, which could steer a terminal, by question marks."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in str(text))


def number(value: float) -> str:
    """Return a number for a table, such as "0.1250" or "1,234.5"."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"


def table(
    rows: Iterable[Iterable[Any]], *headings: str, best: Mapping[str, int] | None = None
) -> Table:
    """Return a table: numbers right-aligned, text left-aligned and wrapped; None is empty.

    The first column has names, which stay on one line. `best` gives a sign to headings of which
    the largest (1) or smallest (-1) value is bold. Text is printed literally, never as markup.
    """
    from rich.table import Table

    values = [list(row) for row in rows]
    cells = [[_cell(value) for value in row] for row in values]
    for column, name in enumerate(headings):
        if best and name in best and len(values) > 1:
            numbers = [row[column] for row in values]
            target = (max if best[name] > 0 else min)(numbers)
            for value, row in zip(numbers, cells, strict=True):
                row[column].stylize("bold" if value == target else "")
    out = Table(box=None, pad_edge=False, header_style="dim", show_header=bool(headings))
    out.padding = (0, 2, 0, 0)
    for column in range(len(headings) or len(cells[0])):
        heading = Text(clean(headings[column])) if headings else ""
        if all(NUMERIC.match(row[column].plain) for row in cells):
            out.add_column(heading, justify="right", no_wrap=True)
        else:
            out.add_column(heading, overflow="fold", no_wrap=column == 0)
    for row in cells:
        out.add_row(*row)
    return out


def _cell(value: Any) -> Text:
    if isinstance(value, Text):
        return value
    if value is None or isinstance(value, str):
        return Text(clean(value or ""))
    return Text(number(value))


def show(
    rows: Iterable[Iterable[Any]],
    *headings: str,
    title: str | None = None,
    best: Mapping[str, int] | None = None,
) -> None:
    """Print a table on stdout below an empty line and an optional title."""
    say()
    if title is not None:
        say(title, "bold")
    console().print(table(rows, *headings, best=best))


def show_periods(
    days: Iterable[str],
    values: Mapping[str, Iterable[float]],
    errors: Iterable[float | None] | None = None,
    title: str | None = None,
) -> None:
    """Print the values of models, the best bold: a row per period, their mean, and its errors.

    Models are the columns, since four of them fit into 80 columns and the dates of several
    periods do not.
    """
    of_models = {name: list(figures) for name, figures in values.items()}
    lines = dict(zip(days, zip(*of_models.values(), strict=True), strict=True))
    means = {name: [v for v in figures if v == v] for name, figures in of_models.items()}
    lines["mean"] = tuple(sum(v) / len(v) if v else math.nan for v in means.values())
    rows: list[list[Any]] = []
    for name, figures in lines.items():
        best = max((figure for figure in figures if figure == figure), default=None)
        cells = [Text(number(f), "bold" if f == best else "") for f in figures]
        rows.append([name, *cells])
    if errors is not None:
        rows.append(["± error", *(None if error is None else number(error) for error in errors)])
    show(rows, "period", *of_models, title=title)


VERDICTS = {"better": "green", "worse": "red", "no clear difference": "dim"}


def verdict_text(verdict: str) -> Text:
    """Return a verdict in its colour: green if it favours the model, yellow if it warns."""
    style = VERDICTS.get(verdict, "yellow" if verdict.startswith("do not") else "green")
    return Text(clean(verdict), style)


def legend(definitions: Mapping[str, str]) -> None:
    """Print the definitions of terms, one line each."""
    say()
    for term, definition in definitions.items():
        say(Text.assemble((term, "italic"), f": {definition}", style="dim"))


def size_text(size: float) -> str:
    """Return a number of bytes with its unit.

    >>> size_text(16_000), size_text(2.13e7), size_text(6.7e9)
    ('16 KB', '21 MB', '6.7 GB')
    """
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:,.2g} {unit}" if size < 10 else f"{size:,.0f} {unit}"


@contextmanager
def working(activity: str) -> Iterator[Report]:
    """Show progress on stderr: a spinner, or lines where there is no terminal."""
    show_progress = _spinner if sys.stderr.isatty() else _progress_lines
    with show_progress(clean(activity)) as report:
        yield report


@contextmanager
def _spinner(activity: str) -> Iterator[Report]:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(error=True), transient=True) as progress:
        task = progress.add_task(activity, total=None)

        def report(done: int, total: int) -> None:
            progress.update(task, description=f"{activity} {done / max(total, 1):.0%}")

        live_consoles.append(progress.console)
        try:
            yield report
        finally:
            live_consoles.pop()


@contextmanager
def _progress_lines(activity: str) -> Iterator[Report]:
    finished, share, start = threading.Event(), "", time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal share
        share = f", {done / max(total, 1):.0%} done"

    def remind() -> None:
        from equipoise.runtime.machine import duration

        pause = FIRST_NOTE
        while not finished.wait(pause):
            elapsed = f", {duration(time.monotonic() - start)} so far" if pause == REMINDER else ""
            note(f"{activity}{share}{elapsed} ...")
            pause = REMINDER

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        finished.set()
        thread.join()


def confirm_duration(seconds: float, activity: str, advice: Iterable[str], yes: bool) -> None:
    """Before a long run: print the estimated time and faster ways, and ask whether to continue.

    Continues without asking if `yes` or without a terminal.
    """
    if seconds < CONFIRM_ABOVE:
        return
    from equipoise.runtime.machine import duration

    note(f"{activity} takes about {duration(seconds)}", "yellow")
    for sentence in advice:
        note(f"  {sentence}")
    if yes:
        return
    if not is_terminal():
        note("continuing without confirmation, as there is no terminal")
    elif not typer.confirm("Continue?", err=True):
        note("cancelled; nothing was written")
        raise typer.Exit(FAILED)


def is_terminal() -> bool:
    """Return whether a question can be shown and answered."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class NoteHandler(logging.Handler):
    """Prints log records of the library on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message of a record."""
        note(record.getMessage(), "yellow" if record.levelno >= logging.WARNING else "dim")


def configure_logging() -> None:
    """Print the library's warnings, and the source and licence of its downloads."""
    logger = logging.getLogger("equipoise")
    if not any(isinstance(handler, NoteHandler) for handler in logger.handlers):
        logger.addHandler(NoteHandler())
        logger.propagate = False
    logging.getLogger("equipoise.data.datasets").setLevel(logging.INFO)
    # Commands print the readers' warnings from the notes of the data.
    logging.getLogger("equipoise.data.readers").setLevel(logging.ERROR)


class CommandGroup(TyperGroup):
    """A group of commands that reports errors of the user as one sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        current_context.set(ctx)
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
            flush_output()
            raise typer.Exit(CLOSED_PIPE) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            message, code = f"error: {where}{error.strerror or error}", FAILED
        except MemoryError:
            message, code = "error: out of memory; `equipoise plan` estimates what fits", FAILED
        note(translate_message(message), "red")
        raise typer.Exit(code)


def flush_output() -> bool:
    """Flush stdout and stderr; if a reader is gone, discard the text and return True."""
    closed = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # Python would report it again on exit
            closed = True
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
    return closed


def _suggestion(error: typer.BadParameter) -> str:
    """Suggest the nearest value of an option, if one is similar."""
    if "is not one of" not in error.message:
        return ""
    entered, *values = re.findall("'([^']*)'", error.message)
    plain = {value.replace("-", ""): value for value in values}
    matches = difflib.get_close_matches(entered.lower().replace("-", ""), plain, n=1, cutoff=0.5)
    return f" Did you mean {plain[matches[0]]!r}?" if matches else ""


def translate_message(text: str) -> str:
    """Rewrite settings in a message of the library as options of the running command."""
    context = current_context.get()
    return text if context is None else settings_to_options(text, _options_of(context))


def _options_of(context: Any) -> Options:
    """Return the options of the running command; `context` may be that of its group."""
    command = context.command
    if hasattr(command, "commands"):
        command = command.commands.get(context.invoked_subcommand, command)
    subcommands = getattr(command, "commands", {"": command})  # `datasets` has several
    return {
        parameter.name: (parameter.opts[0], *parameter.secondary_opts, "")[:2]
        for subcommand in subcommands.values()
        for parameter in subcommand.params
        if parameter.opts[0].startswith("-")
    }


def settings_to_options(text: str, options: Options) -> str:
    """Rewrite the settings in a sentence as command-line options.

    >>> known = {"on_bad": ("--on-bad", ""), "header": ("--header", "--no-header")}
    >>> settings_to_options("correct it, or pass on_bad='skip'; header=False if it is data", known)
    'correct it, or pass --on-bad skip; --no-header if it is data'
    >>> known = {"min_item": ("--min-item", "")}
    >>> settings_to_options("keep items with data.filter(min_item=...)", known)
    'keep items with --min-item'
    """

    def to_option(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        if name not in options:
            return match[0]
        yes, no = options[name]
        if value in ("True", ""):
            return yes
        if value == "False":
            return no or f"{yes} none"
        unquoted = value[1:-1] if value[0] in ("'", '"') else value
        return f"{yes} {shlex.quote(unquoted)}"

    return SETTING.sub(to_option, COLUMN.sub(r"\1=", FILTER.sub(r"\1=", text)))


def refuse_options(options: Any, reason: str, *allowed: str) -> None:
    """Raise if an option of a group was used that would have no effect."""
    for field in dataclasses.fields(options):
        if field.name not in allowed and getattr(options, field.name) != field.default:
            raise SettingError(f"{reason}: leave out {field.name}=")


def declare(app: typer.Typer, name: str, example: str) -> Callable[[Command], Command]:
    """Register a function as a command, with an example that ``--help`` shows and the tests run.

    A parameter of a dataclass type becomes one option per field, or those that its
    `command_options` returns; the function receives the dataclass.
    """

    def register(function: Command) -> Command:
        app.command(name, epilog=f"Example: {example}", no_args_is_help=False)(
            _expand_groups(function)
        )
        return function

    return register


def _group_options(group: Any) -> dict[str, tuple[Any, Any]]:
    """Return type and default of each option of a dataclass."""
    if hasattr(group, "command_options"):
        return dict(group.command_options())
    types = typing.get_type_hints(group, include_extras=True)
    return {field.name: (types[field.name], field.default) for field in dataclasses.fields(group)}


def _expand_groups(function: Command) -> Command:
    hints = typing.get_type_hints(function, include_extras=True)
    groups: dict[str, list[str]] = {}
    options: dict[str, tuple[Any, Any]] = {}  # type and default by name
    for name, parameter in inspect.signature(function).parameters.items():
        declared = {name: (hints[name], parameter.default)}
        if dataclasses.is_dataclass(hints[name]):
            declared = _group_options(hints[name])
            groups[name] = list(declared)
        if duplicates := options.keys() & declared.keys():
            raise TypeError(f"{function.__name__} declares {', '.join(duplicates)} twice")
        options |= declared

    @functools.wraps(function)
    def command(**values: Any) -> None:
        for name, fields in groups.items():
            values[name] = hints[name](**{field: values.pop(field) for field in fields})
        function(**values)

    command.__doc__ = _in_paragraphs(function.__doc__ or "")
    options = {name: (_with_choices(kind), default) for name, (kind, default) in options.items()}
    command.__annotations__ = {name: kind for name, (kind, _) in options.items()}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    return command


def _in_paragraphs(text: str) -> str:
    """Return a docstring with each paragraph on one line, so that help fills the terminal."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _with_choices(kind: Any) -> Any:
    """Return the type of an option whose help lists its choices, if they are long.

    As the placeholder of the option, long choices would be broken within their names.
    """
    if typing.get_origin(kind) is not Annotated:
        return kind
    declared, *extras = typing.get_args(kind)
    alternatives = (declared, *typing.get_args(declared))
    literals = [part for part in alternatives if typing.get_origin(part) is typing.Literal]
    names = [str(name) for part in literals for name in typing.get_args(part)]
    if len("|".join(names)) <= MOST_CHOICES:
        return kind
    described = []
    for extra in extras:
        if isinstance(extra, typer.models.OptionInfo):
            help, bracket, default = (extra.help or "").partition(" [")
            extra = copy.copy(extra)
            extra.metavar = "<name>"
            extra.help = f"{help.rstrip('.')}: {', '.join(names)}.{bracket}{default}"
        described.append(extra)
    return Annotated[declared, *described]
