"""Interactions: what they hold, and what slices of them carry along."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.errors import DataError, SettingError, UnknownIdError
from equipoise.interactions import Interactions
from equipoise.matrix import Sequences


def sessions() -> Interactions:
    """Three sessions over items a-d, with times, titles and repeated events."""
    events = ["abac", "cb", "dda"]
    items = Sequences(
        np.array(["abcd".index(e) for row in events for e in row], np.int32),
        np.array([0, 4, 6, 9]),
    )
    matrix = np.array([[1, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]])
    return Interactions(
        matrix,
        [10, 20, 30],
        list("abcd"),
        times=[12, 13, 14, 22, 21, 33, 31],
        labels=pl.DataFrame({"title": ["Apple", "Bean", "Corn", None]}),
        sequences=items,
        notes=["made by hand"],
    )


def pairs(data: Interactions) -> dict[tuple[object, object], tuple[float, float | None]]:
    """(user, item) -> (weight, time)."""
    frame = data.to_frame()
    times = frame["time"] if data.times is not None else [None] * frame.height
    cells = zip(frame["user"], frame["item"], strict=True)
    return dict(zip(cells, zip(frame["weight"], times, strict=True), strict=True))


def titles(data: Interactions) -> dict[object, str | None]:
    assert data.labels is not None
    return dict(zip(data.items, data.labels["title"], strict=True))


def test_counts_and_sizes_are_those_of_the_matrix(toy: Interactions) -> None:
    assert (toy.n_users, toy.n_items, toy.n_interactions) == (7, 4, 15)
    assert toy.item_counts.tolist() == [5, 5, 3, 2]
    assert toy.user_counts.tolist() == [2, 2, 4, 2, 1, 3, 1]
    assert toy.density == 15 / 28
    assert toy.history("finn") == ["tea", "milk", "rice"]


def test_ids_default_to_positions_and_must_fit_the_matrix() -> None:
    assert Interactions(np.ones((2, 3))).items.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="1 user ids for 2 users"):
        Interactions(np.ones((2, 3)), ["a"])
    with pytest.raises(DataError, match="labels has 1 rows for 3 items"):
        Interactions(np.ones((2, 3)), labels=pl.DataFrame({"title": ["x"]}))
    with pytest.raises(DataError, match="sequences has 1 rows for 2 users"):
        Interactions(np.ones((2, 3)), sequences=Sequences(np.int32([0]), np.array([0, 1])))
    with pytest.raises(DataError, match="positions from 0 to 2"):
        Interactions(np.ones((1, 3)), sequences=Sequences(np.int32([3]), np.array([0, 1])))


def test_history_of_a_session_keeps_order_and_repeats() -> None:
    assert sessions().history(10) == ["a", "b", "a", "c"]
    assert sessions().history(30) == ["d", "d", "a"]


def test_labels_are_titles_with_the_id_as_a_stand_in(toy: Interactions) -> None:
    assert sessions().label("b") == "Bean"
    assert sessions().label("d") == "d"
    assert toy.label("tea") == "tea"
    with pytest.raises(UnknownIdError, match="unknown item 'z'"):
        sessions().label("z")


def test_rows_carry_everything_along() -> None:
    part = sessions().rows([2, 0])
    assert part.users.tolist() == [30, 10]
    assert part.history(30) == ["d", "d", "a"]
    assert part.history(10) == ["a", "b", "a", "c"]
    assert pairs(part) == {k: v for k, v in pairs(sessions()).items() if k[0] != 20}
    assert titles(part) == titles(sessions())
    assert part.notes == ("made by hand",)
    mask = sessions().rows(np.array([True, False, True]))
    assert mask.users.tolist() == [10, 30]


def test_columns_carry_everything_along() -> None:
    part = sessions().columns([3, 0])
    assert part.items.tolist() == ["d", "a"]
    assert [part.history(user) for user in (10, 20, 30)] == [["a", "a"], [], ["d", "d", "a"]]
    assert pairs(part) == {k: v for k, v in pairs(sessions()).items() if k[1] in "da"}
    assert titles(part) == {"d": None, "a": "Apple"}
    assert part.notes == ("made by hand",)


def test_select_takes_raw_ids_in_the_given_order() -> None:
    part = sessions().select(users=[30, 10], items=["c", "a"])
    assert (part.users.tolist(), part.items.tolist()) == ([30, 10], ["c", "a"])
    assert part.history(10) == ["a", "a", "c"]
    assert part.matrix.toarray().tolist() == [[0, 1], [1, 1]]
    with pytest.raises(UnknownIdError, match="unknown user 40"):
        sessions().select(users=[40])
    with pytest.raises(DataError, match="item 'a' is asked for twice"):
        sessions().select(items=["a", "a"])
    assert sessions().select(items="a").items.tolist() == ["a"]


def test_entries_drop_the_events_of_dropped_pairs() -> None:
    data = sessions()
    kept = np.array([False, True, True, True, True, True, False])  # without (10, a) and (30, d)
    part = data.entries(kept)
    assert [part.history(user) for user in (10, 20, 30)] == [["b", "c"], ["c", "b"], ["a"]]
    assert part.times is not None
    assert part.times.tolist() == [13, 14, 22, 21, 33]
    assert titles(part) == titles(data)
    for wrong in (np.array([0, 1]), kept[:-1], kept.astype(int)):
        with pytest.raises(DataError, match="entries needs a mask of 7"):
            data.entries(wrong)


def test_with_items_moves_columns_and_leaves_gaps_for_new_ones() -> None:
    data = sessions().rows([1])  # uses b and c only
    other = data.with_items(["new", "c", "b"])
    assert pairs(other) == pairs(data)
    assert other.history(20) == ["c", "b"]
    assert titles(other) == {"new": None, "c": "Corn", "b": "Bean"}
    assert data.with_items(data.item_index) is data
    with pytest.raises(UnknownIdError, match="unknown item 'c'"):
        data.with_items(["b"])
    assert data.with_items(["b"], unknown="skip").history(20) == ["b"]
    with pytest.raises(SettingError, match="unknown must be"):
        data.with_items(["b"], unknown="drop")


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_slices_agree_with_dense_indexing(data: st.DataObject) -> None:
    n, m = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    dense = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n * m, max_size=n * m)))
    dense = dense.reshape(n, m)
    inter = Interactions(dense, times=np.flatnonzero(dense))
    rows = data.draw(st.lists(st.integers(0, n - 1), unique=True))
    columns = data.draw(st.lists(st.integers(0, m - 1), unique=True))
    part = inter.rows(rows).columns(columns)
    assert part.matrix.toarray().tolist() == dense[rows][:, columns].tolist()
    cells = np.arange(n * m).reshape(n, m)[rows][:, columns]
    assert part.times is not None
    assert part.times.tolist() == cells[dense[rows][:, columns] > 0].tolist()
    assert part.matrix.has_canonical_format


def test_the_fingerprint_follows_every_change() -> None:
    data = sessions()
    same = sessions()
    assert data.fingerprint == same.fingerprint
    assert len(data.fingerprint) == 12
    changed = [
        Interactions(data.matrix * 2, data.users, data.items, times=data.times),
        Interactions(data.matrix, data.users, data.items, times=data.times),
        Interactions(data.matrix, data.users, data.items, times=np.arange(7)),
        Interactions(data.matrix, [1, 2, 3], data.items),
        Interactions(data.matrix, data.users, list("abce")),
        Interactions(data.matrix, data.users, data.items),
        data.rows([0, 1]),
        data.rows([0, 2, 1]),
    ]
    prints = {other.fingerprint for other in changed}
    assert len(prints) == len(changed)
    assert data.fingerprint not in prints


def test_to_frame_keeps_the_type_of_ids() -> None:
    frame = sessions().to_frame()
    assert frame.schema == {
        "user": pl.Int64,
        "item": pl.String,
        "weight": pl.Float32,
        "time": pl.Float64,
    }
    assert frame.row(3) == (20, "b", 1.0, 22.0)
    empty = Interactions(np.zeros((0, 2)), np.array([], object), ["a", "b"]).to_frame()
    assert empty.schema["user"] == pl.String
    assert empty.height == 0


def test_repr_and_notebook_view_say_the_size(toy: Interactions) -> None:
    assert repr(toy) == "Interactions: 7 users x 4 items, 15 interactions (density 53.6%)"
    html = Interactions(np.ones((1, 1)), ["<i>"], notes=["a < b"])._repr_html_()
    assert "1 users x 1 items" in html
    assert "a &lt; b" in html
    assert "&lt;i&gt;" in html
    assert "<i>" not in html
    assert "0 interactions" in Interactions(sp.csr_array((0, 0)))._repr_html_()


def test_an_empty_matrix_can_be_sliced() -> None:
    data = Interactions(np.zeros((2, 2)))
    assert data.rows([]).columns([]).matrix.shape == (0, 0)
    assert data.density == 0
    assert titles(sessions().columns([])) == {}
    assert Interactions(np.zeros((0, 0))).density == 0


def test_a_text_in_place_of_ids_is_one_id() -> None:
    data = Interactions(np.ones((3, 3)), ["a", "b", "ab"], ["a", "b", "ab"])
    assert data.select(users="ab").users.tolist() == ["ab"]
    assert data.select(items="ab").items.tolist() == ["ab"]
    assert data.with_items("ab", unknown="skip").items.tolist() == ["ab"]
