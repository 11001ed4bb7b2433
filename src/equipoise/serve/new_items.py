"""Items that the service was told about, as rows of a model's catalogue.

The attributes in the store are JSON of any kind. A model with `Features` lists an item by those
that its catalogue has; a value that does not have the kind of its column is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from equipoise.checks import moment
from equipoise.data.attributes import as_moments, split_values
from equipoise.errors import SettingError
from equipoise.models import Recommender

Attributes = Mapping[str, Mapping[str, Any]]  # by item


def described_items(model: Recommender, stored: Attributes) -> dict[str, Mapping[str, Any]]:
    """Return the items that a model without them can list by their attributes; none without any.

    These are items that nobody in the training data used, with an attribute of its catalogue.
    """
    catalogue = model.data_.known_items
    if getattr(model, "features", None) is None or catalogue is None or not stored:
        return {}
    names = set(catalogue.frame.columns)
    items = [item for item, values in stored.items() if not names.isdisjoint(values)]
    places = model.data_.item_index.positions(items, unknown="skip").tolist() if items else []
    return {item: stored[item] for item, place in zip(items, places, strict=True) if place < 0}


def add_described(model: Recommender, stored: Attributes) -> None:
    """Give a model with features the attributes that its catalogue has a column for."""
    catalogue = model.data_.known_items
    if getattr(model, "features", None) is None or catalogue is None or not stored:
        return
    columns = {
        name: _as_column(name, [values.get(name) for values in stored.values()], dtype, kind)
        for (name, dtype), kind in zip(
            catalogue.frame.schema.items(), catalogue.kinds.values(), strict=True
        )
    }
    key = "item"
    while key in columns:
        key += "_id"
    # ids of another type than those of the model name none of its items
    frame = pl.DataFrame({key: list(stored), **columns}, schema_overrides={key: pl.String})
    model.add_items(frame, id=key)  # type: ignore[attr-defined]


def _as_column(name: str, cells: list[Any], dtype: Any, kind: str) -> pl.Series:
    """Return cells as a column of a catalogue, null where a cell is not of the kind."""
    if isinstance(dtype, pl.Array):
        width = dtype.shape[0]
        vectors = [_vector(cell, width) for cell in cells]
        return pl.Series(name, vectors, dtype=pl.Array(pl.Float32, width))
    if kind == "date":
        times = np.array([math.nan if cell is None else _seconds(cell) for cell in cells])
        return as_moments(name, times).cast(dtype)
    if kind == "list":
        lists = [as_parts(cell) for cell in cells]
        return pl.Series(name, lists, dtype=pl.List(pl.String))
    if kind == "number":
        numbers = pl.Series(name, [_number(cell) for cell in cells], dtype=pl.Float64)
        is_whole = dtype.is_integer() and (numbers == numbers.floor()).all()
        return numbers.cast(dtype, strict=False) if is_whole else numbers
    if dtype == pl.Boolean:
        return pl.Series(name, [c if isinstance(c, bool) else None for c in cells], pl.Boolean)
    return pl.Series(name, [_text(cell) for cell in cells], dtype=pl.String)


def _vector(cell: Any, width: int) -> list[float] | None:
    numbers = [_number(part) for part in cell] if isinstance(cell, list) else []
    is_whole = len(numbers) == width and None not in numbers
    return [float(number) for number in numbers if number is not None] if is_whole else None


def _number(cell: Any) -> float | None:
    if isinstance(cell, bool) or cell is None:
        return None
    try:
        number = float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _seconds(cell: Any) -> float:
    try:
        return moment("a date", cell)
    except SettingError:
        return math.nan


def as_parts(cell: Any) -> list[str] | None:
    """Return the values of a cell: those of a list, or of text with marks between them."""
    if isinstance(cell, list):
        return [str(part) for part in cell if part is not None] or None
    if cell is None:
        return None
    parts: list[str] | None = split_values(pl.Series([str(cell)]), "|").to_list()[0]
    return parts


def _text(cell: Any) -> str | None:
    if cell is None or isinstance(cell, list):
        return None
    return str(cell)
