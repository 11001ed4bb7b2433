"""Columns of ids and of numbers, checked value by value."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError
from equipoise.matrix import lost_in_single
from equipoise.readers.table import BadRows

EXACT = 2.0**53  # from here on a float no longer tells neighbouring integers apart
NUMBER_WITH_COMMA = r"^[+-]?[0-9][0-9.,]*,[0-9.,]*$"
THOUSANDS = r"^[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+$"

A = {"user": "a user", "item": "an item"}


def id_column(column: pl.Series, axis: str, bad: BadRows) -> tuple[pl.Series, str]:
    """Return ids as Int64 or String, nulls only in rows that are skipped, and a note."""
    kind = column.dtype
    if isinstance(kind, (pl.Categorical, pl.Enum)):
        column, kind = column.cast(pl.String), pl.String()
    if kind.is_float():
        return _from_floats(column, axis, bad)
    if kind == pl.String:
        blank = column.str.contains(r"^\s*$").fill_null(True)
        if blank.any():
            bad.refuse(blank.to_numpy(), column.name, f"is an empty {axis} id", "fill it")
        return column, ""
    if kind == pl.Null:
        bad.refuse(np.ones(len(column), bool), column.name, f"is an empty {axis} id", "fill it")
        return column.cast(pl.String), ""
    if not kind.is_integer():
        raise DataError(
            f"column {column.name!r} holds {kind}, {axis} ids must be integers or text; convert it"
        )
    _refuse_empty(column, axis, bad)
    numbers = column.cast(pl.Int64, strict=False)
    if numbers.null_count() > column.null_count():
        too_big = (numbers.is_null() & column.is_not_null()).to_numpy()
        bad.refuse(too_big, column.name, f"is {A[axis]} id beyond 2^63", "give the ids as text")
    return numbers, ""


def _from_floats(column: pl.Series, axis: str, bad: BadRows) -> tuple[pl.Series, str]:
    """Accept floats that are exact integers, such as pandas makes of integers with gaps."""
    column = column.cast(pl.Float64).fill_nan(None)
    _refuse_empty(column, axis, bad)
    values = column.fill_null(0.0).to_numpy()
    with np.errstate(invalid="ignore"):
        broken = ~(values == np.floor(values)) | np.isinf(values)
    text = "give the ids as integers or text"
    bad.refuse(broken, column.name, f"is not a whole number, so not {A[axis]} id", text)
    large = (np.abs(values) >= EXACT) & ~broken
    reason = f"is {A[axis]} id in a float column beyond 2^53, where integers run together"
    bad.refuse(large, column.name, reason, text)
    whole = pl.Series(column.name, np.where(broken | large, 0, values).astype(np.int64))
    return whole, f"{axis} ids {column.name!r} were floats without fractions, now integers"


def _refuse_empty(column: pl.Series, axis: str, bad: BadRows) -> None:
    if column.null_count():
        missing = column.is_null().to_numpy()
        bad.refuse(missing, column.name, f"is an empty {axis} id", "fill it")


def number_column(column: pl.Series, role: str, bad: BadRows) -> pl.Series:
    """Return ratings or weights as floats; refuse empty, NaN, infinite and negative ones.

    The matrix is of single precision, so a weight must also lie between 1e-45 and 3e38 or be 0.
    """
    if not (column.dtype.is_numeric() or column.dtype in (pl.String, pl.Null, pl.Boolean)):
        raise DataError(
            f"column {column.name!r} holds {column.dtype}, a {role} must be a number; "
            f"pass {role}= with another column"
        )
    numbers = column.cast(pl.Float64) if column.dtype != pl.String else _from_text(column, bad)
    values = numbers.fill_null(float("nan")).to_numpy()
    if not (len(values) and values.min() >= 0 and values.max() < np.inf):  # NaN fails as well
        missing = is_missing(column)
        bad.refuse(missing, column.name, f"has no {role}", "fill it")
        bad.refuse(~np.isfinite(values) & ~missing, column.name, f"is not a finite {role}")
        bad.refuse(values < 0, column.name, f"is a negative {role}")
    if role == "weight":
        lost = lost_in_single(values)
        if lost.any():
            large, name = values > 1, column.name
            bad.refuse(lost & large, name, "is a weight beyond 3e38", "scale the weights down")
            bad.refuse(lost & ~large, name, "is a weight below 1e-45", "scale the weights up")
    return numbers


def is_missing(column: pl.Series) -> npt.NDArray[np.bool_]:
    """Mark the cells without a value; in text these are also the blank ones."""
    if column.dtype != pl.String:
        return column.is_null().to_numpy()
    return column.str.contains(r"^\s*$").fill_null(True).to_numpy()


def numbers_in_text(column: pl.Series, bad: BadRows) -> pl.Series:
    """Parse numbers as they are written in text, decimal commas included; the rest is null.

    A comma is a decimal one where it cannot be anything else: it does not separate the fields, no
    number of the column has a point, and not all could be thousands as in 1,234.
    """
    text = column.str.strip_chars()
    numbers = text.cast(pl.Float64, strict=False)
    comma = numbers.is_null() & text.str.contains(NUMBER_WITH_COMMA).fill_null(False)
    if not comma.any():
        return numbers
    remedy = "write the numbers with a decimal point"
    if not bad.table.decimal_comma or text.str.contains(r"\d\.\d").any():
        bad.refuse(comma.to_numpy(), column.name, "is a number with a comma", remedy)
        return numbers
    if text.filter(comma).str.contains(THOUSANDS).all():
        reason = "is a number whose comma may mean thousands or decimals"
        bad.refuse(comma.to_numpy(), column.name, reason, remedy)
        return numbers
    bad.table.notes.append(f"the commas in {column.name!r} are decimal commas")
    return text.str.replace(",", ".", literal=True).cast(pl.Float64, strict=False)


def _from_text(column: pl.Series, bad: BadRows) -> pl.Series:
    """Read text as a rating or weight: a number, or true and false as 1 and 0."""
    word = column.str.strip_chars().str.to_lowercase()
    flags = word.replace_strict(["true", "false"], [1.0, 0.0], default=None)
    return numbers_in_text(column, bad).fill_null(flags)
