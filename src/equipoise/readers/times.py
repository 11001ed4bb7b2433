"""Times in any usual form to seconds since 1970, UTC."""

from __future__ import annotations

import datetime as dt

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError
from equipoise.readers.options import TIME_UNITS, TimeUnit
from equipoise.readers.table import BadRows
from equipoise.readers.values import is_missing, numbers_in_text

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
