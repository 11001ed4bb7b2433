"""What the columns of a catalogue are: categories, lists, words, numbers, dates or vectors.

The cells of a column show its kind (`understood`), unless the caller names it. Each kind has one
type of column: text, lists of text, numbers, dates or datetimes in UTC, arrays of single floats.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.data.columns import (
    BLANK,
    FORMS,
    ISO,
    NUMBER_WITH_COMMA,
    THOUSANDS,
    date_form,
    formed,
    iso_seconds,
    spelled_like,
    unit_power,
)
from equipoise.data.read_options import KINDS
from equipoise.data.tables import Table
from equipoise.errors import DataError

SAMPLE = 10_000  # cells that show what a column of text is
# What separates the values of a cell: how many of the cells have it, and how many different
# values there are at most for each different cell.
SEPARATORS = (("|", 0.1, np.inf), (";", 0.1, 1.0), (",", 0.3, 0.5))
LEADING_ZERO = r"^\s*[+-]?0[0-9]"
LISTED = r"^\s*\[.*\]\s*$"
DATE_WORDS = ("date", "time", "day", "publish", "releas", "creat", "launch")
OLDEST = 1e8  # a column of dates whose numbers are smaller does not hold seconds: 1973
WORDS = 3  # average words of a cell, from which on it is text if most cells differ
MANY_WORDS = 6  # and if they do not


def kind_of(column: pl.Series, *, is_title: bool = False) -> str:
    """Return what a column is as it stands: a name of `KINDS`."""
    dtype = column.dtype
    if dtype == pl.String:
        return "text" if is_title or _is_text(column) else "category"
    if dtype.is_numeric():
        return "number"
    if dtype == pl.Date or isinstance(dtype, pl.Datetime):
        return "date"
    if isinstance(dtype, (pl.List, pl.Array)):
        inner = dtype.inner
        return "vector" if isinstance(dtype, pl.Array) and inner.is_float() else "list"
    return "category" if dtype in (pl.Boolean, pl.Categorical, pl.Enum) else "other"


def _is_text(column: pl.Series) -> bool:
    """Whether the cells of a column are sentences or titles rather than names of a few things."""
    cells = column.drop_nulls().head(SAMPLE)
    if cells.is_empty():
        return False
    words = float(cells.str.count_matches(r"\S+").mean() or 0)  # type: ignore[arg-type]
    return words >= MANY_WORDS or (words >= WORDS and cells.n_unique() > len(cells) / 2)


def understood(
    column: pl.Series, declared: str | None, tables: Sequence[Table], is_title: bool
) -> tuple[pl.Series, str]:
    """Return a column with the type of its kind, and the kind: as declared or as it looks."""
    comma = any(table.decimal_comma for table in tables)
    if declared is not None:
        return _as_declared(column, declared, comma)
    dtype = column.dtype
    if dtype in (pl.Categorical, pl.Enum):
        column, dtype = column.cast(pl.String), pl.String()
    if isinstance(dtype, pl.Decimal):
        return column.cast(pl.Float64), "number"
    if is_title:
        return column, kind_of(column, is_title=True)
    if dtype == pl.String:
        return _from_text(column, comma)
    if dtype.is_numeric() and spelled_like((column.name,), "time"):
        moments = _from_numbers(column)
        n_numbers = column.cast(pl.Float64).fill_nan(None).count()
        # numbers beyond the range of dates are none
        is_date = moments is not None and moments.count() == n_numbers
        return (moments, "date") if moments is not None and is_date else (column, "number")
    if isinstance(dtype, pl.Datetime):
        return _utc(column), "date"
    if isinstance(dtype, (pl.List, pl.Array)):
        return _from_nested(column)
    return column, kind_of(column)


def _as_declared(column: pl.Series, declared: str, comma: bool) -> tuple[pl.Series, str]:
    """Convert a column to the kind that the caller named; cells that do not fit are an error."""
    name, nested = column.name, isinstance(column.dtype, (pl.List, pl.Array))
    if declared in ("category", "text"):
        if nested or column.dtype in (pl.Struct, pl.Binary, pl.Object):
            raise DataError(
                f"column {name!r} holds {column.dtype}, not {declared}; pass another kind"
            )
        return column.cast(pl.String), declared
    if declared == "list":
        lists = _listed(column) if nested else split_values(column.cast(pl.String))
        return lists, declared
    if declared == "vector":
        vectors = _vectors(column if nested else _parsed_lists(column.cast(pl.String), float))
        if vectors is None:
            raise DataError(
                f"column {name!r} does not hold vectors: each cell must be a list of numbers, "
                "all of the same length"
            )
        return vectors, declared
    if nested:
        raise DataError(f"column {name!r} holds {column.dtype}, not {declared}; pass another kind")
    out = _numbers(column, comma) if declared == "number" else _moments(column, declared)
    wrong = out.is_null() & ~_is_blank(column)
    if wrong.any():
        shown = column.filter(wrong)[0]
        raise DataError(
            f"column {name!r} of the catalogue: {shown!r} is not a {_described(declared)}; "
            "correct it or pass another kind"
        )
    return out, "number" if declared == "number" else "date"


def _described(declared: str) -> str:
    return declared if declared in KINDS else f"date of the form {declared}"


def _is_blank(column: pl.Series) -> pl.Series:
    if column.dtype != pl.String:
        return column.is_null() | (column.is_nan() if column.dtype.is_float() else False)
    return column.str.contains(BLANK).fill_null(True)


def _from_text(column: pl.Series, comma: bool) -> tuple[pl.Series, str]:
    """Tell what a column of text is from its cells: lists, numbers, dates, words or names."""
    column = column.set(_is_blank(column), None)
    filled = column.drop_nulls()
    if filled.is_empty():
        return column, "category"
    if filled.str.contains(LISTED).all():
        vectors = _vectors(_parsed_lists(column, float))
        if vectors is not None:
            return vectors, "vector"
        return _listed(_parsed_lists(column, str)), "list"
    if not filled.str.contains(LEADING_ZERO).any():
        numbers = _numbers(filled, comma)
        if not numbers.null_count():
            return _numbers(column, comma), "number"
    if filled.str.contains(ISO).all() and not _moments(filled, "date").null_count():
        return _moments(column, "date"), "date"
    if any(word in column.name.lower() for word in DATE_WORDS):
        form = _only_form(filled)
        if form is not None:
            return _moments(column, form), "date"
    flags = filled.str.strip_chars().str.to_lowercase()
    if flags.is_in(["true", "false"]).all():
        return column.str.strip_chars().str.to_lowercase().eq("true"), "category"
    separator = _separator(filled)
    if separator is not None:
        return split_values(column, separator), "list"
    return column, kind_of(column)


def _numbers(column: pl.Series, comma: bool) -> pl.Series:
    """Return numbers, null where a cell holds none; commas may be decimal in a file."""
    if column.dtype != pl.String:
        return column.cast(pl.Float64, strict=False) if column.dtype == pl.Boolean else column
    text = column.str.strip_chars()
    with_comma = text.filter(text.str.contains(NUMBER_WITH_COMMA))
    if comma and len(with_comma) and not with_comma.str.contains(THOUSANDS).all():
        text = text.str.replace(",", ".", literal=True)
    numbers = text.cast(pl.Float64, strict=False)
    integers = text.cast(pl.Int64, strict=False)
    return integers if integers.null_count() == numbers.null_count() else numbers


def _moments(column: pl.Series, declared: str) -> pl.Series:
    """Return dates and times, null where a cell holds none; `declared` is "date" or a form."""
    if column.dtype == pl.Date:
        return column
    if isinstance(column.dtype, pl.Datetime):
        return _utc(column)
    if column.dtype == pl.String and declared == "date":
        is_iso = column.str.contains(ISO).fill_null(False)
        if not is_iso.any():
            numbers = _numbers(column, comma=False)
            form = _only_form(column.filter(~_is_blank(column)))
            if numbers.count():
                return _moments(numbers, declared)
            if form is None:
                return pl.Series(column.name, [None] * len(column), dtype=pl.Datetime("us"))
            return _moments(column, form)
        return as_moments(column.name, iso_seconds(column, is_iso))
    if declared == "date":
        moments = _from_numbers(column, sure=True)
        assert moments is not None
        return moments
    text = column.cast(pl.String)
    if column.dtype.is_integer():
        longest = max(text.drop_nulls().str.len_chars().to_list(), default=0)
        text = text.str.zfill(longest)  # zeros that a column of numbers has lost
    return as_moments(column.name, formed(text, declared))


def _from_numbers(column: pl.Series, *, sure: bool = False) -> pl.Series | None:
    """Return numbers as times: dates in digits, or time since 1970; None if they seem neither."""
    values = column.cast(pl.Float64).fill_nan(None)
    filled = values.drop_nulls().to_numpy()
    form = date_form(filled)
    if form is not None:
        digits = values.cast(pl.Int64).cast(pl.String)
        return as_moments(column.name, formed(digits, form))
    if not sure and (not len(filled) or filled.min() < OLDEST):
        return None
    power = unit_power(filled) if len(filled) else 0
    seconds = values.to_numpy() / 1000.0**power
    return as_moments(column.name, seconds)


def as_moments(name: str, seconds: npt.NDArray[np.float64]) -> pl.Series:
    """Return times in seconds as datetimes in UTC, or as dates if all are midnights."""
    filled = pl.Series(name, seconds).fill_nan(None)
    moments = (filled * 1e6).round().cast(pl.Int64, strict=False).cast(pl.Datetime("us"))
    days = moments.cast(pl.Date)
    return days if (days.cast(pl.Datetime("us")) == moments).all() else moments


def _utc(column: pl.Series) -> pl.Series:
    zone = getattr(column.dtype, "time_zone", None)
    moments = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if zone else column
    return moments.cast(pl.Datetime("us"))


def _only_form(filled: pl.Series) -> str | None:
    """Return the form of dates in text if exactly one reads all cells."""
    shown = filled.unique(maintain_order=True).head(1000).str.strip_chars()
    first = shown.head(20)
    fit = [form for form in FORMS if len(first) and not np.isnan(formed(first, form)).any()]
    fit = [form for form in fit if not np.isnan(formed(shown, form)).any()]
    return fit[0] if len(fit) == 1 else None


def _separator(filled: pl.Series) -> str | None:
    """Return what separates several values in the cells of a column, if they have several."""
    cells = filled.head(SAMPLE)
    for separator, share, most in SEPARATORS:
        has_it = cells.str.contains(separator, literal=True)
        if not has_it.any() or has_it.mean() < share:  # type: ignore[operator]
            continue
        parts = cells.str.split(separator).explode().str.strip_chars()
        if (parts == "").any():
            continue
        if parts.n_unique() <= most * cells.n_unique():
            return separator
    return None


def split_values(column: pl.Series, separator: str | None = None) -> pl.Series:
    """Return the values of each cell as a list; null where a cell is blank.

    Without a separator, it is the most frequent one.
    """
    if separator is None:
        if not _is_blank(column).all() and column.drop_nulls().str.contains(LISTED).all():
            return _listed(_parsed_lists(column, str))
        counts = {mark: column.str.contains(mark, literal=True).sum() for mark, *_ in SEPARATORS}
        separator = max(counts, key=lambda mark: counts[mark])
    parts = column.set(_is_blank(column), None).str.split(separator)
    return _tidy(parts)


def _tidy(lists: pl.Series) -> pl.Series:
    """Return lists of text without blanks around values, empty values, repeats, empty lists."""
    values = pl.element().str.strip_chars()
    cells = pl.col(lists.name).list.eval(values.filter(values != ""))
    tidy = lists.to_frame().select(cells.list.unique(maintain_order=True))
    return tidy.select(pl.when(pl.all().list.len() > 0).then(pl.all())).to_series()


def _parsed_lists(column: pl.Series, kind: type) -> pl.Series:
    """Return the lists that cells such as "['a', 'b']" write; null where there is none."""

    def parse(cell: str | None) -> list[Any] | None:
        try:
            parsed = None if cell is None else ast.literal_eval(cell.strip())
            return [kind(value) for value in parsed] if isinstance(parsed, list) else None
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            if kind is float or cell is None:
                return None
            inner = cell.strip().removeprefix("[").removesuffix("]")
            return [part.strip().strip("'\"") for part in inner.split(",") if part.strip()]

    dtype = pl.List(pl.Float64 if kind is float else pl.String)
    return pl.Series(column.name, [parse(cell) for cell in column.to_list()], dtype=dtype)


def _from_nested(column: pl.Series) -> tuple[pl.Series, str]:
    inner = column.dtype.inner  # type: ignore[attr-defined]
    if inner.is_float():
        vectors = _vectors(column)
        return (column, "other") if vectors is None else (vectors, "vector")
    if inner.is_nested() or inner in (pl.Binary, pl.Object):
        return column, "other"
    return _listed(column), "list"


def _listed(column: pl.Series) -> pl.Series:
    """Return lists as lists of text."""
    lists = column.arr.to_list() if isinstance(column.dtype, pl.Array) else column
    return _tidy(lists.cast(pl.List(pl.String)))


def _vectors(column: pl.Series) -> pl.Series | None:
    """Return lists of numbers as vectors of one length; None if they are not."""
    if isinstance(column.dtype, pl.Array):
        if column.dtype.inner is None or not column.dtype.inner.is_numeric():
            return None
        return column.cast(pl.Array(pl.Float32, column.dtype.shape[0]))
    lists = column.cast(pl.List(pl.Float32), strict=False)
    sizes = lists.list.len().drop_nulls().unique()
    if len(sizes) != 1 or not sizes[0] or lists.explode().null_count() > lists.null_count():
        return None
    return lists.cast(pl.Array(pl.Float32, int(sizes[0])))
