"""A column of item attributes in the service, changed item by item where values change."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import moment
from equipoise.data.attributes import as_moments
from equipoise.data.catalogue import Catalogue, alike
from equipoise.errors import DataError, SettingError
from equipoise.ranking.attribute_index import AttributeCodes, AttributeIndex
from equipoise.ranking.rules import attribute_values, written_values
from equipoise.serve.new_items import as_parts

Mask = npt.NDArray[np.bool_]
# types of polars, by the type of all values that a store has of an attribute
KINDS: dict[Any, Any] = {
    str: pl.String,
    bool: pl.Boolean,
    int: pl.Int64,
    float: pl.Float64,
    list: pl.List(pl.String),
}


class Column:
    """An attribute of the items, followed by the new items, and the items by value.

    Parameters
    ----------
    base
        The values of the model's catalogue.
    stored
        Those of the store by position, which replace them.
    n_items
        Number of items of the model.
    """

    _numbers = itertools.count()

    def __init__(self, base: pl.Series, stored: Mapping[int, Any], n_items: int) -> None:
        self.number = next(self._numbers)  # part of keys of the cache
        self.series: pl.Series | None = with_values(base, stored)
        self._base, self._n_items = base, n_items
        self._kind = _kind_of_all(stored.values())
        if base.dtype != pl.Null and base.dtype != KINDS.get(self._kind):
            self._kind = None  # values of the store may be converted
        self._cells: list[Any] = self.series.head(n_items).to_list()

    @functools.cached_property
    def index(self) -> AttributeIndex:
        """The items by value, as rules name them."""
        return AttributeIndex(self._cells, written_values)

    @functools.cached_property
    def codes(self) -> AttributeCodes:
        """The values of each item as numbers."""
        return AttributeCodes(self._cells, attribute_values)

    @functools.cached_property
    def _by_filter(self) -> AttributeIndex:
        return AttributeIndex(self._cells, _filter_values)

    def mask(self, allowed: Sequence[Any]) -> Mask:
        """Return the items that have one of these values."""
        mask = np.zeros(self._n_items, np.bool_)
        for value in allowed:
            mask[self._by_filter.places.get(value, [])] = True
        return mask

    def changed(self, values: Mapping[int, Any], removed: Iterable[int]) -> Column | None:
        """Return the column with other values of the store; None if it has to be made anew.

        That is so where a value of another type might change how all values are kept. The new
        column has no series.
        """
        kinds = {_kind_of(value) for value in values.values() if value is not None}
        if self._kind is None or not kinds <= {self._kind}:
            return None
        cells = {place: self._base[place] for place in removed} | dict(values)
        cells = {place: cell for place, cell in cells.items() if place < self._n_items}
        new = Column.__new__(Column)
        vars(new).update(vars(self))
        new.number, new.series = next(self._numbers), None
        new._cells = self._cells.copy()
        for place, cell in cells.items():
            new._cells[place] = cell
        for name in ("index", "codes", "_by_filter"):
            if name in vars(self):
                vars(new)[name] = vars(self)[name].changed(cells)
        return new


def _kind_of(value: Any) -> Any:
    """Return the type of a value if it is one of `KINDS`; lists have to hold text only."""
    if isinstance(value, list) and (not value or not all(type(part) is str for part in value)):
        return None
    return type(value)


def _kind_of_all(values: Iterable[Any]) -> Any:
    """Return the common type of all values that are not missing; None if they differ."""
    kinds = {_kind_of(value) for value in values if value is not None}
    return kinds.pop() if len(kinds) == 1 else None


def _filter_values(cell: Any) -> list[Any]:
    return list(dict.fromkeys(plain_parts(json_value(cell))))


def plain_parts(value: Any) -> list[Any]:
    """Return the values of an attribute that JSON has, one or those of a list."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    return [part for part in parts if is_plain(part)]


def json_value(value: Any) -> Any:
    """Return dates as text and lists of text as they are; None for what JSON lacks."""
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, list):
        return value if all(isinstance(part, str) for part in value) else None
    return value if is_plain(value) else None


def is_plain(value: Any) -> bool:
    """Whether JSON has a value as it is."""
    return value is None or isinstance(value, (bool, int, float, str))


def stacked(known_items: Catalogue, name: str, n_items: int, n_new_items: int) -> pl.Series:
    """Return an attribute of the items, of the new items of a catalogue, and nulls for others."""
    empty = pl.Series(name, [None] * (n_items + n_new_items))
    if name not in known_items.frame.columns:
        return empty
    parts = [known_items.frame[name]]
    if known_items.new_items is not None:
        parts.append(known_items.new_items[name])
    column = pl.concat(parts)
    return column.extend(empty[len(column) :].cast(column.dtype))


def with_values(column: pl.Series, changes: Mapping[int, Any]) -> pl.Series:
    """Return a column with the values of a store at these places.

    Text is a date or a list where the column holds those; where the types differ, the column
    becomes one of type object.
    """
    if not changes:
        return column
    values: list[Any] = [None] * len(column)
    for place, value in changes.items():
        values[place] = value
    try:
        new = pl.Series(values)
        if new.dtype == pl.String and column.dtype.is_temporal():
            new = as_moments(column.name, np.array([_seconds(value) for value in values]))
        if isinstance(column.dtype, pl.List) and not isinstance(new.dtype, pl.List):
            new = pl.Series([as_parts(value) for value in values], dtype=column.dtype)
        old, new = alike(column, new.alias(column.name))
        is_changed = pl.Series(np.isin(np.arange(len(column)), list(changes)))
        return new.zip_with(is_changed, old)
    except (
        DataError,
        SettingError,
        TypeError,
        ValueError,
        OverflowError,
        pl.exceptions.PolarsError,
    ):
        cells = column.to_list()
        for place, value in changes.items():
            cells[place] = value
        return pl.Series(cells, dtype=pl.Object)


def _seconds(value: Any) -> float:
    return math.nan if value is None else moment("a date", value)
