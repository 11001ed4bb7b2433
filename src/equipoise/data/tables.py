"""Tables that readers work on: sources of columns, from frames, lists or files.

A path, a frame or a research format becomes a `Source`; loading its columns gives a `Table`, which
can locate each row in the source for error messages (`BadRows`).
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.data.read_options import OnBad, ReadOptions
from equipoise.errors import DataError

logger = logging.getLogger(__name__)

Mask = npt.NDArray[np.bool_]
Locate = Callable[[int], str]
T = TypeVar("T")

NUMBERS = (int, float, np.integer, np.floating, Decimal, Fraction)
MISSING = ("NAType", "NaTType")  # of pandas, which may not be installed


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
    # returns the number of rows of each file, if the table is of several
    heights: Callable[[], Sequence[int]] | None = None


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


def row_of(name: str, first: int = 0) -> Locate:
    """Return a `Table.locate` that numbers rows from 1, after `first` rows."""
    return lambda row: f"{name}, row {first + row + 1}"


def located(sizes: Sequence[int], locate: Sequence[Locate]) -> Locate:
    """Return a `Table.locate` for concatenated parts of these sizes."""
    ends = np.cumsum(sizes)

    def place(row: int) -> str:
        part = int(np.searchsorted(ends, row, side="right"))
        return locate[part](row - int(ends[part]) + sizes[part])

    return place


def check_one_schema(files: Sequence[str], columns: Sequence[Sequence[str]]) -> None:
    """Raise if parts have other columns than the first (the order may differ)."""
    for file, names in zip(files, columns, strict=True):
        if sorted(names) != sorted(columns[0]):
            raise DataError(
                f"{file} has the columns {', '.join(names)} where {files[0]} has "
                f"{', '.join(columns[0])}; parts need the same columns"
            )


def is_frame(source: Any) -> bool:
    """Whether this is a frame of polars, pandas or arrow."""
    if isinstance(source, (pl.DataFrame, pl.LazyFrame)):
        return True
    import narwhals as nw

    return bool(nw.dependencies.is_into_dataframe(source))


def object_source(source: Any, name: str = "the frame") -> Source:
    """Turn a frame, a mapping of columns or a list of rows into a source."""
    if isinstance(source, Mapping):
        columns = {str(key): _column(values, str(key)) for key, values in source.items()}
        if len({len(column) for column in columns.values()}) > 1:
            raise DataError(
                f"{name}: its columns have different lengths; make them equal, as in "
                "{'user': [1, 1], 'item': ['a', 'b']}, or give a list of (user, item) pairs"
            )
        source = pl.DataFrame(columns)
    if isinstance(source, pl.DataFrame):
        return frame_source(name, source)
    if isinstance(source, pl.LazyFrame):
        return _lazy(source, name)
    if isinstance(source, (list, tuple)):
        return _rows(source)
    return _narwhals(source, name)


def _column(values: Any, name: str) -> pl.Series:
    """Return a column of a mapping; text, sets and mappings are not lists of values.

    The rows of a two-dimensional array are the values of its column.
    """
    if isinstance(values, np.ndarray) and values.ndim == 2 and values.dtype.kind in "fiu":
        return pl.Series(name, values, dtype=pl.Array(_number_type(values), values.shape[1]))
    listed = isinstance(values, Iterable) and not isinstance(
        values, (str, bytes, bytearray, Mapping, Set)
    )
    if listed and getattr(values, "ndim", 1) == 1:
        return series(list(values), name)
    raise DataError(
        f"column {name!r} must be a list of values, got {values!r}; a table is such as "
        "{'user': [1, 1], 'item': ['a', 'b']}"
    )


def _number_type(values: npt.NDArray[Any]) -> type[pl.Float32 | pl.Float64 | pl.Int64]:
    if values.dtype.kind != "f":
        return pl.Int64
    return pl.Float32 if values.dtype.itemsize <= 4 else pl.Float64


def _lazy(source: pl.LazyFrame, name: str) -> Source:
    def attempt(query: Callable[[], T]) -> T:
        try:
            return query()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise DataError(
                f"the lazy frame cannot be read: {error}; correct its query"
            ) from error

    def load(names: list[str], ids: Collection[str]) -> Table:
        return Table(attempt(source.select(names).collect), row_of(name))

    return Source(name, tuple(attempt(source.collect_schema).names()), load)


def _narwhals(source: Any, name: str) -> Source:
    import narwhals as nw

    source, numbers = _with_text_names(source, name)
    try:
        frame: Any = nw.from_native(source)
    except TypeError:
        kind = type(source).__name__
        also = "; list(...) makes one" if isinstance(source, Iterable) else ""
        raise DataError(
            f"cannot read a {kind}; give a path, a frame (pandas, polars, arrow), a sparse matrix "
            f"or a list of (user, item) pairs{also}"
        ) from None
    except Exception as error:  # narwhals has its own errors, such as for repeated column names
        raise DataError(f"{name} cannot be read: {error}; convert it first") from error

    def load(names: list[str], ids: Collection[str]) -> Table:
        chosen = frame.select(names)
        if isinstance(chosen, nw.LazyFrame):
            chosen = chosen.collect()
        columns = [_polars_column(chosen[column]) for column in chosen.columns]
        return Table(pl.DataFrame(columns), row_of(name))

    names = tuple(frame.collect_schema().names())
    is_named = not numbers or numbers != tuple(range(len(names)))
    return Source(name, names, load, is_named, numbers=numbers)


def _with_text_names(source: Any, name: str) -> tuple[Any, tuple[int, ...]]:
    """Return a frame with text column names, and the names that were integers.

    pandas accepts any object as a name, and numbers the columns of a file without a header.
    """
    if not (hasattr(source, "columns") and hasattr(source, "set_axis")):
        return source, ()
    names = list(source.columns)
    if all(isinstance(label, str) for label in names):
        return source, ()
    if any(isinstance(label, tuple) for label in names):
        raise DataError(
            f"{name} has columns of several levels, such as {names[0]!r}; name them by text: "
            "frame.columns = ['_'.join(map(str, levels)) for levels in frame.columns]"
        )
    renamed = source.set_axis([str(label) for label in names], axis=1)
    return renamed, tuple(int(label) for label in names if isinstance(label, (int, np.integer)))


def _polars_column(column: Any) -> pl.Series:
    if str(column.dtype) == "Object":  # pandas columns of Python objects, possibly of many kinds
        return series(column.to_list(), column.name)
    try:
        converted: pl.Series = column.to_polars()
    # pandas without pyarrow, or types that arrow or polars do not have, such as sparse ones
    except (Exception, pl.exceptions.PanicException):
        return series(column.to_list(), column.name)
    return converted


def _rows(rows: Sequence[Any]) -> Source:
    if not rows:
        raise DataError("the list is empty; it needs at least one (user, item) pair")
    if all(isinstance(row, Mapping) for row in rows):
        keys = dict.fromkeys(str(key) for row in rows for key in row)
        return object_source({key: [row.get(key) for row in rows] for key in keys}, "the list")
    width = len(rows[0]) if isinstance(rows[0], (list, tuple)) else 0
    if not 2 <= width <= 4:
        raise DataError(
            "a list must hold (user, item) pairs, (user, item, weight) triples or "
            f"(user, item, weight, time) rows; the first row is {rows[0]!r}"
        )
    for number, row in enumerate(rows, 1):
        if not isinstance(row, (list, tuple)) or len(row) != width:
            raise DataError(
                f"the list, row {number}: {row!r} should have {width} values; correct it"
            )
    names = ("user", "item", "weight", "time")
    columns = zip(names, zip(*rows, strict=True), strict=False)
    return frame_source("the list", pl.DataFrame([series(list(v), key) for key, v in columns]))


def row_options(source: Any, options: ReadOptions) -> ReadOptions:
    """Use the third value of a list of rows as rating if `min_rating` is set, else as weight."""
    is_rows = isinstance(source, (list, tuple)) and source and isinstance(source[0], (list, tuple))
    if not is_rows or len(source[0]) < 3 or options.weight is not None:
        return options
    if options.min_rating is None:
        return replace(options, weight="weight")
    return replace(options, rating="weight") if options.rating is None else options


def series(values: list[Any], name: str, locate: Locate | None = None) -> pl.Series:
    """Make a column of Python values; mixed types are an error that names the row."""
    values = [None if type(value).__name__ in MISSING else value for value in values]
    kinds = {type(value) for value in values} - {type(None)}
    if float in kinds and str in kinds:  # pandas marks missing text by NaN
        values = [None if value != value else value for value in values]
        kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return pl.Series(name, [None] * len(values), dtype=pl.Null)
    if kinds <= {str, np.str_}:
        try:
            return pl.Series(name, [None if v is None else str(v) for v in values], pl.String)
        except UnicodeEncodeError as error:
            raise DataError(
                f"column {name!r} holds {error.object!r}, which is not valid Unicode; correct it"
            ) from error
    if kinds <= {bool, np.bool_}:
        return pl.Series(name, [None if v is None else bool(v) for v in values], pl.Boolean)
    if all(issubclass(kind, (int, np.integer)) and kind is not bool for kind in kinds):
        try:
            integers = [None if value is None else int(value) for value in values]
            return pl.Series(name, integers, dtype=pl.Int64)
        except (OverflowError, TypeError, pl.exceptions.PolarsError) as error:
            message = f"column {name!r} holds integers beyond 2^63; give them as text"
            raise DataError(message) from error
    if all(issubclass(kind, NUMBERS) and kind is not bool for kind in kinds):
        try:
            floats = [None if value is None else float(value) for value in values]
        except OverflowError as error:
            raise DataError(f"column {name!r} holds a number beyond 1e308; scale it") from error
        return pl.Series(name, floats, dtype=pl.Float64)
    if all(issubclass(kind, (dt.date, np.datetime64)) for kind in kinds):
        return _moments(values, name)
    if kinds <= {list, tuple, set, frozenset, np.ndarray}:
        return _lists(values, name)
    present = [(row, value) for row, value in enumerate(values) if value is not None]
    first = type(present[0][1])
    if len(kinds) == 1:
        raise DataError(
            f"column {name!r} holds values of type {first.__name__}, such as {present[0][1]!r}; "
            "convert them to numbers, text or dates"
        )
    row, value = next(((r, v) for r, v in present if type(v) is not first), present[0])
    place = f"{locate(row)}: column {name!r}" if locate else f"column {name!r}, row {row + 1}"
    raise DataError(
        f"{place}: {value!r} is of type {type(value).__name__}, earlier rows "
        f"are of type {first.__name__}; make the column all integers or all text"
    )


def _lists(values: list[Any], name: str) -> pl.Series:
    """Make a column of lists, whose values have one type."""
    lists = [None if cell is None else list(cell) for cell in values]
    flat = series([value for cell in lists if cell is not None for value in cell], name)
    if flat.dtype.is_nested():
        raise DataError(f"column {name!r} holds lists of lists; convert them to lists of values")
    sizes = [None if cell is None else len(cell) for cell in lists]
    ends = np.cumsum([size or 0 for size in sizes])
    cells = [
        None if n is None else flat[end - n : end] for n, end in zip(sizes, ends, strict=True)
    ]
    return pl.Series(name, cells, dtype=pl.List(flat.dtype))


def _moments(values: list[Any], name: str) -> pl.Series:
    """Make a column of dates and times; times without a time zone are UTC."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {dt.date}:
        return pl.Series(name, values, dtype=pl.Date)

    def in_utc(value: Any) -> dt.datetime | None:
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[us]").item()
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return dt.datetime(value.year, value.month, value.day)
        if value is None or value.tzinfo is None:
            return value  # type: ignore[no-any-return]
        return value.astimezone(dt.UTC).replace(tzinfo=None)  # type: ignore[no-any-return]

    try:
        moments = [in_utc(value) for value in values]
        return pl.Series(name, moments, dtype=pl.Datetime("us"))
    except (AttributeError, OverflowError, ValueError) as error:
        raise DataError(
            f"column {name!r} holds a time that is out of range ({error}); correct it"
        ) from error
