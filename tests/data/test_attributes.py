"""What a column of a catalogue is follows from its cells, or from what the caller says."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, SettingError

ITEMS = ["a", "b", "c", "d"]
EVENTS = eq.read([("ann", item) for item in ITEMS])
DAY = dt.date(2024, 1, 31)
NOON = dt.datetime(2024, 1, 31, 12)


def read(cells: Any, name: str = "x", **settings: Any) -> Interactions:
    columns = {"item": ITEMS, "title": ["A", "B", "C", "D"], name: cells}
    return EVENTS.with_catalogue(columns, **settings)


def column(cells: Any, name: str = "x", **settings: Any) -> tuple[str, list[Any]]:
    """Return the kind of a column and its values."""
    data = read(cells, name, **settings)
    assert data.catalogue is not None
    return data.attributes[name], data.catalogue[name].to_list()


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["own", "own", "other", None], "category", ["own", "own", "other", None]),
        (["true", "False", "true", ""], "category", [True, False, True, None]),
        ([True, False, None, True], "category", [True, False, None, True]),
        (["007", "012", "3", None], "category", ["007", "012", "3", None]),
        (["1.5", "2", " 3 ", ""], "number", [1.5, 2.0, 3.0, None]),
        (["1", "2", "3", None], "number", [1, 2, 3, None]),
        ([1, 2, 3, None], "number", [1, 2, 3, None]),
        (["2024-01-31", "2024-01-31", None, ""], "date", [DAY, DAY, None, None]),
        (["2024-01-31T12:00", "2024-01-31", None, ""], "date", [NOON, None, None, None]),
        ([DAY, None, DAY, DAY], "date", [DAY, None, DAY, DAY]),
        ([NOON, None, NOON, NOON], "date", [NOON, None, NOON, NOON]),
        (["Drama|Sport", "Drama", " Sport | Drama ", None], "list", None),
        (["Drama;Sport", "Drama", "Sport", None], "list", None),
        ([["Drama", "Sport"], ["Drama"], [], None], "list", None),
        (["['Drama', 'Sport']", "['Drama']", "[]", None], "list", None),
        ([[0.5, 1.0], [1.0, 2.0], None, [0.0, 0.0]], "vector", None),
        (["[0.5, 1.0]", "[1, 2]", None, "[0, 0]"], "vector", None),
        (
            ["a very long story of tea", "another one of salt", "a third one, of rice", None],
            "text",
            None,
        ),
    ],
)
def test_the_cells_of_a_column_show_what_it_is(
    cells: list[Any], kind: str, values: list[Any] | None
) -> None:
    declared, got = column(cells)
    if values == [NOON, None, None, None]:
        values = [NOON, dt.datetime(2024, 1, 31), None, None]
    assert declared == kind
    if kind == "list":
        assert sorted(got[0]) == ["Drama", "Sport"]
        assert got[1] == ["Drama"]
        assert got[3] is None
    elif kind == "vector":
        assert got == [[0.5, 1.0], [1.0, 2.0], None, [0.0, 0.0]]
    else:
        assert got == (cells if values is None else values)


def test_an_embedding_may_be_an_array() -> None:
    vectors = np.arange(8, dtype=np.float32).reshape(4, 2)
    kind, values = column(vectors)
    assert kind == "vector"
    assert values == vectors.tolist()
    frame = pl.DataFrame({"item": ITEMS, "x": vectors})
    assert EVENTS.with_catalogue(frame).attributes == {"title": "text", "x": "vector"}


@pytest.mark.parametrize(
    ("genres", "splits"),
    [
        (["Action, Comedy", "Comedy, Action", "Action", "Comedy", "Action, Drama"] * 3, False),
        (["Smith, John", "Doe, Jane", "Roe, Richard", "Poe, Edgar", "Lee, Ann"] * 3, False),
        ([f"{a}, {b}, {c}" for a in "ABC" for b in "DEF" for c in "GHI"], True),
    ],
)
def test_commas_separate_only_values_that_recur(genres: list[str], splits: bool) -> None:
    items = [str(n) for n in range(len(genres))]
    data = eq.read([("ann", item) for item in items])
    data = data.with_catalogue({"item": items, "title": items, "genres": genres})
    assert data.attributes["genres"] == ("list" if splits else "category")


def test_a_title_is_never_split() -> None:
    titles = {"item": ITEMS, "title": ["Tea|Milk", "Tea|Rice", "Salt|Milk", "Milk"]}
    data = EVENTS.with_catalogue(titles)
    assert data.attributes == {"title": "text"}
    assert data.label("a") == "Tea|Milk"


def test_numbers_in_a_column_of_times_are_times() -> None:
    seconds = [1_700_000_000, 1_700_000_060, None, 1_700_000_120]
    kind, values = column(seconds, "created_at")
    assert kind == "date"
    assert values[0] == dt.datetime(2023, 11, 14, 22, 13, 20)
    assert column([1000 * (s or 0) or None for s in seconds], "timestamp")[1] == values
    assert column([20240131, 20240131, None, 20240131], "date") == ("date", [DAY, DAY, None, DAY])
    assert column(seconds, "size")[0] == "number"
    assert column([3, 4, 5, 6], "date")[0] == "number"


def test_dates_of_one_form_are_read_where_the_name_says_so() -> None:
    cells = ["31-Jan-2024", "31-Jan-2024", None, "31-Jan-2024"]
    assert column(cells, "released") == ("date", [DAY, DAY, None, DAY])
    assert column(cells, "x")[0] == "category"
    assert column(["01/02/2024", "02/01/2024", None, None], "released")[0] == "category"


@pytest.mark.parametrize(
    ("cells", "declared", "kind", "values"),
    [
        ([17, 18, 17, None], "category", "category", ["17", "18", "17", None]),
        (["a b", "c", None, ""], "text", "text", ["a b", "c", None, ""]),
        (["a/b", "c", None, "a"], "list", "list", [["a/b"], ["c"], None, ["a"]]),
        (["a, b", "c", None, "a"], "list", "list", [["a", "b"], ["c"], None, ["a"]]),
        (["007", "2.5", None, ""], "number", "number", [7.0, 2.5, None, None]),
        ([1_700_000_000, None, None, 0], "date", "date", None),
        (["31.01.2024", None, "", "31.01.2024"], "date", "date", [DAY, None, None, DAY]),
        (["01/31/2024", None, "", "01/31/2024"], "%m/%d/%Y", "date", [DAY, None, None, DAY]),
        ([310124, None, 10224, 310124], "%d%m%y", "date", None),
        ([[1, 2], [3, 4], None, [0, 1]], "vector", "vector", [[1, 2], [3, 4], None, [0, 1]]),
    ],
)
def test_the_kind_of_a_column_can_be_declared(
    cells: list[Any], declared: str, kind: str, values: list[Any] | None
) -> None:
    got = column(cells, types={"x": declared})
    assert got[0] == kind
    if values is not None:
        assert got[1] == values
    elif declared == "%d%m%y":
        assert got[1] == [DAY, None, dt.date(2024, 2, 1), DAY]
    else:
        assert got[1][3] == dt.datetime(1970, 1, 1)


def test_a_column_can_be_left_out() -> None:
    data = read(["u1", "u2", "u3", "u4"], "url", types={"url": "skip"})
    assert data.attributes == {"title": "text"}
    with pytest.raises(SettingError, match="'title' is the title; to leave it out, pass title="):
        read(ITEMS, types={"title": "skip"})


@pytest.mark.parametrize(
    ("cells", "types", "error", "message"),
    [
        (ITEMS, {"x": "colour"}, SettingError, "type of 'x' must be one of category, list, "),
        (ITEMS, ["x"], SettingError, "catalogue_types must map columns to kinds"),
        (
            ITEMS,
            {"xx": "list"},
            DataError,
            "the column 'xx', which the catalogue lacks; did you mean 'x'?",
        ),
        (["1", "two", None, ""], {"x": "number"}, DataError, "'x' of the catalogue: 'two' is no"),
        (["1", "soon", None, ""], {"x": "date"}, DataError, "'soon' is not a date"),
        (["1/2", "3", None, ""], {"x": "%d/%m"}, DataError, "is not a date of the form %d/%m"),
        ([[1.0], [1.0, 2.0], None, None], {"x": "vector"}, DataError, "'x' does not hold vectors"),
        ([["a"], ["b"], None, None], {"x": "number"}, DataError, "holds List.String., not number"),
        ([["a"], ["b"], None, None], {"x": "category"}, DataError, "not category; pass another"),
    ],
)
def test_cells_that_do_not_fit_the_declared_kind_are_refused(
    cells: list[Any], types: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(cells, types=types)


def test_categories_of_digits_keep_their_zeros(tmp_path: Any) -> None:
    path = tmp_path / "items.csv"
    path.write_text("item;title;code;price\na;A;007;1,5\nb;B;012;2,25\nc;C;003;3\nd;D;;\n")
    data = eq.read(EVENTS.to_frame(), catalogue=path, catalogue_types={"code": "category"})
    assert data.catalogue is not None
    assert data.catalogue["code"].to_list() == ["007", "012", "003", None]
    assert data.catalogue["price"].to_list() == [1.5, 2.25, 3.0, None]
    assert data.attributes == {"title": "text", "code": "category", "price": "number"}


def test_times_of_a_zone_are_in_utc() -> None:
    zoned = pl.Series([NOON] * 4).dt.replace_time_zone("Europe/Paris")
    data = EVENTS.with_catalogue(pl.DataFrame({"item": ITEMS, "x": zoned}))
    assert data.catalogue is not None
    assert data.catalogue["x"][0] == dt.datetime(2024, 1, 31, 11)
