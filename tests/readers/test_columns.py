"""Columns are found by name; times in every usual form become seconds since 1970, UTC."""

from __future__ import annotations

import datetime as dt

import polars as pl
import pytest

import equipoise as eq
from equipoise.errors import DataError, SettingError

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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["01/02/2024", "03/02/2024"], "row 1: column 'time' .* is not a time"),  # never guessed
        (["1970-01-02", "1969-12-31"], "row 2: column 'time' .* is a negative time"),
    ],
)
def test_texts_that_are_no_iso_dates_since_1970_are_refused(values, message):
    with pytest.raises(DataError, match=message):
        times(values)


def test_skipped_times_do_not_disturb_the_unit():
    assert times([None, 1_700_000_000_000, 1_700_000_001_000], on_bad="skip") == [
        MOMENT,
        MOMENT + 1,
    ]


MIXED = [1_700_000_000_000, 1_700_000_001_000, 1_700_000_000, 1_700_000_002_000]


@pytest.mark.parametrize("kind", [int, float, str])
def test_times_of_several_units_in_one_column_are_refused_by_row(kind):
    with pytest.raises(DataError) as caught:
        times([kind(value) for value in MIXED])
    message = str(caught.value)
    assert "the frame, row 3: column 'time' (" in message
    assert "would be seconds where most are milliseconds" in message
    assert "time_unit='ms'" in message


@pytest.mark.parametrize("odd", [1_700_000_000, 1_700_000_000_000_000])
def test_one_time_of_another_unit_among_many_is_found(odd):
    values = [1_700_000_000_000 + n for n in range(50_000)]
    values[31_337] = odd
    with pytest.raises(DataError, match="row 31338: "):
        times(values)


def test_times_of_another_unit_are_skipped_and_counted():
    frame = {"user": [1, 2, 3, 4], "item": [1, 2, 3, 4], "time": MIXED}
    data = eq.read(frame, on_bad="skip")
    assert data.users.tolist() == [1, 2, 4]
    reason = "'time' would be seconds where most are milliseconds"
    assert f"skipped 1 bad row: 1 where {reason}" in data.notes


def test_the_time_unit_that_is_given_holds_for_all_times():
    assert times(MIXED, time_unit="ms") == [value / 1000 for value in MIXED]
    assert times([5, 6_000], time_unit="us") == [5e-6, 6e-3]
    assert times(["2023-11-14", "2023-11-15"], time_unit="ms") == [1_699_920_000, 1_700_006_400]


def test_a_time_unit_that_is_unknown_or_has_no_use_is_refused():
    with pytest.raises(SettingError, match="time_unit must be one of s, ms, us, ns"):
        times([1, 2], time_unit="minutes")
    for setting in ({"time_unit": "s"}, {"gap": "30m"}):
        with pytest.raises(SettingError, match="needs a time column, but time is False"):
            times([1, 2], time=False, **setting)


def test_a_zero_among_times_is_of_any_unit():
    assert times([0, 1_700_000_000_000, 1_700_000_001_000]) == [0, MOMENT, MOMENT + 1]


def test_times_of_three_units_leave_only_those_of_the_most_usual():
    values = [1_700_000_000, 1_700_000_000_000, *([1_700_000_000_000_000] * 4)]
    assert times(values, on_bad="skip") == [MOMENT] * 4


@pytest.mark.parametrize("text", ["user,item\n1,x\n2,y\n", "1,10\n2,20\n"])
@pytest.mark.parametrize("setting", [{"time_unit": "ms"}, {"gap": "30m"}])
def test_settings_of_times_need_a_time_column(tmp_path, text, setting):
    path = tmp_path / "events.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=r"pass time="):
        eq.read(path, **setting)


def test_guessed_columns_are_reported():
    row = {"user_id": [1, 2], "item_id": ["a", "b"], "rating": [3, 4], "ts": [5, 6]}
    found = "user = 'user_id', item = 'item_id', time = 'ts', rating = 'rating'"
    assert eq.read(row, min_rating=1).notes[0] == f"columns found by name: {found}"


@pytest.mark.parametrize(
    ("user", "item", "time"),
    [
        ("userId", "movieId", "timestamp"),
        ("visitorid", "itemid", "timestamp"),
        ("customer_id", "product_id", "event_time"),
        ("reviewerID", "asin", "unixReviewTime"),
        ("User", "business_id", "date"),
        ("SessionId", "ItemId", "Time"),
        ("uid", "iid", "created_at"),
    ],
)
def test_usual_spellings_are_found(user, item, time):
    frame = pl.DataFrame({time: [5, 6], item: ["x", "y"], user: [1, 2]})
    data = eq.read(frame)
    assert data.users.tolist() == [1, 2]
    assert data.items.tolist() == ["x", "y"]
    assert data.times.tolist() == [5, 6]


def test_a_user_column_wins_over_a_session_column():
    data = eq.read(pl.DataFrame({"session_id": [7, 8], "user_id": [1, 2], "item": [1, 2]}))
    assert data.users.tolist() == [1, 2]


def test_decimal_commas_are_understood_in_times(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("user;item;time\n1;10;1700000000,5\n2;20;1700000001\n")
    assert eq.read(path).times.tolist() == [1_700_000_000.5, 1_700_000_001]


@pytest.mark.parametrize(
    ("cells", "wrong"),
    [
        (["1,234", "2,500"], r"line 2: .*'1,234'.* thousands or decimals"),
        (["1,5", "2.5"], r"line 2: .*'1,5'.* decimal point"),
        (["1.234,5", "2"], r"line 2: .*'1\.234,5'.* decimal point"),
    ],
)
def test_commas_in_numbers_that_could_mean_two_things_are_refused(tmp_path, cells, wrong):
    path = tmp_path / "events.csv"
    path.write_text("user;item;w\n" + "".join(f"{n};{n};{cell}\n" for n, cell in enumerate(cells)))
    with pytest.raises(DataError, match=wrong):
        eq.read(path, weight="w")


def test_a_comma_in_a_number_between_commas_is_refused(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text('user,item,w\n1,10,"3,5"\n2,20,4\n')
    with pytest.raises(DataError, match=r"line 2: column 'w' \('3,5'\) .* decimal point"):
        eq.read(path, weight="w")
