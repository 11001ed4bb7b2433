"""Frames of pandas, polars and arrow, and plain Python lists, as sources of columns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import polars as pl

from equipoise.data.readers.options import Locate, ReadOptions, Source, Table, frame_source, row_of
from equipoise.errors import DataError

T = TypeVar("T")

MISSING = ("NAType", "NaTType")  # of pandas, which may not be installed


def is_frame(source: Any) -> bool:
    """Whether this is a frame of polars, pandas or arrow."""
    if isinstance(source, (pl.DataFrame, pl.LazyFrame)):
        return True
    import narwhals as nw

    return bool(nw.dependencies.is_into_dataframe(source))


def object_source(source: Any, name: str = "the frame") -> Source:
    """Turn a frame, a mapping of columns or a list of rows into a source."""
    if isinstance(source, Mapping):
        columns = {str(key): series(list(values), str(key)) for key, values in source.items()}
        if len({len(column) for column in columns.values()}) > 1:
            raise DataError(f"{name}: its columns have different lengths; make them equal")
        source = pl.DataFrame(columns)
    if isinstance(source, pl.DataFrame):
        return frame_source(name, source)
    if isinstance(source, pl.LazyFrame):
        return _lazy(source, name)
    if isinstance(source, (list, tuple)):
        return _rows(source)
    return _narwhals(source, name)


def _lazy(source: pl.LazyFrame, name: str) -> Source:
    def attempt(query: Callable[[], T]) -> T:
        try:
            return query()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise DataError(f"the lazy frame cannot be read: {error}; mend its query") from error

    def load(wanted: list[str], ids: Collection[str]) -> Table:
        return Table(attempt(source.select(wanted).collect), row_of(name))

    return Source(name, tuple(attempt(source.collect_schema).names()), load)


def _narwhals(source: Any, name: str) -> Source:
    import narwhals as nw

    try:
        frame: Any = nw.from_native(source)
    except TypeError:
        kind = type(source).__name__
        raise DataError(
            f"cannot read a {kind}; give a path, a frame (pandas, polars, arrow), a sparse matrix "
            "or a list of (user, item) pairs"
        ) from None
    except Exception as error:  # narwhals has its own errors, such as for repeated column names
        raise DataError(f"{name} cannot be read: {error}") from error

    def load(wanted: list[str], ids: Collection[str]) -> Table:
        chosen = frame.select(wanted)
        if isinstance(chosen, nw.LazyFrame):
            chosen = chosen.collect()
        columns = [_polars_column(chosen[column]) for column in chosen.columns]
        return Table(pl.DataFrame(columns), row_of(name))

    return Source(name, tuple(frame.collect_schema().names()), load)


def _polars_column(column: Any) -> pl.Series:
    if str(column.dtype) == "Object":  # pandas columns of Python objects, possibly of many kinds
        return series(column.to_list(), column.name)
    try:
        converted: pl.Series = column.to_polars()
    except ImportError:  # pandas without pyarrow
        return series(column.to_list(), column.name)
    return converted


def _rows(rows: Sequence[Any]) -> Source:
    if not rows:
        raise DataError("the list is empty; it needs at least one (user, item) pair")
    width = len(rows[0]) if isinstance(rows[0], (list, tuple)) else 0
    if not 2 <= width <= 4:
        raise DataError(
            "a list must hold (user, item) pairs, (user, item, weight) triples or "
            f"(user, item, weight, time) rows; the first row is {rows[0]!r}"
        )
    for number, row in enumerate(rows, 1):
        if not isinstance(row, (list, tuple)) or len(row) != width:
            raise DataError(f"the list, row {number}: {row!r} should have {width} values; mend it")
    names = ("user", "item", "weight", "time")
    columns = zip(names, zip(*rows, strict=True), strict=False)
    return frame_source("the list", pl.DataFrame([series(list(v), key) for key, v in columns]))


def row_options(source: Any, options: ReadOptions) -> ReadOptions:
    """Say what the third value of a list of rows is: the rating with `min_rating`, else weight."""
    is_rows = isinstance(source, (list, tuple)) and source and isinstance(source[0], (list, tuple))
    if not is_rows or len(source[0]) < 3 or options.weight is not None:
        return options
    if options.min_rating is None:
        return replace(options, weight="weight")
    return replace(options, rating="weight") if options.rating is None else options


def series(values: list[Any], name: str, locate: Locate | None = None) -> pl.Series:
    """Make a column of Python values; values of several kinds are refused, by row or place."""
    values = [None if type(value).__name__ in MISSING else value for value in values]
    kinds = {type(value) for value in values} - {type(None)}
    if float in kinds and str in kinds:  # pandas marks missing text by NaN
        values = [None if value != value else value for value in values]
        kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return pl.Series(name, [None] * len(values), dtype=pl.Null)
    if kinds <= {str, np.str_}:
        return pl.Series(name, [None if v is None else str(v) for v in values], dtype=pl.String)
    if all(issubclass(kind, (int, np.integer)) and kind is not bool for kind in kinds):
        try:
            whole = [None if value is None else int(value) for value in values]
            return pl.Series(name, whole, dtype=pl.Int64)
        except (OverflowError, TypeError, pl.exceptions.PolarsError) as error:
            message = f"column {name!r} holds integers beyond 2^63; give them as text"
            raise DataError(message) from error
    numbers = (int, float, np.integer, np.floating)
    if all(issubclass(kind, numbers) and kind is not bool for kind in kinds):
        floats = [None if value is None else float(value) for value in values]
        return pl.Series(name, floats, dtype=pl.Float64)
    if all(issubclass(kind, (dt.date, np.datetime64)) for kind in kinds):
        return pl.Series(name, values)
    present = [(row, value) for row, value in enumerate(values) if value is not None]
    first = type(present[0][1])
    row, value = next(((r, v) for r, v in present if type(v) is not first), present[0])
    place = f"{locate(row)}: column {name!r}" if locate else f"column {name!r}, row {row + 1}"
    raise DataError(
        f"{place}: {value!r} is of type {type(value).__name__}, earlier rows "
        f"are of type {first.__name__}; make the column all integers or all text"
    )
