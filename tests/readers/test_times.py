"""Times in every usual form become seconds since 1970, UTC."""

from __future__ import annotations

import datetime as dt

import polars as pl
import pytest

import equipoise as eq
from equipoise.errors import DataError

MOMENT = 1_700_000_000.0  # 2023-11-14T22:13:20Z


def times(values: list[object], **settings: object) -> list[float]:
    frame = {"user": list(range(len(values))), "item": list(range(len(values))), "time": values}
    return eq.read(pl.DataFrame(frame), **settings).times.tolist()


@pytest.mark.parametrize(
    ("scale", "unit"),
    [(1, "seconds"), (10**3, "milliseconds"), (10**6, "microseconds"), (10**9, "nanoseconds")],
)
@pytest.mark.parametrize("kind", [int, float, str])
def test_the_unit_of_numbers_is_told_by_their_size(scale, unit, kind):
    values = [kind(1_700_000_000 * scale), kind(1_700_000_060 * scale)]
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 2], "when": values})
    data = eq.read(frame, time="when")
    assert data.times.tolist() == [MOMENT, MOMENT + 60]
    assert f"times 'when' read as {unit} since 1970" in data.notes


@pytest.mark.parametrize(
    "text",
    [
        "2023-11-14T22:13:20Z",
        "2023-11-14 22:13:20",
        "2023-11-14T22:13:20.000",
        "2023-11-14T23:13:20+01:00",
        "2023-11-14T17:13:20-0500",
    ],
)
def test_iso_text_is_understood(text):
    assert times([text, text]) == [MOMENT, MOMENT]


def test_iso_text_of_several_forms_may_share_a_column():
    forms = ["2023-11-14T22:13:20Z", "2023-11-14 22:13:20", "2023-11-15", "2023-11-14T22:13"]
    assert times(forms) == [MOMENT, MOMENT, 1_700_006_400.0, MOMENT - 20]


def test_datetimes_and_dates_are_understood():
    noon = dt.datetime(2024, 1, 1, 12)
    aware = noon.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert times([noon, noon]) == [1704110400.0] * 2
    assert times([aware, aware]) == [1704103200.0] * 2
    assert times([dt.date(2024, 1, 1)] * 2) == [1704067200.0] * 2


def test_dates_that_are_not_iso_are_refused_rather_than_guessed():
    with pytest.raises(DataError, match=r"row 1: column 'time' .* is not a time"):
        times(["01/02/2024", "03/02/2024"])


def test_times_before_1970_are_refused():
    with pytest.raises(DataError, match=r"row 2: column 'time' .* is a negative time"):
        times(["1970-01-02", "1969-12-31"])


def test_skipped_times_do_not_disturb_the_unit():
    assert times([None, 1_700_000_000_000, 1_700_000_001_000], on_bad="skip") == [
        MOMENT,
        MOMENT + 1,
    ]
