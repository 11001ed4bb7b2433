"""Columns of ids and of numbers, checked value by value.

Times in any usual form to seconds since 1970, UTC.
"""

from __future__ import annotations

import datetime as dt

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError
from equipoise.matrix import lost_in_single
from equipoise.readers.options import TIME_UNITS, BadRows, TimeUnit

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


Seconds = npt.NDArray[np.float64]


# A value below the bound has the unit: 1e11 s is the year 5138, 1e11 ms is 1973.
BOUNDS = (1e11, 1e14, 1e17)


NAMES = ("seconds", "milliseconds", "microseconds", "nanoseconds")


SAMPLE = 10_000


ISO = r"^\d{4}-\d{2}-\d{2}"


def seconds(column: pl.Series, bad: BadRows, unit: TimeUnit | None = None) -> tuple[Seconds, str]:
    """Return the times and a sentence on how they were understood; refuse the wrong ones.

    Numbers are in the unit, or in the one that their size tells, which must be the same for all.
    """
    if column.dtype == pl.String:
        dated = column.str.contains(ISO).fill_null(False)
        if dated.any():
            return _from_dates(column, dated, bad)
        return _from_numbers(column, numbers_in_text(column, bad), bad, unit)
    if column.dtype.is_numeric():
        return _from_numbers(column, column, bad, unit)
    if column.dtype == pl.Date:
        column = column.cast(pl.Datetime("us"))
    if isinstance(column.dtype, pl.Datetime):
        values = _filled(column.dt.epoch("us").cast(pl.Float64) / 1e6)
        zone = column.dtype.time_zone
        _refuse(values, column, bad)
        return values, f"times {column.name!r} read as datetimes, {zone or 'taken as UTC'}"
    if column.dtype == pl.Null:
        values = np.full(len(column), np.nan)
        _refuse(values, column, bad)
        return values, ""
    raise DataError(
        f"column {column.name!r} holds {column.dtype}, not times; pass time= with another column "
        "or time=False"
    )


def _from_numbers(
    column: pl.Series, numbers: pl.Series, bad: BadRows, unit: TimeUnit | None
) -> tuple[Seconds, str]:
    values = _filled(numbers.cast(pl.Float64))
    _refuse(values, column, bad)
    power = _power(values, column, bad) if unit is None else TIME_UNITS.index(unit)
    if power:
        values /= 1000.0**power
    return values, f"times {column.name!r} read as {NAMES[power]} since 1970"


def _power(values: Seconds, column: pl.Series, bad: BadRows) -> int:
    """Tell the unit of the middle time, as a power of a thousand; refuse times of another unit."""
    usable = values if bad.mask is None else values[~bad.mask]
    if len(usable) and usable.min() <= 0:
        usable = usable[usable > 0]  # 0 is the same moment in all units
    if not len(usable):
        return 0
    sample = usable[:: len(usable) // SAMPLE + 1]  # spread over the column
    least, power, most = _powers([usable.min(), np.median(sample), usable.max()])
    if least == most:
        return int(power)
    powers = np.where(values > 0, _powers(values), power)
    remedy = f"bring all times to one unit, or pass time_unit={TIME_UNITS[power]!r} if they are"
    for other in set(range(len(NAMES))) - {power}:
        reason = f"would be {NAMES[other]} where most are {NAMES[power]}"
        bad.refuse(powers == other, column.name, reason, remedy)
    return int(power)


def _powers(values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    return np.searchsorted(BOUNDS, values, side="right")


def _from_dates(column: pl.Series, dated: pl.Series, bad: BadRows) -> tuple[Seconds, str]:
    text = column.set(~dated, None)
    moments = text.str.to_datetime(strict=False, time_zone="UTC", time_unit="us")
    left = moments.is_null() & dated
    values = _filled(moments.dt.epoch("us").cast(pl.Float64) / 1e6)
    if left.any():
        places = np.flatnonzero(left.to_numpy())
        values[places] = [_iso_seconds(value) for value in text.filter(left)]
    _refuse(values, column, bad)
    return values, f"times {column.name!r} read as ISO dates, UTC where no zone is given"


def _iso_seconds(text: str) -> float:
    try:
        moment = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        return float("nan")
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()


def _refuse(values: Seconds, column: pl.Series, bad: BadRows) -> None:
    if len(values) and values.min() >= 0 and values.max() < np.inf:
        return  # the usual case in two passes; NaN fails the first comparison
    missing = is_missing(column)
    bad.refuse(missing, column.name, "has no time", "fill it or pass time=False")
    remedy = "use seconds since 1970 or ISO dates, or pass time=False"
    bad.refuse(~np.isfinite(values) & ~missing, column.name, "is not a time", remedy)
    bad.refuse(values < 0, column.name, "is a negative time", remedy)


def _filled(column: pl.Series) -> Seconds:
    values: Seconds = column.fill_null(float("nan")).to_numpy()
    return values if values.flags.writeable else values.copy()
