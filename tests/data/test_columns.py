"""Columns are found by name; times in every usual form become seconds since 1970, UTC."""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect

import polars as pl
import pytest

import equipoise as eq
from equipoise.data.read_options import ReadOptions
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
def test_texts_that_are_not_iso_dates_since_1970_are_refused(values, message):
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


@pytest.mark.parametrize(
    "wrong", [{"time": True}, {"rating": True}, {"weight": False}, {"user": False}, {"item": True}]
)
def test_a_boolean_is_not_a_column(wrong):
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": [3, 4]})
    with pytest.raises(SettingError, match="must be a column's name or position, got"):
        eq.read(frame, **wrong)


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
    guesses = "user = 'user_id', item = 'item_id', time = 'ts', rating = 'rating'"
    assert eq.read(row, min_rating=1).notes[0] == f"columns found by name: {guesses}"


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


def test_a_name_of_a_customer_wins_over_an_order_and_loses_to_an_id():
    table = {"Order No": [7, 8], "Customer Name": ["Bo, Al", "Cy"], "SKU": ["x", "y"]}
    assert eq.read(pl.DataFrame(table)).users.tolist() == ["Bo, Al", "Cy"]
    assert eq.read(pl.DataFrame(table | {"Customer ID": [1, 2]})).users.tolist() == [1, 2]


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


SHOP = {
    "basket_id": [7, 8, 9],
    "household_id": [1, 2, 2],
    "store_id": [5, 5, 5],
    "product_id": [10, 20, 30],
    "transaction_timestamp": ["2017-01-01 11:53:26"] * 3,
}


def test_a_household_wins_over_a_basket_and_the_others_are_named():
    data = eq.read(SHOP)
    assert data.users.tolist() == [1, 2]
    assert data.times[0] == 1_483_271_606
    assert data.notes[0] == (
        "columns found by name: user = 'household_id', item = 'product_id', "
        "time = 'transaction_timestamp'; also possible: user='basket_id'"
    )


def test_the_columns_of_an_invoice_are_found():
    columns = ("InvoiceNo", "StockCode", "InvoiceDate", "CustomerID", "Country")
    rows = [("A1", "85123A", "2010-12-01", 1, "UK"), ("A1", "71053", "2010-12-02", 2, "UK")]
    data = eq.read(pl.DataFrame(rows, schema=columns, orient="row"))
    assert data.users.tolist() == [1, 2]
    assert data.items.tolist() == ["71053", "85123A"]
    assert data.times.tolist() == [1_291_161_600, 1_291_248_000]


def test_guesses_between_equals_are_refused_with_all_of_them():
    frame = {"customer_id": [1, 2], "client_id": [1, 2], "visitor": [1, 2], "item": [1, 2]}
    message = "'customer_id' and 'client_id' and 'visitor' could all be the user; pass user='...'"
    with pytest.raises(DataError, match=message):
        eq.read(frame)


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ([20240131, 20240201], [1_706_659_200, 1_706_745_600]),
        (["20240131", " 20240201"], [1_706_659_200, 1_706_745_600]),
        ([20240131.0, 20240201.0], [1_706_659_200, 1_706_745_600]),
        ([202401311200, 202401311201], [1_706_702_400, 1_706_702_460]),
        ([20240131120000, 20240131120001], [1_706_702_400, 1_706_702_401]),
    ],
)
def test_dates_in_digits_are_dates(values, seconds):
    assert times(values) == seconds
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": values})
    assert any("dates in digits" in note for note in eq.read(frame).notes)


def test_dates_in_digits_are_checked_and_the_unit_settles_what_they_are():
    with pytest.raises(DataError, match=r"row 2: column 'time' \(20240231\) is not a time"):
        times([20240131, 20240231])
    assert times([20240131, 20240231], time_unit="s") == [20240131, 20240231]
    assert times([20240131, 1_700_000_000]) == [20240131, MOMENT]


@pytest.mark.parametrize(
    ("rows", "order"),
    [
        ("ann,tea,2024-01-31\nbob,milk,2024-02-01\n", "user, item, time"),
        ("1,10,1700000000\n2,20,1700000001\n", "user, item, time"),
        ("1,10,20240131\n2,20,20240201\n", "user, item, time"),
        ("1,10,1700000000,5\n2,20,1700000001,3\n", "user, item, time, rating"),
        ("1,10,5,1700000000\n2,20,3,1700000001\n", "user, item, rating, time"),
        ("1,10,5\n2,20,3\n", "user, item, rating"),
    ],
)
def test_a_date_without_a_header_is_not_a_rating(tmp_path, rows, order):
    path = tmp_path / "events.csv"
    path.write_text(rows)
    data = eq.read(path, header=False)
    assert f"no header: columns taken in order as {order}" in data.notes
    assert (data.times is not None) == ("time" in order)
    if "rating" in order:
        assert eq.read(path, header=False, min_rating=4).users.tolist() == [1]


SALES = ["12/1/2010 8:26", "12/1/2010 8:28", "1/31/2011 17:05"]


def test_the_form_of_times_is_an_option():
    assert times(SALES, time_format="%m/%d/%Y %H:%M") == [
        1_291_191_960,
        1_291_192_080,
        1_296_493_500,
    ]
    assert times(["31.01.2024", "01.02.2024"], time_format="%d.%m.%Y")[0] == 1_706_659_200
    assert times([310124, 10224], time_format="%d%m%y") == [1_706_659_200, 1_706_745_600]
    zoned = times(["01/02/2024 12:00 +0200"] * 2, time_format="%d/%m/%Y %H:%M %z")
    assert zoned[0] == 1_706_781_600


NEW_YEAR, DECEMBER, LAST_DAY = 1_704_067_200, 1_733_011_200, 1_735_603_200  # of 2024


@pytest.mark.parametrize(
    ("ending", "row"),
    [
        ("csv", "{user},{item},{time}\n"),
        ("csv", '{user},{item},"{time}"\n'),
        ("csv", "u{user},{item},{time}\n"),
        ("tsv", "{user}\t{item}\t{time}\n"),
        ("jsonl", '{{"user": {user}, "item": {item}, "time": "{time}"}}\n'),
    ],
)
@pytest.mark.parametrize(
    ("form", "cells"),
    [
        ("%d%m%y", ["010124", "011224", "311224"]),
        ("%d%m%Y", ["01012024", "01122024", "31122024"]),
        ("%m%d%y%H%M", ["0101240000", "1201240000", "1231240000"]),
    ],
)
def test_dates_of_digits_in_a_file_keep_their_zeros(tmp_path, ending, row, form, cells):
    file = tmp_path / f"events.{ending}"
    head = {"csv": "user,item,time\n", "tsv": "user\titem\ttime\n", "jsonl": ""}[ending]
    rows = [row.format(user=n, item=n, time=cell) for n, cell in enumerate(cells)]
    file.write_text(head + "".join(rows))
    assert eq.read(file, time_format=form).times.tolist() == [NEW_YEAR, DECEMBER, LAST_DAY]


@pytest.mark.parametrize(
    "kind", [pl.Int32, pl.Int64, pl.UInt64, pl.Float32, pl.Float64, pl.Decimal(20, 2)]
)
def test_dates_that_became_numbers_get_their_zeros_back(kind):
    dates = pl.Series([10124, 11224, 311224]).cast(kind)
    assert times(dates, time_format="%d%m%y") == [NEW_YEAR, DECEMBER, LAST_DAY]
    clock = pl.Series([2401010000, 2412010000, 2412310000], dtype=pl.Float64)
    assert times(clock, time_format="%y%m%d%H%M") == [NEW_YEAR, DECEMBER, LAST_DAY]
    assert times([NEW_YEAR, DECEMBER], time_format="%s") == [NEW_YEAR, DECEMBER]


def test_dates_that_were_written_as_decimal_numbers_get_their_zeros_back(tmp_path):
    rows = "1,1,10124.0\n2,2,11224.0\n3,3,\n"  # as pandas writes whole numbers with gaps
    file = tmp_path / "events.csv"
    file.write_text("user,item,time\n" + rows)
    data = eq.read(file, time_format="%d%m%y", on_bad="skip")
    assert data.times.tolist() == [NEW_YEAR, DECEMBER]


def test_a_date_that_lacks_a_digit_is_refused():
    for form, cell in (("%d%m%y", "10124"), ("%d%m%y %H:%M", "10124 08:00"), ("%Y%m%d", "202411")):
        with pytest.raises(
            DataError, match=rf"row 2: column 'time' \('{cell}'\) is not a time; wri"
        ):
            times([dt.datetime(2024, 1, 1).strftime(form), cell], time_format=form)


def test_a_form_of_times_is_never_ignored():
    with pytest.raises(
        DataError, match=r"\(10124\.5\) is not a whole number, so not a time of the fo"
    ):
        times([10124.0, 10124.5], time_format="%d%m%y")
    for form in ("%-d%m%y", "%d.%m.%y"):
        with pytest.raises(
            SettingError, match=r"Int64, and numbers cannot be split by time_format=.* as text"
        ):
            times([10124, 311224], time_format=form)
    with pytest.raises(SettingError, match="holds Date, which needs no time_format; leave it out"):
        times([dt.date(2024, 1, 1)] * 2, time_format="%d%m%y")
    with pytest.raises(SettingError, match="time_format and time_unit cannot be combined"):
        times([10124, 311224], time_format="%d%m%y", time_unit="s")


def test_times_of_an_unknown_form_are_shown_with_the_forms_that_fit():
    with pytest.raises(DataError) as caught:
        times(SALES)
    message = str(caught.value)
    assert "the times look like '12/1/2010 8:26', '12/1/2010 8:28', '1/31/2011 17:05'" in message
    assert "pass time_format='%m/%d/%Y %H:%M', or time=False" in message
    with pytest.raises(DataError, match=r"time_format='%m/%d/%Y' or time_format='%d/%m/%Y'"):
        times(["01/02/2024", "03/02/2024"])
    with pytest.raises(DataError, match=r"look like 'soon', 'later': pass time_format= with"):
        times(["soon", "later"])


def test_times_that_are_not_of_the_given_form_are_refused_by_row():
    with pytest.raises(DataError, match=r"row 3: column 'time' \('1/31/2011 17:05'\) is not a"):
        times(SALES, time_format="%d/%m/%Y %H:%M")
    with pytest.raises(SettingError, match="needs a time column, but time is False"):
        times(SALES, time=False, time_format="%Y")


def test_an_error_that_nothing_is_left_says_why():
    with pytest.raises(DataError, match=r"3 where 'time' is not a time, such as '12/1/2010 8:26'"):
        times(SALES, on_bad="skip")


def test_ids_of_digits_are_text_where_asked(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("user,item\n7,10.0\n12,20.0\n")
    data = eq.read(path, ids="text")
    assert data.users.tolist() == ["12", "7"]
    assert data.items.tolist() == ["10.0", "20.0"]
    frame = pl.DataFrame({"user": [7, 12], "item": [10.0, 20.0]})
    assert eq.read(frame, ids="text").items.tolist() == ["10", "20"]
    with pytest.raises(SettingError, match="ids must be one of text"):
        eq.read(frame, ids="number")


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_the_parts_of_a_folder_have_ids_of_one_kind(tmp_path, kind):
    first = pl.DataFrame({"user": [1, 2], "item": [1, 2]})
    second = pl.DataFrame({"user": ["2", "3"], "item": ["x", "1"]})
    for name, frame in (("a", first), ("b", second)):
        getattr(frame, {"jsonl": "write_ndjson"}.get(kind, f"write_{kind}"))(
            tmp_path / f"{name}.{kind}"
        )
    data = eq.read(tmp_path, ids="text")
    assert data.users.tolist() == ["1", "2", "3"]
    assert data.items.tolist() == ["1", "2", "x"]
    second.with_columns(item=pl.lit("9")).write_parquet(tmp_path / "b.parquet")
    if kind == "parquet":
        assert eq.read(tmp_path).items.tolist() == [1, 2, 9]


PRODUCTS = pl.DataFrame(
    {
        "product_id": [10, 20, 30],
        "manufacturer_id": [1, 2, 3],
        "department": ["grocery", "grocery", "pastry"],
        "product_type": ["ice", "apple sauce", "bread"],
        "package_size": ["22 LB", "50 OZ", "1 LB"],
    }
)


def test_titles_are_text_and_not_numbers():
    data = eq.read(SHOP, catalogue=PRODUCTS)
    assert data.label(20) == "apple sauce"
    assert any("titles from its column 'product_type'; pass title= for" in n for n in data.notes)
    plain = PRODUCTS.rename({"product_type": "kind"})
    assert eq.read(SHOP, catalogue=plain).label(20) in ("apple sauce", "50 OZ")
    assert eq.read(SHOP, catalogue=PRODUCTS, title="department").label(20) == "grocery"
    assert eq.read(SHOP, catalogue=PRODUCTS, title=4).label(20) == "50 OZ"
    with pytest.raises(DataError, match="no column 'brand'"):
        eq.read(SHOP, catalogue=PRODUCTS, title="brand")
    described = PRODUCTS.with_columns(description=pl.lit("told"))
    assert eq.read(SHOP, catalogue=described).catalogue.columns[0] == "description"
    titled = described.with_columns(product_name=pl.lit("named"))
    assert eq.read(SHOP, catalogue=titled).catalogue.columns[0] == "product_name"


def test_attributes_may_be_a_dictionary():
    data = eq.read(SHOP, catalogue={10: "ice", 20: "sauce"})
    assert [data.label(item) for item in (10, 20, 30)] == ["ice", "sauce", "30"]
    assert eq.read(SHOP, catalogue={"10": "ice"}).label(10) == "ice"
    columns = {"item": [10, 20], "title": ["ice", "sauce"]}
    assert eq.read(SHOP, catalogue=columns).label(20) == "sauce"


def test_a_column_called_type_is_the_type_of_the_events():
    log = {"user": [1, 1, 2], "item": [10, 20, 10], "type": ["view", "buy", "view"]}
    data = eq.read(pl.DataFrame(log))
    assert data.events.type_names == ("buy", "view")
    assert any("column 'type' is read as the event type" in note for note in data.notes)
    both = pl.DataFrame(log | {"event": ["open", "open", "close"]})
    assert eq.read(both).events.type_names == ("close", "open")
    assert eq.read(pl.DataFrame(log), type=False).events is None


def test_read_lists_exactly_the_fields_of_its_options():
    listed = list(inspect.signature(eq.read).parameters.values())[1:]
    options = dataclasses.fields(ReadOptions)
    assert [(option.name, option.default) for option in options] == [
        (parameter.name, parameter.default) for parameter in listed
    ]


def test_events_dated_in_the_future_are_named() -> None:
    """One wrong year makes all other events look old to a trend and a decay."""
    rows = [("ann", "tea", 1.0, 1_700_000_000), ("bob", "tea", 1.0, 1_700_000_100)]
    assert not any("future" in note for note in eq.read(rows).notes)
    (note,) = [n for n in eq.read([*rows, ("eve", "jam", 1.0, 4.07e9)]).notes if "future" in n]
    assert note.startswith("1 event is dated in the future, the last on 2098-12-21: ")
