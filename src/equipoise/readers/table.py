"""Tables on their way into `Interactions`: columns by name, rows that know their line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError
from equipoise.readers.options import OnBad

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
