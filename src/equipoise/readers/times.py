"""Times in any usual form to seconds since 1970, UTC."""

from __future__ import annotations

import datetime as dt

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError
from equipoise.readers.table import BadRows

Seconds = npt.NDArray[np.float64]
# A middle value below the bound has the unit: 1e11 s is the year 5138, 1e11 ms is 1973.
UNITS = (
    (1e11, "seconds", 1.0),
    (1e14, "milliseconds", 1e3),
    (1e17, "microseconds", 1e6),
    (np.inf, "nanoseconds", 1e9),
)
SAMPLE = 10_000
ISO = r"^\d{4}-\d{2}-\d{2}"


def seconds(column: pl.Series, bad: BadRows) -> tuple[Seconds, str]:
    """Return the times and a sentence on how they were understood; refuse the wrong ones."""
    if column.dtype == pl.String:
        numbers = column.cast(pl.Float64, strict=False)
        if numbers.null_count() > column.null_count():
            return _from_text(column, numbers, bad)
        return _from_numbers(column, numbers, bad)
    if column.dtype.is_numeric():
        return _from_numbers(column, column, bad)
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


def _from_numbers(column: pl.Series, numbers: pl.Series, bad: BadRows) -> tuple[Seconds, str]:
    values = _filled(numbers.cast(pl.Float64))
    _refuse(values, column, bad)
    usable = values[np.isfinite(values) & (values >= 0)] if bad.mask is not None else values
    sample = usable[:: len(usable) // SAMPLE + 1]  # spread over the column; enough for a unit
    middle = float(np.median(sample)) if len(sample) else 0.0
    _, unit, scale = next(entry for entry in UNITS if middle < entry[0])
    note = f"times {column.name!r} read as {unit} since 1970"
    if scale != 1:
        values /= scale
    return values, note


def _from_text(column: pl.Series, numbers: pl.Series, bad: BadRows) -> tuple[Seconds, str]:
    dated = column.str.contains(ISO).fill_null(False)
    text = column.set(~dated, None)
    if not dated.any():
        # Numbers with a few words among them: the words are what is wrong.
        return _from_numbers(column, numbers, bad)
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
    missing = column.is_null().to_numpy()
    bad.refuse(missing, column.name, "has no time", "fill it or pass time=False")
    remedy = "use seconds since 1970 or ISO dates, or pass time=False"
    bad.refuse(~np.isfinite(values) & ~missing, column.name, "is not a time", remedy)
    bad.refuse(values < 0, column.name, "is a negative time", remedy)


def _filled(column: pl.Series) -> Seconds:
    values: Seconds = column.fill_null(float("nan")).to_numpy()
    return values if values.flags.writeable else values.copy()
