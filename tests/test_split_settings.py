"""Settings and data that no split can be made of, and what the errors say."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import DataError, SettingError
from equipoise.interactions import Interactions


def pairs(data: Interactions) -> set[tuple[Any, Any]]:
    return set(data.to_frame().select("user", "item").iter_rows())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("strong", {"valid": -0.1}, "valid must be >= 0 and < 1, got -0.1"),
        ("strong", {"test": 0}, "test must be > 0 and < 1, got 0"),
        ("strong", {"test": 1.0}, "test must be > 0 and < 1"),
        ("strong", {"test": float("nan")}, "test must be > 0"),
        ("strong", {"test": "0.1"}, "test must be > 0 and < 1, got '0.1'"),
        ("strong", {"valid": 0.5, "test": 0.5}, "must sum to less than 1, got 0.5 \\+ 0.5"),
        ("strong", {"history": 0}, "history must be > 0 and < 1, got 0"),
        ("strong", {"history": 1}, "history must be > 0 and < 1, got 1"),
        ("strong", {"order": "size"}, "order must be 'random' or 'time', got 'size'"),
        ("strong", {"seed": -1}, "seed must be an integer >= 0"),
        ("weak", {"test": 1.5}, "test must be"),
        ("weak", {"valid": 1}, "valid must be"),
        ("leave_last_out", {"n": 0}, "n must be an integer >= 1, got 0"),
        ("leave_last_out", {"n": 1.5}, "n must be an integer"),
        ("time_cut", {"test": 0}, "test must be"),
        ("time_cut", {"test_from": "soon"}, "test_from must be an ISO date or time, got 'soon'"),
        ("time_cut", {"test_from": float("inf")}, "test_from must be finite"),
        ("time_cut", {"test_from": 5, "valid_from": 5}, "valid must begin before test"),
    ],
)
def test_bad_settings_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    data = Interactions(np.ones((10, 4)), times=np.arange(40))
    with pytest.raises(SettingError, match=message):
        getattr(eq.split, name)(data, **options)


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("strong", (4, 5), {}, "valid=0.1 and test=0.1 need at least 5 users, the data have 4"),
        ("strong", (1, 5), {"valid": 0, "test": 0.5}, "need at least 2 users"),
        ("strong", (20, 1), {}, "nobody is left in valid with a history and a target"),
        ("weak", (20, 1), {}, "at least one user with two items"),
        ("weak", (20, 2), {"valid": 0.1}, "at least one user with three items"),
        ("leave_last_out", (20, 1), {}, "needs a user with 2 items for test"),
        ("leave_last_out", (20, 2), {}, "needs a user with 3 items for valid"),
        ("time_cut", (2, 2), {"test_from": 0}, "nothing happened before 0.0"),
        ("time_cut", (2, 2), {"test_from": 9, "valid": 0}, "nothing happened from 9.0 on"),
        ("time_cut", (2, 2), {"test": 0.4, "valid": 0.4}, "nothing happened before 0.0"),
        ("time_cut", (0, 2), {}, "time_cut needs interactions"),
    ],
)
def test_data_too_small_for_the_split_are_refused(
    name: str, shape: tuple[int, int], options: dict[str, Any], message: str
) -> None:
    data = Interactions(np.ones(shape), times=np.arange(shape[0] * shape[1]))
    with pytest.raises(DataError, match=message):
        getattr(eq.split, name)(data, **options)


@pytest.mark.parametrize("n_users", range(1, 40))
@pytest.mark.parametrize(("valid", "test"), [(0.1, 0.1), (0.0, 0.03), (0.45, 0.5), (0.3, 0.3)])
def test_the_number_of_users_needed_is_true(n_users: int, valid: float, test: float) -> None:
    try:
        split = eq.split.strong(Interactions(np.ones((n_users, 2))), valid=valid, test=test)
    except DataError as error:
        found = re.search(r"at least (\d+) users", str(error))
        assert found is not None
        needed = int(found[1])
        assert needed > n_users
        split = eq.split.strong(Interactions(np.ones((needed, 2))), valid=valid, test=test)
    assert split.train.n_users > 0


@pytest.mark.parametrize(
    ("name", "options"), [("leave_last_out", {}), ("time_cut", {}), ("strong", {"order": "time"})]
)
def test_splits_along_time_need_times(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=rf"{name}.* needs times; name the column with eq\.read"):
        getattr(eq.split, name)(Interactions(np.ones((20, 4))), **options)


@pytest.mark.parametrize(
    "moment",
    [
        86400,
        "1970-01-02",
        date(1970, 1, 2),
        datetime(1970, 1, 2, tzinfo=UTC),
        "1970-01-02T01:00+01:00",
    ],
)
def test_time_cut_takes_seconds_text_and_dates(moment: Any) -> None:
    data = Interactions(np.ones((2, 2)), times=[0, 86400, 90000, 86399])
    split = eq.split.time_cut(data, test_from=moment, valid=0)
    assert pairs(split.train) == {(0, 0), (1, 1)}
    assert pairs(split.test.target) == {(0, 1), (1, 0)}
    both = eq.split.time_cut(data, test_from=90000, valid_from=moment)
    assert both.valid is not None
    assert pairs(both.valid.target) == {(0, 1)}
    assert pairs(both.test.history) == {(1, 1)}
