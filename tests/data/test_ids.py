"""Ids keep their type and value; look-ups say what they did not find."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data.ids import IdIndex, as_ids
from equipoise.errors import DataError, SettingError, UnknownIdError

integers = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=30)
texts = st.lists(st.text(max_size=5), unique=True, max_size=30)


@given(integers | texts)
@settings(max_examples=60, deadline=None)
def test_ids_survive_unchanged_and_are_found_where_they_stand(ids: list[object]) -> None:
    index = IdIndex(ids, "item")
    assert index.values.tolist() == ids
    assert index.positions(ids).tolist() == list(range(len(ids)))
    assert index.positions(index.values[::-1]).tolist() == list(range(len(ids)))[::-1]
    assert index.to_series().to_list() == ids


@given(integers, integers)
@settings(max_examples=60, deadline=None)
def test_arrays_and_lists_of_integers_are_looked_up_alike(
    ids: list[int], unknown: list[int]
) -> None:
    index = IdIndex(ids, "item")
    queries = unknown + ids[:3]
    from_list = index.positions(queries, unknown="skip")
    from_array = index.positions(np.array(queries, np.int64), unknown="skip")
    assert from_array.tolist() == from_list.tolist()
    assert from_list.tolist() == [ids.index(v) if v in ids else -1 for v in queries]


@pytest.mark.parametrize("ids", [[2**63 - 1, 2**63 - 3], [-(2**63), 2 - 2**63], [0, 2**63 - 1]])
def test_ids_at_the_ends_of_the_integers_are_found(ids: list[int]) -> None:
    index = IdIndex(ids, "item")
    assert index.positions(np.array(ids[::-1])).tolist() == [1, 0]
    queries = np.array([-(2**63), 2**63 - 1, 2**63 - 2, 1 - 2**63, 7])
    expected = [ids.index(value) if value in ids else -1 for value in queries.tolist()]
    assert index.positions(queries, unknown="skip").tolist() == expected


@pytest.mark.parametrize(
    "values",
    [
        *(pd.Series([3, 1]), pl.Series([3, 1]), (3, np.int32(1))),
        *(np.array([3, 1], np.uint8), np.array([3, 1], np.uint64)),
    ],
    ids=str,
)
def test_integers_of_any_container_become_int64(values: object) -> None:
    ids = as_ids(values, "user")
    assert ids.dtype == np.int64
    assert ids.tolist() == [3, 1]


@pytest.mark.parametrize(
    "values", [np.array(["a", "b"]), ["a", np.str_("b")], pl.Series(["a", "b"])]
)
def test_text_of_any_container_becomes_python_text(values: object) -> None:
    ids = as_ids(values, "user")
    assert ids.dtype == object
    assert [type(value) for value in ids] == [str, str]
    assert ids.tolist() == ["a", "b"]


def test_the_callers_array_is_neither_locked_nor_followed() -> None:
    array = np.array([1, 2, 3])
    index = IdIndex(array, "item")
    array[0] = 9
    assert index.values.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        index.values[0] = 9


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([7], r"unknown item 7; check the id"),
        (np.array([7, 1, 8]), r"unknown items 7, 8; check the id"),
        (range(10, 18), r"unknown items 10, 11, 12, 13, 14 and 3 more; check the id"),
        (["01"], "unknown item '01'; the ids of this data are integers"),
        ([1.0], "unknown item 1.0; the ids of this data are integers"),
        ([True], "unknown item True"),
        ([None], "unknown item None; the ids of this data are integers"),
        ([[1]], r"unknown item \[1\]; the ids of this data are integers"),
        ([2**70], "unknown item 1180591620717411303424; check the id"),
        (np.array([2**64 - 1], np.uint64), "unknown item 18446744073709551615; check the id"),
    ],
)
def test_unknown_ids_are_named_with_the_remedy(ids: object, message: str) -> None:
    index = IdIndex([1, 2, -1], "item")
    with pytest.raises(UnknownIdError, match=message):
        index.positions(ids)
    assert (index.positions(ids, unknown="skip") < 0).any()


def test_ids_of_the_other_kind_are_compared_by_the_kind_that_is_there() -> None:
    text, integer = IdIndex(["1", "2", "007"], "user"), IdIndex([1, 2, -7], "user")
    assert text.positions(np.array([2, 1])).tolist() == [1, 0]
    assert integer.positions(["2", "-7"]).tolist() == [1, 2]
    assert 1 in text
    assert "1" in integer
    strange = ["01", "+1", "-07", "1.0", " 1", "", True, 1.0]
    assert (integer.positions(strange, unknown="skip") == -1).sum() == len(strange)
    assert text.positions([7, 7.0, True], unknown="skip").tolist() == [-1, -1, -1]


def test_an_index_grows_by_ids_of_its_own_kind() -> None:
    text, integer = IdIndex(["1", "x"], "item"), IdIndex([1, 5], "item")
    assert text.extended(integer.values).values.tolist() == ["1", "x", "5"]
    assert integer.extended(np.array(["5", "8"], object)).values.tolist() == [1, 5, 8]
    assert IdIndex([], "item").extended(text.values).values.tolist() == ["1", "x"]
    assert text.extended(text.values) is text


@pytest.mark.parametrize("new", ["x", "05", "-0", "", str(2**63), "9" * 5000])
def test_integer_ids_become_text_where_a_new_id_is_no_integer(new: str) -> None:
    integer = IdIndex([1, -5], "item")
    wider = integer.extended(np.array(["8", new, "-5"], object))
    assert wider.values.tolist() == ["1", "-5", "8", new]
    assert wider.positions([1, "1", -5, 8, new]).tolist() == [0, 0, 1, 2, 3]
    assert integer.positions([new, "8"], unknown="skip").tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("ids", "single"),
    [(["n", "ann"], single_id) for single_id in ("ann", np.str_("ann"), np.array("ann"))]
    + [([5, 7], single_id) for single_id in (7, np.int64(7), np.array(7))],
)
def test_a_single_id_in_place_of_a_list_is_one_id(ids: list[object], single: object) -> None:
    assert IdIndex(ids, "user").positions(single).tolist() == [1]


def test_bytes_are_one_id_of_a_foreign_kind() -> None:
    index = IdIndex([97, 98], "user")
    with pytest.raises(UnknownIdError, match="unknown user b'ab'; the ids of this data are int"):
        index.positions(b"ab")
    assert index.positions(b"ab", unknown="skip").tolist() == [-1]


def test_the_position_of_one_unknown_id_is_refused_with_known_ones() -> None:
    index = IdIndex(["tea", "milk", "salt", "rice"], "item")
    assert index.position("salt") == 2
    with pytest.raises(
        UnknownIdError, match="unknown item 'gin'; known are 'tea', 'milk', 'salt'"
    ):
        index.position("gin")
    with pytest.raises(UnknownIdError, match=r"unknown item 3\.5; the ids of this data are text"):
        index.position(3.5)
    with pytest.raises(DataError, match=r"one item id is needed, got \['tea'\]"):
        index.position(["tea"])


def test_take_keeps_ids_and_refuses_repeats() -> None:
    index = IdIndex(["a", "b", "c"], "user")
    assert index.take(np.array([2, 0])).positions(["a", "c"]).tolist() == [1, 0]
    assert len(index.take(np.array([], np.int64))) == 0
    with pytest.raises(DataError, match="user 'b' is requested twice"):
        index.take(np.array([1, 0, 1]))
    with pytest.raises(DataError, match="user 7 is requested twice"):
        IdIndex([7], "user").take(np.array([0, 0]))


def test_same_as_compares_values_and_order() -> None:
    index = IdIndex([1, 2], "item")
    assert index.same_as(IdIndex([1, 2], "item"))
    assert not index.same_as(IdIndex([2, 1], "item"))
    assert not index.same_as(IdIndex(["1", "2"], "item"))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        pytest.param(lambda values=values: as_ids(values, "user"), DataError, message, id=name)
        for name, values, message in (
            ("int and str", [1, "a"], "all integers or all text, got int, str"),
            ("int and None", [1, None], "got NoneType, int"),
            ("str and None", ["a", None], "got NoneType, str"),
            ("floats", [1.0, 2.0], "got float"),
            ("array of floats", np.array([1.0, 2.0]), "got float64"),
            ("bools", [True, False], "got bool"),
            ("array of bools", np.array([True]), "got bool"),
            ("array of bytes", np.array([b"a"]), "must be integers or text"),
            ("nested", [[1, 2], [3, 4]], "one-dimensional"),
            ("one text", "abc", "one-dimensional"),
            ("large int", [2**63], "beyond 2\\^63"),
            ("large uint64", np.array([2**63], np.uint64), "beyond 2\\^63"),
        )
    ]
    + [
        pytest.param(
            lambda values=values: IdIndex(values, "item"),
            DataError,
            r"item id (1|'a') occurs twice",
            id=f"twice in {values}",
        )
        for values in ([1, 2, 1], ["a", "b", "a"], np.array([5, 1, 1, 2]))
    ]
    + [
        pytest.param(
            lambda: IdIndex([1], "user").positions([1], unknown="drop"),
            SettingError,
            "unknown must be 'error' or 'skip', got 'drop'",
            id="unknown=drop",
        ),
        pytest.param(
            lambda: IdIndex(["\ud800"], "item").to_series(),
            DataError,
            r"item id '\\ud800' is not valid Unicode",
            id="series of no unicode",
        ),
    ],
)
def test_invalid_ids_and_settings_are_refused(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
