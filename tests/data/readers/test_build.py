"""Ids to positions, pairs to the matrix, events to sessions, catalogue to items."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.checks import period
from equipoise.data.interactions import Interactions
from equipoise.data.readers.build import Log, factorize, gathered
from equipoise.errors import DataError, SettingError
from equipoise.runtime import machine

pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(1, 9)), min_size=1)


@settings(max_examples=60, deadline=None)
@given(pairs)
def test_the_matrix_equals_a_sum_over_rows_in_any_order(rows):
    user, item, value = (np.array(column) for column in zip(*rows, strict=True))
    shape = (7, 5)
    expected, latest = np.zeros(shape), np.full(shape, -1.0)
    for row in rows:
        expected[row[0], row[1]] += row[2]
        latest[row[0], row[1]] = max(latest[row[0], row[1]], row[2])
    codes = user.astype(np.int32), item.astype(np.int32)
    log = Log(*codes, value.astype(float), value.astype(float))
    matrix, events, repeats = gathered(log, shape)
    matrix.check_format(full_check=True)
    assert matrix.toarray().tolist() == expected.tolist()
    built = Interactions(matrix, events=events)
    assert built.times.tolist() == latest[latest >= 0].tolist()
    assert repeats == len(rows) - (expected > 0).sum()
    assert events.n_events == len(rows)


@pytest.mark.parametrize(
    "values",
    [[5, 3, 5, -2], [10**15, -(10**15), 7], ["b", "a", "é", "b"], [0], [2**63 - 1, -(2**63)]],
)
def test_factorize_agrees_with_numpy(values):
    codes, ids = factorize(pl.Series(values))
    expected, inverse = np.unique(np.array(values), return_inverse=True)
    assert ids.tolist() == expected.tolist()
    assert codes.tolist() == inverse.tolist()
    assert codes.dtype == np.int32


def test_a_table_in_pieces_is_read_like_a_whole_one(rng):
    columns = {"user": (0, 9), "item": (0, 30), "time": (10**9, 2 * 10**9)}
    table = pl.DataFrame({name: rng.integers(*ends, 60) for name, ends in columns.items()})
    pieces = pl.concat([table[:7], table[7:8], table[8:]], rechunk=False)
    assert pieces.n_chunks() == 3
    assert eq.read(pieces).fingerprint == eq.read(table).fingerprint


@pytest.mark.parametrize("weight", [None, "n"])
def test_a_matrix_of_few_pairs_has_narrow_positions(weight):
    log = {"user": [1, 1, 2, 1], "item": [5, 6, 5, 5], "n": [1, 2, 3, 4]}
    matrix = eq.read(log, weight=weight).matrix
    assert (matrix.indices.dtype, matrix.indptr.dtype) == (np.int32, np.int32)


def test_a_session_column_takes_the_place_of_the_user():
    log = {"session_id": [2, 1, 2, 2], "user_id": [9, 9, 9, 9], "item": ["x", "y", "z", "x"]}
    data = eq.read(log, session="session_id")
    assert data.users.tolist() == [1, 2]
    assert data.history(2) == ["x", "z", "x"]
    assert data.matrix.toarray().tolist() == [[0, 1, 0], [1, 0, 1]]
    assert "merged 1 repeated pairs" in data.notes


def test_times_order_a_session():
    log = {"session": [1, 1, 1, 2], "item": [5, 6, 7, 5], "time": [30, 10, 20, 5]}
    assert eq.read(log, session="session").history(1) == [6, 7, 5]


def test_equal_times_keep_the_order_of_rows():
    log = {"session": [1, 1, 1, 2], "item": [7, 5, 6, 5], "time": [10, 10, 10, 5]}
    assert eq.read(log, session="session").history(1) == [7, 5, 6]


def test_a_pause_cuts_the_clicks_of_a_user():
    log = {
        "user": ["ann", "bob", "ann", "ann", "ann"],
        "item": [1, 2, 3, 1, 1],
        "time": [0, 50, 1800, 3601, 3700],
    }
    data = eq.read(pl.DataFrame(log), gap="30m")
    assert data.users.tolist() == ["ann/1", "ann/2", "bob/1"]
    assert data.history("ann/1") == [1, 3]
    assert data.history("ann/2") == [1, 1]
    assert "cut into 3 sessions at pauses over 1800 seconds" in data.notes


def test_sessions_are_numbered_in_order_of_time():
    log = {"user": [7] * 12, "item": [0, 1] * 6, "time": list(range(1200, 0, -100))}
    data = eq.read(log, gap=50)
    assert data.users.tolist() == [f"7/{n}" for n in range(1, 13)]
    assert data.history("7/1") == [1]


@pytest.mark.parametrize(
    ("gap", "value"),
    [(90, 90.0), ("90s", 90.0), ("30m", 1800.0), ("1.5h", 5400.0), ("2d", 172_800.0)],
)
def test_gaps_have_units(gap, value):
    assert period("gap", gap) == value


COLUMNS = {"user": ["b", "a", "b"], "item": [20, 10, 10], "rating": [5.0, 3.0, 4.0]}


def test_attributes_are_aligned_to_the_items():
    titles = {
        "item_id": [10, 20, 99, 10],
        "year": [1, 2, 3, 4],
        "title": ["Ten", "Two", "No", "X"],
    }
    data = eq.read(pd.DataFrame(COLUMNS), catalogue=pd.DataFrame(titles))
    assert data.catalogue.columns == ["title", "year"]
    assert data.catalogue["title"].to_list() == ["Ten", "Two"]
    assert data.label(20) == "Two"
    assert "ignored 1 repeated items of the catalogue; the first row counts" in data.notes


def test_a_column_of_attributes_may_be_called_item():
    titles = {"code": [10, 20], "item": ["Ten", "Two"]}
    shop = {"user": ["b", "a", "b"], "code": [20, 10, 10]}
    data = eq.read(shop, item="code", catalogue=pd.DataFrame(titles))
    assert data.catalogue.columns == ["item"]
    assert data.label(20) == "Two"


def test_items_without_attributes_have_nulls_and_a_note(tmp_path):
    path = tmp_path / "titles.csv"
    path.write_text("item,name\n10,Ten\n")
    data = eq.read(COLUMNS, catalogue=path)
    assert data.catalogue["name"].to_list() == ["Ten", None]
    assert data.label(20) == "20"
    assert "1 of 2 items are not in the catalogue" in data.notes


def test_text_ids_find_their_attributes_in_an_integer_column(tmp_path):
    path = tmp_path / "titles.csv"
    path.write_text("item,name\n10,Ten\n20,Twenty\n")
    data = eq.read([("a", "10"), ("b", "20")], catalogue=path)
    assert data.catalogue["name"].to_list() == ["Ten", "Twenty"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        pytest.param(
            lambda: eq.read({"user": [1, 2], "item": [1, 2]}, gap=60),
            DataError,
            "no column looks like the time",
            id="gap without times",
        ),
        pytest.param(lambda: period("gap", 0), SettingError, "gap must be", id="gap of zero"),
        pytest.param(lambda: period("gap", None), SettingError, "gap must be", id="no gap"),
        pytest.param(lambda: period("gap", -1), SettingError, "gap must be", id="negative gap"),
        pytest.param(
            lambda: period("gap", "90"),
            SettingError,
            "gap='90' has no unit; write 90d for days, 90s for seconds",
            id="gap without a unit",
        ),
        pytest.param(
            lambda: period("gap", "soon"), SettingError, "gap must look like", id="gap in words"
        ),
        pytest.param(
            lambda: period("gap", "30y"), SettingError, "gap must look like", id="unknown unit"
        ),
        pytest.param(lambda: period("gap", np.inf), SettingError, "gap must be", id="endless gap"),
        pytest.param(
            lambda: eq.read(COLUMNS, catalogue={"item": [1, 2], "title": ["a", "b"]}),
            DataError,
            "the catalogue has none of the items",
            id="catalogue of other items",
        ),
        pytest.param(
            lambda: eq.read(COLUMNS, catalogue=[(10, "a"), (20, "b")]),
            SettingError,
            r"catalogue must be a table .*, got a list that starts with \(10, 'a'\); .*dict",
            id="catalogue as pairs",
        ),
        pytest.param(
            lambda: eq.read(COLUMNS, catalogue={"item": [10]}),
            DataError,
            "no column other than 'item'",
            id="catalogue without a text",
        ),
    ],
)
def test_gaps_and_attributes_that_make_no_sense_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_ids_and_attributes_of_a_matrix_may_be_arrays_and_frames():
    catalogue = pl.DataFrame({"item": [1, 2, 3], "title": ["one", "two", "three"]})
    data = eq.read(
        np.array([[0, 2, 1], [1, 0, 0], [3, 0, 5]]),
        users=np.array([7, 8, 9]),
        items=np.array([3, 2, 1]),
        catalogue=catalogue,
    )
    assert data.catalogue["title"].to_list() == ["three", "two", "one"]
    with pytest.raises(SettingError, match="users= does not apply to a table"):
        eq.read(COLUMNS, users=np.array([7, 8]))


def test_attributes_whose_path_looks_like_a_pattern_are_read_from_it(tmp_path):
    (tmp_path / "t1.csv").write_text("item,title\ntea,Wrong\n")
    (tmp_path / "t[1].csv").write_text("item,title\ntea,Tea\n")
    assert (
        eq.read({"user": [1, 2], "item": ["tea", "milk"]}, catalogue=tmp_path / "t[1].csv").label(
            "tea"
        )
        == "Tea"
    )


def test_attributes_are_matched_by_ids_as_they_are_written(tmp_path):
    events, titles = tmp_path / "events.csv", tmp_path / "titles.csv"
    events.write_text("user,item\na,1.10\na,1.1\nb,x\n")
    titles.write_text("item,title\n1.10,Ten\n1.1,One\n")
    data = eq.read(events, catalogue=titles)
    assert [data.label(item) for item in ("1.10", "1.1", "x")] == ["Ten", "One", "x"]
    events.write_text("user,item\na,7\na,8\nb,8\n")
    titles.write_text("item,title\n007,Agent\n8,Eight\n")
    data = eq.read(events, catalogue=titles)
    assert [data.label(item) for item in (7, 8)] == ["7", "Eight"]


def test_one_usual_name_among_numbers_only_is_data(tmp_path):
    titles = tmp_path / "titles.csv"
    titles.write_text("1,Video\n2,Tea\n")
    data = eq.read([(1, 1), (2, 2)], catalogue=titles)
    assert data.label(1) == "Video"


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rows_are_dealt_to_their_users_alike_by_any_number_of_threads(
    threads: int, rng: np.random.Generator
) -> None:
    users, items = rng.integers(0, 7, 200), rng.integers(0, 9, 200)
    times, weights = rng.integers(0, 5, 200).astype(float), rng.random(200)
    columns = {"user": users, "item": items, "time": times, "weight": weights}
    with machine.limited(threads):
        data = eq.read(pl.DataFrame(columns), weight="weight")
    assert data.events is not None
    order = np.lexsort((times, users))  # equal times stay as they come
    assert data.users[data.events.rows].tolist() == users[order].tolist()
    assert data.items[data.events.items].tolist() == items[order].tolist()
    assert data.events.times.tolist() == times[order].tolist()  # type: ignore[union-attr]
    assert data.events.weights.tolist() == weights[order].tolist()  # type: ignore[union-attr]


PLAYS = {"user": [1, 1, 2], "artistID": [51, 52, 51]}
ARTISTS = {
    "id": [51, 52],
    "name": ["Duran Duran", "Morcheeba"],
    "url": ["duran.example", "morcheeba.example"],
}


def test_catalogue_id_names_the_id_column_of_the_catalogue(tmp_path):
    path = tmp_path / "artists.dat"
    pl.DataFrame(ARTISTS).write_csv(path, separator="\t")
    for catalogue, column in ((path, "id"), (ARTISTS, "id"), (path, 0)):
        data = eq.read(PLAYS, catalogue=catalogue, catalogue_id=column)
        assert data.label(52) == "Morcheeba"
        assert data.catalogue.columns == ["name", "url"]
    with pytest.raises(DataError, match=r"has no column 'ids'; did you mean 'id'\?"):
        eq.read(PLAYS, catalogue=path, catalogue_id="ids")


def test_catalogue_id_wins_over_a_usual_name_of_the_id_column():
    titles = {"item": [1, 2], "code": [51, 52], "title": ["Duran Duran", "Morcheeba"]}
    assert eq.read(PLAYS, catalogue=titles, catalogue_id="code").label(51) == "Duran Duran"


def test_catalogue_id_needs_attributes_and_a_column():
    with pytest.raises(
        SettingError, match="catalogue_id= is about columns of the catalogue; pass catalogue="
    ):
        eq.read(PLAYS, catalogue_id="id")
    with pytest.raises(SettingError, match="catalogue_id must be a column's name or position"):
        eq.read(PLAYS, catalogue=ARTISTS, catalogue_id=True)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            ("id", "name", "url"),
            "the catalogue: no column looks like the item ids; pass catalogue_id='id', or the "
            "column that holds them; the columns are 'id', 'name', 'url'",
        ),
        (
            ("name", "anime_ids", "url"),
            "the catalogue: no column looks like the item ids; pass catalogue_id='anime_ids', or "
            "the column that holds them; the columns are 'name', 'anime_ids', 'url'",
        ),
        (
            ("key", "name", "url"),
            "the catalogue: no column looks like the item ids; pass catalogue_id='key', or the "
            "column that holds them; the columns are 'key', 'name', 'url'",
        ),
        (
            ("movie_id", "name", "track_id"),
            "the catalogue: 'movie_id' and 'track_id' could both be the item ids; "
            "pass catalogue_id='movie_id' or catalogue_id='track_id'",
        ),
    ],
)
@pytest.mark.parametrize("item", ["artistID", 1])
def test_attributes_whose_id_column_is_unknown_say_what_to_type(columns, message, item):
    catalogue = dict(zip(columns, ARTISTS.values(), strict=True))
    with pytest.raises(DataError) as caught:
        eq.read(PLAYS, item=item, catalogue=catalogue)
    assert str(caught.value) == message


def test_attributes_of_no_item_say_how_to_take_another_column():
    titles = {"item": [1, 2], "code": [51, 52], "title": ["Duran Duran", "Morcheeba"]}
    with pytest.raises(
        DataError, match="holds ids such as 51, or pass catalogue_id= with another"
    ):
        eq.read(PLAYS, catalogue=titles)


@pytest.mark.parametrize(
    ("quote", "rows"),
    [
        ("'", "item,title\n51,'Duran, Duran'\n52,'Morcheeba'\n"),
        ("", 'item;title\n51;"Duran, Duran\n52;Morcheeba\n'),
    ],
)
def test_the_quotation_mark_is_that_of_the_catalogue_too(tmp_path, quote, rows):
    path = tmp_path / "artists.csv"
    path.write_text(rows)
    data = eq.read(PLAYS, catalogue=path, quote=quote)
    assert data.catalogue["title"].to_list() == [
        "Duran, Duran" if quote else '"Duran, Duran',
        "Morcheeba",
    ]


def test_attributes_have_a_separator_of_their_own(tmp_path):
    events, titles = tmp_path / "plays.csv", tmp_path / "artists.csv"
    events.write_text("user;item\n1;51\n2;52\n")
    titles.write_text("item,title\n51,Duran Duran\n52,Morcheeba\n")
    assert eq.read(events, separator=";", catalogue=titles).label(52) == "Morcheeba"


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16"])
def test_attributes_in_utf_8_are_read_as_such_whatever_the_events_are(tmp_path, encoding):
    events, titles = tmp_path / "plays.csv", tmp_path / "artists.csv"
    events.write_bytes("user,item\nrené,51\nann,52\n".encode(encoding))
    for title in ("Björk", "Bjork"):
        titles.write_text(f"item,title\n51,{title}\n52,Morcheeba\n", encoding="utf-8")
        data = eq.read(events, encoding=encoding, catalogue=titles)
        assert "rené" in data.users
        assert data.label(51) == title
    titles.write_bytes("item,title\n51,Björk\n52,Morcheeba\n".encode(encoding))
    assert eq.read(events, encoding=encoding, catalogue=titles).label(51) == "Björk"


def test_a_catalogue_of_one_column_names_its_remedy(tmp_path):
    path = tmp_path / "artists.txt"
    path.write_text("item^title\n51^Duran\n")
    with pytest.raises(
        DataError, match=r"pass separator= .*\(for a catalogue, a frame instead of"
    ):
        eq.read(PLAYS, catalogue=path)
