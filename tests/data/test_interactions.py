"""Interactions: what they hold, what is made of them, and how they come back from disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.data import storage
from equipoise.data.catalogue import Catalogue
from equipoise.data.events import Events
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, FileFormatError, SettingError, UnknownIdError

Cells = dict[tuple[int, int], int]
cells = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, 5)), st.integers(1, 9), max_size=20
)


def sessions() -> Interactions:
    """Three sessions over items a-d, with times, titles and repeated events."""
    events = ["abac", "cb", "dda"]
    items = Events(
        np.array(["abcd".index(e) for row in events for e in row], np.int32),
        np.array([0, 4, 6, 9]),
    )
    matrix = np.array([[1, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]])
    return Interactions(
        matrix,
        [10, 20, 30],
        list("abcd"),
        times=[13, 12, 14, 22, 21, 33, 31],
        catalogue=pl.DataFrame({"title": ["Apple", "Bean", "Corn", None]}),
        events=items,
        notes=["made by hand"],
    )


def pairs(data: Interactions) -> dict[tuple[object, object], tuple[float, float | None]]:
    """(user, item) -> (weight, time)."""
    frame = data.to_frame()
    times = frame["time"] if data.times is not None else [None] * frame.height
    cells = zip(frame["user"], frame["item"], strict=True)
    return dict(zip(cells, zip(frame["weight"], times, strict=True), strict=True))


def titles(data: Interactions) -> dict[object, str | None]:
    assert data.catalogue is not None
    return dict(zip(data.items, data.catalogue["title"], strict=True))


def test_counts_and_sizes_are_those_of_the_matrix(toy: Interactions) -> None:
    assert (toy.n_users, toy.n_items, toy.n_interactions) == (7, 4, 15)
    assert toy.item_counts.tolist() == [5, 5, 3, 2]
    assert toy.user_counts.tolist() == [2, 2, 4, 2, 1, 3, 1]
    assert toy.density == 15 / 28
    assert toy.history("finn") == ["tea", "milk", "rice"]


def test_ids_default_to_positions() -> None:
    assert Interactions(np.ones((2, 3))).items.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"users": ["a"]}, "1 user ids for 2 users"),
        ({"catalogue": pl.DataFrame({"title": ["x"]})}, "the catalogue has 1 rows for 3 items"),
        ({"events": Events(np.int32([0]), np.array([0, 1]))}, "has 1 rows for 2 users"),
        ({"events": Events(np.int32([3]), np.array([0, 1, 1]))}, "positions from 0 to 2"),
    ],
)
def test_everything_must_fit_the_matrix(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        Interactions(np.ones((2, 3)), **changes)


def test_history_of_a_session_keeps_order_and_repeats() -> None:
    assert sessions().history(10) == ["a", "b", "a", "c"]
    assert sessions().history(30) == ["d", "d", "a"]


def test_labels_are_titles_or_else_ids(toy: Interactions) -> None:
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
    with pytest.raises(DataError, match="item 'a' is requested twice"):
        sessions().select(items=["a", "a"])
    assert sessions().select(items="a").items.tolist() == ["a"]


def test_entries_drop_the_events_of_dropped_pairs() -> None:
    data = sessions()
    mask = np.array([False, True, True, True, True, True, False])  # without (10, a) and (30, d)
    part = data.entries(mask)
    assert [part.history(user) for user in (10, 20, 30)] == [["b", "c"], ["c", "b"], ["a"]]
    assert part.times is not None
    assert part.times.tolist() == [12, 14, 22, 21, 33]
    assert titles(part) == titles(data)
    for wrong in (np.array([0, 1]), mask[:-1], mask.astype(int)):
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
    assert data.with_items(["b"], unknown_items="skip").history(20) == ["b"]
    with pytest.raises(SettingError, match="unknown_items must be"):
        data.with_items(["b"], unknown_items="drop")


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


def test_a_string_of_ids_is_one_id() -> None:
    data = Interactions(np.ones((3, 3)), ["a", "b", "ab"], ["a", "b", "ab"])
    assert data.select(users="ab").users.tolist() == ["ab"]
    assert data.select(items="ab").items.tolist() == ["ab"]
    assert data.with_items("ab", unknown_items="skip").items.tolist() == ["ab"]


def build(content: Cells) -> Interactions:
    """Users and items as they occur, so that each side has its own order of ids."""
    users = list(dict.fromkeys(user for user, _ in content))
    items = list(dict.fromkeys(item for _, item in content))
    dense = np.zeros((len(users), len(items)))
    times = np.zeros_like(dense)
    for (user, item), value in content.items():
        dense[users.index(user), items.index(item)] = value
        times[users.index(user), items.index(item)] = value * 100
    ids = (np.array(users, np.int64), np.array(items, np.int64))
    return Interactions(dense, *ids, times=times[dense > 0])


def content_of(data: Interactions) -> Cells:
    frame = data.to_frame()
    if "time" in frame.columns:
        assert (frame["time"] == frame["weight"] * 100).all()
    return {(user, item): int(weight) for user, item, weight, *_ in frame.iter_rows()}


@given(cells, cells)
@settings(max_examples=80, deadline=None)
def test_a_union_that_replaces_is_that_of_the_pairs(first: Cells, second: Cells) -> None:
    one, two = build(first), build(second)
    both = one.union(two, replace=True)
    assert content_of(both) == first | second
    assert both.users.tolist() == list(dict.fromkeys([*one.users.tolist(), *two.users.tolist()]))
    assert both.items.tolist() == list(dict.fromkeys([*one.items.tolist(), *two.items.tolist()]))


@given(cells, cells)
@settings(max_examples=80, deadline=None)
def test_difference_is_that_of_the_pairs_and_keeps_the_axes(first: Cells, second: Cells) -> None:
    one = build(first)
    remaining = one.difference(build(second))
    assert content_of(remaining) == {
        pair: value for pair, value in first.items() if pair not in second
    }
    assert remaining.users.tolist() == one.users.tolist()
    assert remaining.items.tolist() == one.items.tolist()


@given(cells, cells)
@settings(max_examples=40, deadline=None)
def test_taking_away_what_was_added_gives_the_rest_back(first: Cells, second: Cells) -> None:
    one, two = build(first), build(second)
    assert content_of(one.union(two).difference(two)) == content_of(one.difference(two))
    assert content_of(one.union(one, replace=True)) == first
    assert content_of(one.difference(one)) == {}


@given(cells, st.integers(0, 4), st.integers(0, 4))
@settings(max_examples=80, deadline=None)
def test_filter_is_the_iterated_core(content: Cells, min_user: int, min_item: int) -> None:
    data = build(content)
    left = set(content)
    while True:
        users = [user for user, _ in left]
        items = [item for _, item in left]
        fine = {
            (u, i) for u, i in left if users.count(u) >= min_user and items.count(i) >= min_item
        }
        if fine == left:
            break
        left = fine
    if not left:
        with pytest.raises(DataError, match="nothing is left with min_user="):
            data.filter(min_user=min_user, min_item=min_item)
        return
    core = data.filter(min_user=min_user, min_item=min_item)
    assert content_of(core) == {pair: content[pair] for pair in left}
    assert (core.user_counts >= min_user).all()
    assert (core.item_counts >= min_item).all()


def test_filter_says_what_it_left_out(toy: Interactions) -> None:
    core = toy.filter(min_user=2, min_item=3)
    assert core.notes == (
        "users with fewer than 2 items and items with fewer than 3 users were left out: "
        "2 users, 1 items",
    )
    assert toy.filter(min_user=1, min_item=1).notes == ()
    with pytest.raises(SettingError, match="min_user must be a whole number >= 0, got -1"):
        toy.filter(min_user=-1)


def test_data_put_together_have_ids_of_the_kind_of_the_first() -> None:
    integer, text = eq.read([(1, 10), (2, 20)]), eq.read([("2", "20"), ("3", "30")])
    assert integer.union(text).users.tolist() == [1, 2, 3]
    assert text.union(integer).items.tolist() == ["20", "30", "10"]
    assert integer.union(text).n_interactions == text.union(integer).n_interactions == 3
    assert integer.difference(text).n_interactions == 1
    named = eq.read([("ann", "20"), ("2", "x")])
    assert named.union(integer).n_interactions == 4
    wider = integer.union(named)
    assert wider.users.tolist() == ["1", "2", "ann"]
    assert wider.items.tolist() == ["10", "20", "x"]
    assert content_of(wider) == content_of(named.union(integer))
    note = "ids were integers and are text now: some added ids are not integers"
    assert wider.notes[-2:] == (f"the user {note}", f"the item {note}")
    nothing = Interactions(np.zeros((0, 0)))
    assert nothing.union(text).fingerprint == text.fingerprint
    assert text.union(nothing).fingerprint == text.fingerprint


def test_union_joins_attributes_and_the_other_wins() -> None:
    one = Interactions([[1, 1]], [1], ["a", "b"], catalogue=pl.DataFrame({"t": ["A", None]}))
    two = Interactions(
        [[1, 1]], [1], ["c", "a"], catalogue=pl.DataFrame({"t": ["C", "AA"], "year": [3, 1]})
    )
    catalogue = one.union(two).catalogue
    assert catalogue is not None
    assert catalogue.rows() == [("AA", 1), (None, None), ("C", 3)]
    plain = Interactions([[1]], [1], ["z"])
    after, before = one.union(plain).catalogue, plain.union(one).catalogue
    assert after is not None
    assert before is not None
    assert after["t"].to_list() == ["A", None, None]
    assert before["t"].to_list() == [None, "A", None]
    odd = Interactions([[1]], [1], ["a"], catalogue=pl.DataFrame({"t": [7]}))
    with pytest.raises(
        DataError, match="column 't' of the catalogue is String on one side and Int64"
    ):
        one.union(odd)


def test_union_appends_the_events_of_sessions() -> None:
    one = Interactions(
        [[1, 1]], ["s"], ["a", "b"], events=Events(np.int32([1, 0, 1]), np.array([0, 3]))
    )
    two = Interactions(
        [[1], [1]], ["t", "s"], ["c"], events=Events(np.int32([0, 0]), np.array([0, 1, 2]))
    )
    both = one.union(two)
    assert both.history("s") == ["b", "a", "b", "c"]
    assert both.history("t") == ["c"]


def test_union_says_when_times_or_the_order_are_lost() -> None:
    events = Events(np.int32([0]), np.array([0, 1]))
    timed = Interactions([[1]], times=[5], events=events, notes=["first"])
    both = timed.union(Interactions([[1]], notes=["second"]))
    assert both.times is None
    assert both._sequences is None
    assert both.notes == (
        "first",
        "second",
        "times were dropped from the union, because one side has none",
        "the order of events was dropped from the union, because one side has none",
    )


def everything() -> Interactions:
    return Interactions(
        np.array([[1, 0.5, 0], [0, 0, 2]]),
        ["ann", "Zoë\n"],
        [2**60, -7, 0],
        times=[1.5, 2.5, -3],
        catalogue=Catalogue(
            pl.DataFrame({"title": ["a", None, "c"], "year": [1990, 1991, None]}),
            pl.DataFrame({"item": [5], "title": ["new"], "year": [1992]}),
        ),
        events=Events(np.int32([1, 0, 1, 2]), np.array([0, 3, 4])),
        notes=["one", "two"],
    )


def test_everything_survives_a_round_trip(tmp_path: Path) -> None:
    data = everything()
    data.save(tmp_path / "saved")
    back = Interactions.load(tmp_path / "saved")
    assert back.fingerprint == data.fingerprint
    assert back.users.tolist() == ["ann", "Zoë\n"]
    assert back.items.tolist() == [2**60, -7, 0]
    assert back.notes == data.notes
    assert back.catalogue is not None
    assert back.catalogue.equals(data.catalogue)
    assert back.new_items is not None
    assert back.new_items.equals(data.new_items)
    assert back.history("ann") == [-7, 2**60, -7]
    assert back.times is not None
    assert back.times.tolist() == [1.5, 2.5, -3]


@given(
    st.lists(st.text(max_size=4), unique=True, min_size=1, max_size=5)
    | st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, min_size=1, max_size=5)
)
@settings(max_examples=25, deadline=None)
def test_ids_survive_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory, ids: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("ids")
    data = Interactions(np.ones((len(ids), 1)), ids)
    data.save(path)
    back = Interactions.load(path)
    assert back.users.tolist() == ids
    assert back.users.dtype == data.users.dtype
    assert back.fingerprint == data.fingerprint


def test_negative_values_survive_a_round_trip_and_a_union(tmp_path: Path) -> None:
    data = Interactions([[1, -1, 0], [0, 2, -3]], signed=True)
    data.save(tmp_path)
    back = Interactions.load(tmp_path)
    assert back.signed
    assert back.fingerprint == data.fingerprint
    assert back.item_counts.tolist() == data.item_counts.tolist() == [1, 1, 0]
    assert data.union(data).matrix.toarray().tolist() == [[2, -2, 0], [0, 4, -6]]
    replaced = data.union(data, replace=True)
    assert replaced.matrix.toarray().tolist() == data.matrix.toarray().tolist()


def test_an_empty_matrix_survives_a_round_trip(tmp_path: Path) -> None:
    Interactions(np.zeros((0, 2)), items=["a", "b"]).save(tmp_path)
    back = Interactions.load(tmp_path)
    assert back.matrix.shape == (0, 2)
    assert (back.times, back.catalogue, back._sequences) == (None, None, None)


def test_ids_that_no_file_can_hold_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not valid Unicode"):
        Interactions([[1]], ["\ud800"]).save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def tampered(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest of a saved directory."""
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    file.write_text(json.dumps(manifest))


SHAPES = (None, [2], [2, 3, 4], "23", [2.0, 3], [True, 3], [-1, 3], [3, 3], [2, 2], [10**30, 3])


@pytest.mark.parametrize(
    ("name", "value"),
    [("shape", shape) for shape in SHAPES] + [("notes", notes) for notes in ("abc", [1], None)],
    ids=str,
)
def test_wrong_settings_in_the_manifest_are_refused(
    tmp_path: Path, name: str, value: object
) -> None:
    everything().save(tmp_path)
    tampered(tmp_path, lambda manifest: manifest["meta"].update({name: value}))
    with pytest.raises(FileFormatError, match="is damaged"):
        Interactions.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("indptr", np.array([0, 2, 1])),
        ("indptr", np.array([0, 9, 3])),
        ("indptr", np.array([1, 2, 3])),
        ("indptr", np.array([0, 2, -3])),
        ("indptr", np.array([0.0, 2.0, 3.0])),
        ("indices", np.array([0, 1, 9], np.int32)),
        ("indices", np.array([0, -1, 2], np.int32)),
        ("indices", np.array([0, 0, 2], np.int32)),
        ("indices", np.array([0, 1], np.int32)),
        ("weights", np.array([1, np.nan, 1], np.float32)),
        ("weights", np.array([1, -1, 1], np.float32)),
        ("weights", np.array(["a", "b", "c"])),
        ("event_times", np.array([1.0, np.inf, 1.0, 1.0])),
        ("event_times", np.array([3.0, 2.0, 1.0, 1.0])),
        ("event_times", np.array([1.0])),
        ("offsets", np.array([0, 5, 4])),
        ("offsets", np.array([1, 3, 4])),
        ("events", np.array([0, 1, 2, 3], np.int32)),
        ("events", np.array([0, 1, 2, -1], np.int32)),
        ("users", pl.DataFrame({"id": ["ann", "ann"]})),
        ("users", pl.DataFrame({"id": ["ann", None]})),
        ("users", pl.DataFrame({"id": [1.5, 2.5]})),
        ("users", pl.DataFrame({"name": ["a", "b"]})),
        ("users", pl.DataFrame({"id": ["a"]})),
        ("labels", pl.DataFrame({"title": ["a"]})),
        ("new_items", pl.DataFrame({"item": [8], "title": ["Z"]})),
        ("new_items", pl.DataFrame({"item": [None], "title": ["Z"], "year": [1]})),
        ("new_items", pl.DataFrame({"item": ["8"], "title": ["Z"], "year": [1]})),
        ("new_items", pl.DataFrame({"item": [-7], "title": ["Z"], "year": [1]})),
        ("new_items", pl.DataFrame({"item": [8, 8], "title": ["Z", "Z"], "year": [1, 1]})),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_content_with_matching_checksums_is_refused(
    tmp_path: Path, name: str, content: Any
) -> None:
    everything().save(tmp_path)
    (file,) = tmp_path.glob(f"{name}-*")
    if isinstance(content, pl.DataFrame):
        content.write_parquet(file)
    else:
        with file.open("wb") as stream:
            np.save(stream, content)
    entry = storage.file_entry(file)
    tampered(tmp_path, lambda manifest: manifest["files"].update({name: entry}))
    with pytest.raises(FileFormatError, match="is damaged"):
        Interactions.load(tmp_path)


@pytest.mark.parametrize("name", ["indptr", "indices", "weights", "users", "items", "events"])
def test_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    everything().save(tmp_path)
    tampered(tmp_path, lambda manifest: manifest["files"].pop(name))
    with pytest.raises(FileFormatError, match=f"has no (array|table) '{name}'"):
        Interactions.load(tmp_path)


def test_data_take_another_catalogue(toy: Interactions) -> None:
    frame = pl.DataFrame({"code": ["milk", "tea"], "name": ["Milk", "Tea"], "title": ["M", "T"]})
    data = toy.with_catalogue(frame, id="code", title="name")
    assert data.catalogue is not None
    assert data.catalogue.columns == ["name", "title"]
    assert [data.label(item) for item in ("tea", "milk")] == ["Tea", "Milk"]
    assert data.fingerprint == toy.fingerprint
    assert toy.catalogue is None
