"""Sessions keep order and repeats; a pause cuts a click log."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.errors import DataError, SettingError
from equipoise.readers.build import gap_seconds


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


def test_gap_needs_times():
    with pytest.raises(DataError, match="no column looks like the time"):
        eq.read({"user": [1, 2], "item": [1, 2]}, gap=60)


@pytest.mark.parametrize(
    ("gap", "value"),
    [(90, 90.0), ("90s", 90.0), ("30m", 1800.0), ("1.5h", 5400.0), ("2d", 172800.0)],
)
def test_gaps_have_units(gap, value):
    assert gap_seconds(gap) == value


@pytest.mark.parametrize("gap", [0, -1, "30", "soon", np.inf])
def test_gaps_that_mean_nothing_are_refused(gap):
    with pytest.raises(SettingError, match="gap must be"):
        gap_seconds(gap)
