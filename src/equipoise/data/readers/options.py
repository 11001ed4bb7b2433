"""Options of `read`, and the tables that readers work on.

A path, a frame or a research format becomes a `Source`; loading its columns gives a `Table`, which
can locate each row in the source for error messages (`BadRows`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import number, period
from equipoise.errors import DataError, SettingError

logger = logging.getLogger(__name__)

OnBad = Literal["error", "skip"]
TimeUnit = Literal["s", "ms", "us", "ns"]  # powers of a thousand
Column = str | int | None
OptionalColumn = str | int | bool | None  # False: leave the column alone even if it is there
Mask = npt.NDArray[np.bool_]
Locate = Callable[[int], str]

TIME_UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)
TIMES = ("time", "time_unit", "time_format")
COLUMNS = ("user", "item", *TIMES, "rating", "weight", "type", "session", "gap", "ids")
TABLES = ("csv", "tsv", "jsonl", "parquet", "xlsx")
ROLES = ("user", "item", "time", "rating", "weight", "type", "session", "title", "label_id")
TEXTS: tuple[str, ...] = (
    *("time_unit", "time_format", "ids", "separator", "quote", "escape", "encoding"),
    *("sheet", "format", "on_bad"),
)
NEEDED_BY = {"min_rating": "rating", "gap": "time", "time_unit": "time", "time_format": "time"}
RESEARCH = ("npz", "lightgcn", "multvae", "recbole", "movielens", "strong", "weak")
FORMATS = (*TABLES, "baskets", *RESEARCH)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The settings of one call of `equipoise.read`, whose docstring explains them.

    Labels are a `Source` here: `read` opens them.
    """

    user: Column = None
    item: Column = None
    time: OptionalColumn = None
    time_unit: TimeUnit | None = None
    time_format: str | None = None
    rating: OptionalColumn = None
    weight: Column = None
    type: OptionalColumn = None
    session: Column = None
    gap: float | str | None = None
    min_rating: float | None = None
    labels: Source | None = None
    label_id: Column = None
    title: Column = None
    ids: Literal["text"] | None = None
    users: Any = None
    items: Any = None
    separator: str | None = None
    header: bool | None = None
    quote: str | None = None
    escape: str | None = None
    encoding: str = "utf-8"
    sheet: str | None = None
    format: str | None = None
    on_bad: OnBad = "error"

    def __post_init__(self) -> None:
        """Raise on invalid or contradictory settings."""
        self._check_types()
        if self.on_bad not in ("error", "skip"):
            raise SettingError(f"on_bad must be 'error' or 'skip', got {self.on_bad!r}")
        known_values = (("format", FORMATS), ("time_unit", TIME_UNITS), ("ids", ("text",)))
        for name, known in known_values:
            value = getattr(self, name)
            if value is not None and value not in known:
                raise SettingError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if self.min_rating is not None:
            number("min_rating", self.min_rating)
        for name, column in NEEDED_BY.items():
            if getattr(self, name) is not None and getattr(self, column) is False:
                raise SettingError(f"{name} needs a {column} column, but {column} is False")
        if self.time_format is not None and self.time_unit is not None:
            raise SettingError(
                "time_format and time_unit exclude one another: times have a form or are numbers"
            )
        if self.gap is not None:
            period("gap", self.gap)
        if self.session is not None and self.gap is not None:
            raise SettingError("session and gap exclude one another: give the column or the pause")
        if self.session is not None and self.user is not None:
            raise SettingError("session takes the place of user; give only one of the two")
        if self.separator not in (None, "::") and len(self.separator.encode()) != 1:
            raise SettingError(f"separator must be one character or '::', got {self.separator!r}")
        for name in ("quote", "escape"):
            value = getattr(self, name)
            if value and (len(value) > 1 or not value.isascii() or value.isalnum()):
                raise SettingError(f"{name} must be one character or '' for none, got {value!r}")
        if self.escape and (self.quote == "" or self.escape == (self.quote or '"')):
            raise SettingError(
                "escape is of quotation marks within quoted fields and another character than "
                "quote; doubled marks need no escape"
            )
        try:
            "".encode(self.encoding)
        except LookupError as error:
            raise SettingError(f"encoding {self.encoding!r} is unknown; try 'latin-1'") from error

    def _check_types(self) -> None:
        """Raise on values of a wrong type; numpy integers become int."""
        for name in ROLES:
            value = getattr(self, name)
            if isinstance(value, np.integer):
                object.__setattr__(self, name, int(value))
            # True and False would be taken as positions 1 and 0
            elif isinstance(value, bool):
                if value or name not in ("time", "rating", "type"):
                    raise SettingError(f"{name} must be a column's name or position, got {value}")
            elif value is not None and not isinstance(value, (str, int)):
                raise SettingError(f"{name} must be a column's name or position, got {value!r}")
        for name in TEXTS:
            value = getattr(self, name)
            needed = name in ("encoding", "on_bad")
            if not isinstance(value, str) and (value is not None or needed):
                raise SettingError(f"{name} must be text, got {value!r}")
        if self.header is not None and not isinstance(self.header, (bool, np.bool_)):
            raise SettingError(f"header must be True or False, got {self.header!r}")

    def refuse_text(self, source: str, *, labels_are_file: bool) -> None:
        """Raise if options of text files are set for another source.

        `quote` and `escape` may be meant for a file of labels.
        """
        marks = () if labels_are_file else ("quote", "escape")
        self.refuse(("separator", *marks, "sheet", "format"), source)
        if self.header is not None:
            raise SettingError(f"header= does not apply to {source}; leave it out")

    def refuse(self, names: tuple[str, ...], source: str) -> None:
        """Raise if settings are given that do not apply to the source."""
        for name in names:
            value = getattr(self, name)
            if value is not None and value is not False:
                raise SettingError(f"{name}= does not apply to {source}; leave it out")


@dataclass
class Table:
    """Loaded columns, and the origin of each row."""

    frame: pl.DataFrame
    locate: Locate  # describes a row in a message, such as ``events.csv, line 17``
    skipped: Counter[str] = field(default_factory=Counter)  # rows left out, by reason
    notes: list[str] = field(default_factory=list)
    decimal_comma: bool = False  # whether a comma in a number may be decimal
    # returns a column of a text file as text, before conversion to integers
    written: Callable[[str], pl.Series] | None = None


@dataclass(frozen=True)
class Source:
    """A table whose columns are loaded on demand."""

    name: str  # for messages: a path, or "the frame"
    columns: tuple[str, ...]
    loader: Callable[[list[str], Collection[str]], Table]  # (columns, those that are ids)
    named: bool = True  # False for a file without a header
    dated: frozenset[str] = frozenset()  # columns of dates and times, if there is no header
    numbers: tuple[Any, ...] = ()  # column names that are numbers, as pandas allows

    def load(self, ids: Sequence[str], other_columns: Sequence[str]) -> Table:
        """Load columns of ids and other columns; duplicates are allowed."""
        return self.loader(list(dict.fromkeys([*ids, *other_columns])), ids)

    def renamed(self, names: tuple[str, ...]) -> Source:
        """Return the source with other column names, in the same order."""
        if len(names) != len(self.columns):
            raise DataError(f"{self.name} should have {len(names)} columns; check the file")
        old = dict(zip(names, self.columns, strict=True))

        def load(new_names: list[str], ids: Collection[str]) -> Table:
            table = self.loader([old[name] for name in new_names], [old[name] for name in ids])
            frame = table.frame.rename({old[name]: name for name in new_names})
            text = table.written
            written = None if text is None else lambda name: text(old[name]).alias(name)
            return replace(table, frame=frame, written=written)

        return Source(self.name, names, load)


def frame_source(
    name: str,
    frame: pl.DataFrame,
    locate: Locate | None = None,
    skipped: dict[str, int] | None = None,
) -> Source:
    """Make a source of a frame; by default rows are numbered from 1."""
    place = locate or row_of(name)
    return Source(
        name,
        tuple(frame.columns),
        lambda names, ids: Table(frame.select(names), place, Counter(skipped or {})),
    )


class BadRows:
    """Unusable rows: the first raises an error, or all are counted by reason (`on_bad`)."""

    def __init__(self, table: Table, on_bad: OnBad) -> None:
        self.table = table
        self.on_bad = on_bad
        self.counts = Counter(table.skipped)
        self.mask: Mask | None = None
        self.examples: dict[str, Any] = {}  # a bad value for each reason

    def refuse(self, wrong: Mask, column: str, reason: str, remedy: str = "correct it") -> None:
        """Report the rows under this mask; the reason is a clause such as "is negative"."""
        if not wrong.any():
            return
        if self.on_bad == "error":
            row = int(np.flatnonzero(wrong)[0])
            value = self.table.frame[column][row]
            shown = "" if value is None else f" ({value!r})"
            raise bad_row(self.table.locate(row), f"column {column!r}{shown} {reason}", remedy)
        fresh = wrong if self.mask is None else wrong & ~self.mask
        self.mask = wrong.copy() if self.mask is None else self.mask | wrong
        if fresh.any():
            full_reason = f"{column!r} {reason}"
            self.counts[full_reason] += int(fresh.sum())
            self.examples.setdefault(full_reason, self.table.frame[column][int(fresh.argmax())])

    def reasons(self) -> str:
        """Return the reasons why rows were left out, each with an example."""
        shown = Counter[str]()
        for reason, count in self.counts.items():
            value = self.examples.get(reason)
            shown[reason + (f", such as {value!r}" if value is not None else "")] = count
        return reasons_text(shown)


def skipped_notes(counts: Counter[str], name: str) -> list[str]:
    """Return a note on the skipped rows, also logged as a warning."""
    if not counts:
        return []
    total = counts.total()
    note = f"skipped {total:,} bad row{'s' if total > 1 else ''}: {reasons_text(counts)}"
    logger.warning("%s: %s", name, note)
    return [note]


def reasons_text(counts: Counter[str]) -> str:
    """Return the number of rows left out for each reason, most frequent first."""
    most_first = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return "; ".join(f"{count:,} where {reason}" for reason, count in most_first)


def bad_row(place: str, reason: str, remedy: str = "correct it") -> DataError:
    """Return the error for one bad row."""
    return DataError(f"{place}: {reason}; {remedy}, or pass on_bad='skip' to leave such rows out")


def refuse_or_note(stop: bool, error: str, name: str, note: str, notes: list[str]) -> None:
    """Raise the error if `stop`, else add a note and log it as a warning."""
    if stop:
        raise DataError(error)
    notes.append(note)
    logger.warning("%s: %s", name, note)


def row_of(name: str) -> Locate:
    """Return a `Table.locate` that numbers rows from 1."""
    return lambda row: f"{name}, row {row + 1}"


def located(sizes: Sequence[int], locate: Sequence[Locate]) -> Locate:
    """Return a `Table.locate` for concatenated parts of these sizes."""
    ends = np.cumsum(sizes)

    def place(row: int) -> str:
        part = int(np.searchsorted(ends, row, side="right"))
        return locate[part](row - int(ends[part]) + sizes[part])

    return place


def check_one_schema(files: Sequence[Path | str], columns: Sequence[Sequence[str]]) -> None:
    """Raise if parts have other columns than the first (the order may differ)."""
    for file, names in zip(files, columns, strict=True):
        if sorted(names) != sorted(columns[0]):
            raise DataError(
                f"{file} has the columns {', '.join(names)} where {files[0]} has "
                f"{', '.join(columns[0])}; parts need one schema"
            )
