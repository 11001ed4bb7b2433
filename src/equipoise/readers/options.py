"""What a caller asks of a reader, checked once at the border.

Tables on their way into `Interactions`: columns by name, rows that know their line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError, SettingError

OnBad = Literal["error", "skip"]


Column = str | int | None


OptionalColumn = str | int | bool | None  # False: leave the column alone even if it is there


TimeUnit = Literal["s", "ms", "us", "ns"]


TIME_UNITS: tuple[TimeUnit, ...] = ("s", "ms", "us", "ns")  # powers of a thousand


COLUMNS = ("user", "item", "time", "time_unit", "rating", "weight", "session", "gap")


FORMATS = (
    "csv",
    "tsv",
    "jsonl",
    "parquet",
    "npz",
    "lightgcn",
    "multvae",
    "recbole",
    "movielens",
    "strong",
    "weak",
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of one call of `equipoise.read`; its docstring explains each."""

    user: Column = None
    item: Column = None
    time: OptionalColumn = None
    time_unit: TimeUnit | None = None
    rating: OptionalColumn = None
    weight: Column = None
    session: Column = None
    gap: float | str | None = None
    min_rating: float | None = None
    labels: Any = None
    users: Any = None
    items: Any = None
    separator: str | None = None
    header: bool | None = None
    encoding: str = "utf-8"
    format: str | None = None
    on_bad: OnBad = "error"

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing or contradict one another."""
        if self.on_bad not in ("error", "skip"):
            raise SettingError(f"on_bad must be 'error' or 'skip', got {self.on_bad!r}")
        if self.format is not None and self.format not in FORMATS:
            known = ", ".join(FORMATS)
            raise SettingError(f"format must be one of {known}, got {self.format!r}")
        if self.min_rating is not None and not np.isfinite(self.min_rating):
            raise SettingError(f"min_rating must be a finite number, got {self.min_rating}")
        if self.min_rating is not None and self.rating is False:
            raise SettingError("min_rating needs a rating column, but rating is False")
        if self.time_unit is not None and self.time_unit not in TIME_UNITS:
            known = ", ".join(TIME_UNITS)
            raise SettingError(f"time_unit must be one of {known}, got {self.time_unit!r}")
        for name in ("gap", "time_unit"):
            if getattr(self, name) is not None and self.time is False:
                raise SettingError(f"{name} needs a time column, but time is False")
        if self.session is not None and self.gap is not None:
            raise SettingError("session and gap exclude one another: give the column or the pause")
        if self.session is not None and self.user is not None:
            raise SettingError("session takes the place of user; give only one of the two")
        if self.separator not in (None, "::") and len(self.separator.encode()) != 1:
            raise SettingError(f"separator must be one character or '::', got {self.separator!r}")
        try:
            "".encode(self.encoding)
        except LookupError as error:
            raise SettingError(f"encoding {self.encoding!r} is unknown; try 'latin-1'") from error

    def refuse(self, names: tuple[str, ...], source: str) -> None:
        """Refuse settings that the source cannot follow, rather than ignore them."""
        for name in names:
            value = getattr(self, name)
            if value is not None and value is not False:
                raise SettingError(f"{name}= does not apply to {source}; leave it out")


logger = logging.getLogger(__name__)


Mask = npt.NDArray[np.bool_]


@dataclass
class Table:
    """Columns that were loaded, and where each row came from.

    Parameters
    ----------
    frame
        The columns asked for.
    locate
        Names a row for an error message, such as ``events.csv, line 17``.
    skipped
        Rows that were already left out while parsing, by reason.
    notes
        Sentences for `Interactions.notes`.
    decimal_comma
        Whether a comma within a number can only be a decimal one: no comma separates the fields.
    written
        Returns a column of a text file as it is written, before integers were recognised.
    """

    frame: pl.DataFrame
    locate: Callable[[int], str]
    skipped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    decimal_comma: bool = False
    written: Callable[[str], pl.Series] | None = None


@dataclass(frozen=True)
class Source:
    """Something with named columns that can be loaded.

    Parameters
    ----------
    name
        How error messages call it: a path, or "the frame".
    columns
        The names of all its columns.
    load
        Loads the columns of ids (first argument) and the other ones (second argument).
    named
        False when the columns have no names of their own: a file without a header, a list.
    """

    name: str
    columns: tuple[str, ...]
    load: Callable[[Sequence[str], Sequence[str]], Table]
    named: bool = True

    def renamed(self, names: tuple[str, ...]) -> Source:
        """Give the columns other names, in the same order."""
        old = dict(zip(names, self.columns, strict=True))
        new = dict(zip(self.columns, names, strict=True))

        def load(ids: Sequence[str], others: Sequence[str]) -> Table:
            table = self.load([old[name] for name in ids], [old[name] for name in others])
            frame = table.frame.rename({name: new[name] for name in table.frame.columns})
            text = table.written
            written = None if text is None else lambda name: text(old[name]).alias(name)
            return replace(table, frame=frame, written=written)

        return Source(self.name, names, load)


class BadRows:
    """Rows that cannot be used: the first is an error, or all are counted by reason.

    Parameters
    ----------
    table
        The table the rows belong to.
    on_bad
        "error" or "skip".
    """

    def __init__(self, table: Table, on_bad: OnBad) -> None:
        self.table = table
        self.on_bad = on_bad
        self.counts = dict(table.skipped)
        self.mask: Mask | None = None

    def refuse(self, wrong: Mask, column: str, reason: str, remedy: str = "correct it") -> None:
        """Deal with the rows under this mask; the reason is a clause such as "is negative"."""
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
            key = f"{column!r} {reason}"
            self.counts[key] = self.counts.get(key, 0) + int(fresh.sum())

    def notes(self, name: str) -> list[str]:
        """Return a sentence on what was skipped, which is also logged as a warning."""
        if not self.counts:
            return []
        total = sum(self.counts.values())
        reasons = "; ".join(f"{count:,} where {reason}" for reason, count in self.counts.items())
        note = f"skipped {total:,} bad row{'s' if total > 1 else ''}: {reasons}"
        logger.warning("%s: %s", name, note)
        return [note]


def bad_row(place: str, reason: str, remedy: str = "correct it") -> DataError:
    """Return the error for one bad row."""
    return DataError(f"{place}: {reason}; {remedy}, or pass on_bad='skip' to leave such rows out")


def row_of(name: str) -> Callable[[int], str]:
    """Return a `Table.locate` for sources without lines; rows are counted from 1."""
    return lambda row: f"{name}, row {row + 1}"


def located(sizes: Sequence[int], locate: Sequence[Callable[[int], str]]) -> Callable[[int], str]:
    """Return a `Table.locate` for parts of these sizes, one after another."""
    ends = np.cumsum(sizes)

    def place(row: int) -> str:
        part = int(np.searchsorted(ends, row, side="right"))
        return locate[part](row - int(ends[part]) + sizes[part])

    return place


def added(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    """Add up what was skipped in each part, by reason."""
    total: dict[str, int] = {}
    for each in counts:
        for reason, count in each.items():
            total[reason] = total.get(reason, 0) + count
    return total


def other_columns(
    name: str, columns: Sequence[str], first: str, expected: Sequence[str]
) -> DataError:
    """Return the error for a part whose columns are not those of the first."""
    return DataError(
        f"{name} has the columns {', '.join(columns)} where {first} has {', '.join(expected)}; "
        "parts need one schema"
    )
