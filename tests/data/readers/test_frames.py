"""Frames, lists and matrices as sources."""

from __future__ import annotations

import datetime as dt
import io
import zoneinfo
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp

import equipoise as eq
from equipoise.errors import DataError, SettingError

COLUMNS = {"user": ["b", "a", "b"], "item": [20, 10, 10], "rating": [5.0, 3.0, 4.0]}


@pytest.mark.parametrize(
    "make",
    [
        dict,
        pl.DataFrame,
        pl.LazyFrame,
        pd.DataFrame,
        pa.table,
        lambda columns: pd.DataFrame(columns).astype({"user": "category", "item": "Int64"}),
        lambda columns: pd.DataFrame(columns).astype({"user": object}),
        lambda columns: pl.DataFrame(columns).with_columns(pl.col("user").cast(pl.Categorical)),
    ],
)
def test_every_kind_of_frame_gives_the_same_matrix(make):
    data = eq.read(make(COLUMNS), weight="rating")
    assert data.users.tolist() == ["a", "b"]
    assert data.items.tolist() == [10, 20]
    assert data.matrix.toarray().tolist() == [[3, 0], [4, 5]]


def test_pandas_integers_with_gaps_are_integers_again(caplog):
    frame = pd.DataFrame({"user": [1, None, 3], "item": [7, 8, 9]})
    with pytest.raises(DataError, match="the frame, row 2: column 'user' is an empty user id"):
        eq.read(frame)
    assert eq.read(frame, on_bad="skip").users.tolist() == [1, 3]


def test_pandas_datetimes_are_times():
    when = pd.to_datetime(["2024-01-01T00:00:00", "2024-01-01T01:00:00"]).tz_localize(
        "Europe/Rome"
    )
    data = eq.read(pd.DataFrame({"user": [1, 2], "item": [1, 2], "time": when}))
    assert data.times.tolist() == [1704063600.0, 1704067200.0]


def test_lists_of_pairs_triples_and_rows_with_times():
    pairs = eq.read([("ann", 1), ("bob", 2)])
    assert pairs.times is None
    assert pairs.matrix.data.tolist() == [1, 1]
    triples = eq.read([["ann", 1, 2.5], ["bob", 2, 1]])
    assert triples.matrix.data.tolist() == [2.5, 1]
    rated = eq.read([("ann", 1, 5), ("bob", 2, 4), ("bob", 1, 1)], min_rating=4)
    assert rated.matrix.toarray().tolist() == [[1, 0], [0, 1]]
    timed = eq.read(
        [("ann", 1, 1, dt.datetime(2024, 1, 1)), ("bob", 2, 1, dt.datetime(2024, 1, 2))]
    )
    assert timed.times.tolist() == [1704067200.0, 1704153600.0]


MATRIX = np.array([[0, 2, 1], [1, 0, 0], [3, 0, 5]])


@pytest.mark.parametrize(
    "form",
    [
        np.asarray,
        sp.csr_matrix,
        sp.csc_array,
        sp.coo_matrix,
        sp.lil_array,
        sp.dok_array,
        sp.bsr_array,
    ],
)
def test_matrices_of_any_form_keep_their_values_and_ids(form):
    data = eq.read(form(MATRIX), users=["a", "b", "c"], items=[30, 10, 20])
    assert data.matrix.toarray().tolist() == MATRIX.tolist()
    assert data.items.tolist() == [30, 10, 20]
    assert data.users.tolist() == ["a", "b", "c"]
    assert "read as a matrix of 3 users x 3 items" in data.notes


def test_repeated_cells_of_a_matrix_add_up_and_ids_are_positions_where_none_are_given():
    coo = sp.coo_array(([1.0, 2.0, 1.0], ([0, 0, 1], [0, 0, 1])), shape=(2, 2))
    data = eq.read(coo)
    assert data.users.tolist() == [0, 1]
    assert data.matrix.toarray().tolist() == [[3, 0], [0, 1]]


def test_min_rating_filters_a_matrix_and_drops_who_is_empty_then():
    data = eq.read(MATRIX, min_rating=2)
    assert data.matrix.toarray().tolist() == [[0, 1, 0], [1, 0, 1]]
    assert data.users.tolist() == [0, 2]
    assert "2 pairs have a rating below 2" in data.notes
    assert "left out 1 users without items" in data.notes


def test_a_matrix_has_no_columns_to_name():
    with pytest.raises(SettingError, match="user= does not apply to the matrix"):
        eq.read(MATRIX, user="user")


def test_numbers_that_name_columns_are_names_first_and_positions_else():
    frame = pd.read_csv(io.StringIO("1,10,4\n1,11,5\n2,10,3\n"), header=None)
    plain = eq.read(frame)
    assert plain.notes == ("no header: columns taken in order as user, item, rating",)
    assert plain.items.tolist() == [10, 11]
    named = eq.read(frame, user=0, item=1, weight=2)
    assert named.matrix.toarray().tolist() == [[4, 5], [3, 0]]
    turned = frame.set_axis([2, 0, 1], axis=1)
    assert eq.read(turned, user=2, item=0).items.tolist() == [10, 11]
    mixed = frame.set_axis(["user", 7, 3.5], axis=1)
    assert eq.read(mixed, item=7).items.tolist() == [10, 11]
    assert eq.read(mixed, item=1).items.tolist() == [10, 11]


def test_columns_of_several_levels_are_refused_with_a_remedy():
    columns = pd.MultiIndex.from_tuples([("who", "user"), ("what", "item")])
    frame = pd.DataFrame([[1, 10], [2, 11]], columns=columns)
    with pytest.raises(DataError, match=r"several levels, such as \('who', 'user'\); name them"):
        eq.read(frame)
    frame.columns = ["_".join(map(str, levels)) for levels in frame.columns]
    assert eq.read(frame, user="who_user", item="what_item").matrix.shape == (2, 2)


def test_types_that_arrow_does_not_have_are_read_as_values():
    dense = {"user": [1, 1, 2], "item": [10, 11, 10], "plays": [1.0, 0.0, 2.0]}
    sparse = pd.DataFrame({name: pd.arrays.SparseArray(cells) for name, cells in dense.items()})
    assert eq.read(sparse, weight="plays").matrix.toarray().tolist() == [[1], [2]]
    plays = pa.array([Decimal("1.5"), Decimal("2.5")], pa.decimal256(50, 2))
    data = eq.read(pa.table({"user": [1, 2], "item": [1, 1], "plays": plays}), weight="plays")
    assert data.matrix.data.tolist() == [1.5, 2.5]


def test_decimals_and_fractions_are_numbers():
    columns = {"user": [Decimal(2**60), Decimal(7)], "item": ["a", "b"]}
    assert eq.read(pa.table(columns)).users.tolist() == [7, 2**60]
    cents = pl.DataFrame({"user": [7.0, 8.0], "item": [1, 2]}).cast(pl.Decimal(9, 2))
    assert eq.read(cents).users.tolist() == [7, 8]
    rows = [("ann", "tea", Fraction(1, 2)), ("bob", "tea", Decimal("1.5"))]
    assert eq.read(rows).matrix.data.tolist() == [0.5, 1.5]


ROME = zoneinfo.ZoneInfo("Europe/Rome")
MIDNIGHT = dt.datetime(2024, 1, 1)


@pytest.mark.parametrize(
    ("moments", "seconds"),
    [
        ([MIDNIGHT.date(), MIDNIGHT.replace(hour=1)], [0, 3600]),
        ([MIDNIGHT.replace(hour=1), MIDNIGHT.date()], [3600, 0]),
        ([MIDNIGHT, MIDNIGHT.replace(tzinfo=dt.UTC, hour=1)], [0, 3600]),
        ([MIDNIGHT.replace(tzinfo=ROME, hour=1), MIDNIGHT.replace(hour=1)], [0, 3600]),
        ([np.datetime64("2024-01-01"), np.datetime64("2024-01-01T01:00")], [0, 3600]),
        ([np.datetime64("2024-01-01T01:00"), MIDNIGHT.date()], [3600, 0]),
        ([pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-01T02:00+01:00")], [0, 3600]),
    ],
)
def test_dates_and_times_of_several_kinds_may_share_a_column(moments, seconds):
    expected = [1704067200.0 + second for second in seconds]
    columns = {"user": [1, 2], "item": [1, 2], "time": moments}
    rows = [(user, user, 1.0, moment) for user, moment in enumerate(moments)]
    objects = pd.DataFrame({**columns, "time": pd.Series(moments, dtype=object)})
    for source in (columns, rows, objects):
        assert eq.read(source).times.tolist() == expected


def test_local_times_at_a_change_of_the_clocks_are_resolved():
    gap = dt.datetime(2024, 3, 31, 2, 30, tzinfo=ROME)  # as 01:30 UTC, an hour on
    first = dt.datetime(2024, 10, 27, 2, 30, tzinfo=ROME)
    again = first.replace(fold=1)
    columns = {"user": [1, 2, 3], "item": [1, 2, 3], "time": [gap, first, again]}
    assert eq.read(columns).times.tolist() == [1711848600.0, 1729989000.0, 1729992600.0]


def test_rows_with_names_and_arrays_with_fields_are_tables():
    expected = [[1, 1], [1, 0]]
    pairs = [(1, "tea"), (1, "milk"), (2, "milk")]
    rows = [{"user": user, "item": item} for user, item in pairs]
    array = np.array(pairs, dtype=[("user", "i8"), ("item", "U5")])
    for source in (rows, array, array.view(np.recarray)):
        assert eq.read(source).matrix.toarray().tolist() == expected


@pytest.mark.parametrize(("kind", "bits"), [(np.float32, 24), (np.float64, 53)])
def test_whole_floats_are_ids_as_long_as_they_are_told_apart(kind, bits):
    fine = pd.DataFrame({"user": np.array([1, 2**bits - 1], kind), "item": [1, 2]})
    assert eq.read(fine).users.tolist() == [1, 2**bits - 1]
    large = pd.DataFrame({"user": np.array([1, 2**bits + 1], kind), "item": [1, 2]})
    with pytest.raises(DataError, match=rf"row 2: .* beyond 2\^{bits}, where floats are not ex"):
        eq.read(large)
    assert eq.read(large, on_bad="skip").users.tolist() == [1]
