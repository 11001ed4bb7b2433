"""Frames, lists and matrices as sources."""

from __future__ import annotations

import datetime as dt

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
