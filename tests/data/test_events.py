"""Events: every row of a table is kept, carried along, and cut where it happened."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.data.events import Events, as_types
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import pair_up
from equipoise.errors import DataError

rows = st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=8)
table = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(0, 12)), min_size=6, max_size=60
)
SHOP = [
    ("a", "milk", 1),
    ("a", "milk", 9),
    ("a", "tea", 2),
    ("b", "milk", 3),
    ("b", "tea", 4),
    ("b", "jam", 9),
    ("c", "tea", 1),
    ("c", "jam", 2),
]


def frame(events: list[tuple[Any, ...]], *more: str) -> pl.DataFrame:
    return pl.DataFrame(events, schema=["user", "item", "time", *more], orient="row")


def pairs(data: Interactions) -> set[tuple[Any, Any]]:
    return set(data.to_frame().select("user", "item").rows())


def build(lists: list[list[int]]) -> Events:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)
    return Events(np.array([item for row in lists for item in row], np.int32), offsets)


def lists_of(events: Events) -> list[list[int]]:
    return [events[row].tolist() for row in range(len(events))]


@given(rows, st.data())
@settings(max_examples=50, deadline=None)
def test_take_keep_and_recode_agree_with_lists(
    lists: list[list[int]], data: st.DataObject
) -> None:
    events = build(lists)
    assert lists_of(events) == lists
    assert events.rows.tolist() == [n for n, row in enumerate(lists) for _ in row]
    users = data.draw(st.permutations(range(len(lists))))[: len(lists) // 2]
    assert lists_of(events.take(np.array(users, np.int64))) == [lists[n] for n in users]
    even = lists_of(events.keep(events.items % 2 == 0))
    assert even == [[v for v in row if v % 2 == 0] for row in lists]
    new = np.array([-1, 3, -1, 0, 1, 2])
    renamed = [[int(new[v]) for v in row if new[v] >= 0] for row in lists]
    assert lists_of(events.recode(new)) == renamed


@given(rows)
@settings(max_examples=50, deadline=None)
def test_pairs_are_the_distinct_items_of_each_user(lists: list[list[int]]) -> None:
    events = build(lists)
    indptr, indices, place = pair_up(events.offsets, events.items)
    distinct = [indices[a:b].tolist() for a, b in pairwise(indptr)]
    assert distinct == [sorted(set(row)) for row in lists]
    assert indices[place].tolist() == events.items.tolist()


@pytest.mark.parametrize("spread", [1, 63, 64, 4096, 70_001])
def test_pairs_of_a_large_catalogue_are_those_of_each_user(
    spread: int, rng: np.random.Generator
) -> None:
    lists = [(rng.integers(0, 40, size) * spread).tolist() for size in (0, 90, 1, 7, 0, 300)]
    events = build(lists)
    indptr, indices, place = pair_up(events.offsets, events.items)
    assert [indices[a:b].tolist() for a, b in pairwise(indptr)] == [
        sorted({*row}) for row in lists
    ]
    for user, (first, stop) in enumerate(pairwise(events.offsets)):
        user_pairs = place[first:stop]
        assert ((user_pairs >= indptr[user]) & (user_pairs < indptr[user + 1])).all()
        assert indices[user_pairs].tolist() == lists[user]
    bare = pair_up(events.offsets, events.items, places=False)
    assert [array.tolist() for array in bare] == [indptr.tolist(), indices.tolist(), []]


@pytest.mark.parametrize("size", [2, 63, 64, 65, 256, 257, 1000])
@pytest.mark.parametrize("kinds", [3, 10**9])
def test_times_of_short_and_long_histories_are_sorted_alike(
    size: int, kinds: int, rng: np.random.Generator
) -> None:
    times = rng.integers(-kinds, kinds, 3 * size) / 7
    offsets = np.arange(4) * size
    events = Events.sorted_by_time(np.arange(3 * size, dtype=np.int32), offsets, times=times)
    order = [at + np.argsort(times[at : at + size], kind="stable") for at in offsets[:-1]]
    assert events.items.tolist() == np.concatenate(order).tolist()
    assert events.times is not None
    assert events.times.tolist() == times[events.items].tolist()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_nan_times_are_refused_after_sorting(wrong: float) -> None:
    times = np.array([3.0, wrong, 1.0, wrong, 2.0])
    with pytest.raises(DataError, match="times must be finite"):
        Events.sorted_by_time(np.arange(5, dtype=np.int32), np.array([0, 5]), times=times)


@pytest.mark.parametrize("block", [1, 2, 100_000])
def test_equal_times_stay_as_they_come_and_others_are_sorted(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.data.matrix.BLOCK", block)
    items, offsets = np.array([5, 6, 7, 8, 9, 1], np.int32), np.array([0, 3, 3, 5, 6])
    times, weights = np.array([2.0, 1.0, 2.0, 7.0, 7.0, 0.0]), np.arange(6.0)
    events = Events.sorted_by_time(items, offsets, times=times, weights=weights)
    assert events.items.tolist() == [6, 5, 7, 8, 9, 1]
    assert events.times is not None
    assert events.weights is not None
    assert events.times.tolist() == [1, 2, 2, 7, 7, 0]
    assert events.weights.tolist() == [1, 0, 2, 3, 4, 5]
    assert items.tolist() == [5, 6, 7, 8, 9, 1]  # those that were given stay


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"times": np.array([2.0, 1.0, 3.0])}, "must not decrease"),
        ({"times": np.array([1.0, np.nan, 3.0])}, "times must be finite"),
        ({"times": np.array([1.0])}, "1 times for 3 items"),
        ({"weights": np.array([1.0, np.inf, 1.0])}, "weights of events must be finite"),
        ({"types": np.array([0, 1, 2], np.int16), "type_names": ("a", "b")}, "2 names"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: dict[str, Any], match: str) -> None:
    with pytest.raises(DataError, match=match):
        Events(np.array([0, 1, 2], np.int32), np.array([0, 3]), **columns)


@pytest.mark.parametrize("offsets", [[], [1, 2], [0, 2, 1, 3], [0, 2], [0, 4], [[0, 3]]])
def test_invalid_offsets_are_refused(offsets: list[Any]) -> None:
    with pytest.raises(DataError, match="offsets of events must"):
        Events(np.array([0, 1, 2], np.int32), np.array(offsets, np.int64))


def test_every_row_of_a_table_is_kept() -> None:
    log = [
        ("a", "milk", 9, 2, "buy"),
        ("a", "milk", 1, 1, "view"),
        ("a", "tea", 2, 3, "buy"),
        ("b", "tea", 5, 1, None),
    ]
    data = eq.read(frame(log, "n", "event"), weight="n")
    assert data.to_frame(events=True).rows() == [
        ("a", "milk", 1.0, 1.0, "view"),
        ("a", "tea", 3.0, 2.0, "buy"),
        ("a", "milk", 2.0, 9.0, "buy"),
        ("b", "tea", 1.0, 5.0, None),
    ]
    assert data.to_frame().rows() == [
        ("a", "milk", 3.0, 9.0),
        ("a", "tea", 3.0, 2.0),
        ("b", "tea", 1.0, 5.0),
    ]
    assert data.history("a") == ["milk", "tea", "milk"]
    assert eq.read(frame(log, "n", "event"), type=False).events.types is None
    assert eq.read(frame(log, "n", "kind"), type="kind").events.type_names == ("buy", "view")


def test_plain_pairs_have_no_events() -> None:
    assert eq.read([("a", "x"), ("b", "y")]).events is None
    repeated = eq.read([("a", "x"), ("b", "y"), ("a", "x")])
    assert repeated.events.n_events == 3
    assert repeated._sequences is None  # rows of a table without times are in no order
    assert repeated.matrix.data.tolist() == [1, 1]


def test_returns_are_taken_off_and_kept() -> None:
    log = [("a", "x", 1, 2), ("a", "x", 5, -2), ("a", "y", 2, 3), ("b", "y", 3, 0.3)]
    log += [("b", "x", 1, 0.1), ("b", "x", 2, 0.2), ("b", "x", 3, -0.3), ("b", "y", 9, -0.1)]
    data = eq.read(frame(log, "n"), weight="n")
    assert data.to_frame().select("user", "item").rows() == [("a", "y"), ("b", "y")]
    assert data.matrix.data.tolist() == pytest.approx([3, 0.2])
    assert data.events.n_events == 8
    assert data.history("a") == ["x", "y"]
    assert any("3 rows with a negative weight are returns" in note for note in data.notes)
    assert any("2 pairs have no weight left" in note for note in data.notes)
    # before the return the purchase counts
    before = data._only_events(data.events.times < 3)
    assert before.to_frame().rows()[0] == ("a", "x", 2.0, 1.0)


def carried(data: Interactions) -> list[tuple[Any, ...]]:
    return sorted(data.to_frame(events=True).rows(), key=repr)


@given(table, st.data())
@settings(max_examples=40, deadline=None)
def test_parts_of_data_carry_their_events(log: list[tuple[int, int, int]], draw: Any) -> None:
    all_rows = frame([(*row, n % 3 + 1) for n, row in enumerate(log)], "n")
    data = eq.read(all_rows, weight="n", on_bad="skip")
    users = draw.draw(st.permutations(data.users.tolist()))[:3]
    items = draw.draw(st.permutations(data.items.tolist()))[:4]
    part = data.select(users, items)
    expected = all_rows.filter(pl.col("user").is_in(users) & pl.col("item").is_in(items))
    expected = expected.select("user", "item", pl.col("n").cast(float), pl.col("time").cast(float))
    assert carried(part) == sorted(expected.rows(), key=repr)
    sums = expected.group_by("user", "item").agg(pl.sum("n"), pl.max("time"))
    assert sorted(part.to_frame().rows()) == sorted(sums.rows())
    even = data.entries(data.matrix.indices % 2 == 0)
    assert {row[1] for row in carried(even)} <= set(data.items[::2].tolist())
    assert pairs(even) == {(row[0], row[1]) for row in carried(even)}


@given(table, table)
@settings(max_examples=40, deadline=None)
def test_a_union_is_both_tables_read_as_one(
    first: list[tuple[int, int, int]], second: list[tuple[int, int, int]]
) -> None:
    for columns in ({}, {"weight": "n"}):
        tables = [
            frame([(*row, n % 4 - 1) for n, row in enumerate(log)], "n") for log in (first, second)
        ]
        if columns:
            tables = [part.filter(pl.col("n") != 0) for part in tables]
        one, two = (eq.read(part, **columns, on_bad="skip") for part in tables)
        together = eq.read(pl.concat(tables), **columns, on_bad="skip")
        both = one.union(two)
        assert carried(both) == carried(together)
        assert sorted(both.to_frame().rows()) == sorted(together.to_frame().rows())


def test_a_union_can_replace() -> None:
    old = eq.read([("u", "x", 6.0), ("u", "y", 1.0), ("v", "x", 2.0)])
    new = eq.read([("u", "x", 3.0)], on_bad="skip")
    assert old.union(new).to_frame().rows()[0] == ("u", "x", 9.0)
    replaced = old.union(new, replace=True)
    assert replaced.to_frame().rows()[0] == ("u", "x", 3.0)
    assert carried(replaced) == [("u", "x", 3.0), ("u", "y", 1.0), ("v", "x", 2.0)]


def test_saved_events_come_back(tmp_path: Path) -> None:
    log = [("a", "x", 1, 2, "buy"), ("a", "x", 5, -2, None), ("b", "y", 2, 3, "view")]
    data = eq.read(frame(log, "n", "action"), weight="n")
    data.save(tmp_path / "data")
    back = eq.read(tmp_path / "data")
    assert back.to_frame(events=True).equals(data.to_frame(events=True))
    assert back.fingerprint == data.fingerprint
    other = eq.read(frame([*log[:2], ("b", "y", 2, 3, "buy")], "n", "action"), weight="n")
    assert other.fingerprint != data.fingerprint


def test_types_are_positions_in_their_names() -> None:
    codes, names = as_types(["view", None, "buy", "view"])
    assert (codes.tolist(), names) == ([1, -1, 0, 1], ("buy", "view"))


# Splits in time


def test_an_event_before_the_cut_belongs_to_the_past() -> None:
    split = eq.split.time_cut(eq.read(frame(SHOP)), test_from=8, valid=0)
    assert ("a", "milk") in pairs(split.train)
    assert split.train.select(users=["a"]).times.tolist() == [1, 2]
    assert pairs(split.test.target) == {("b", "jam")}
    assert pairs(split.test.history) == {("b", "milk"), ("b", "tea")}
    assert any("1 pair of test left out: repeats" in note for note in split.notes)


@pytest.mark.parametrize(
    ("repeats", "targets"),
    [
        ("new", {("b", "jam")}),
        ("all", {("a", "milk"), ("b", "jam")}),
        ("again", {("a", "milk")}),
    ],
)
def test_targets_are_new_items_all_items_or_repeats(
    repeats: Any, targets: set[Any], tmp_path: Path
) -> None:
    split = eq.split.time_cut(eq.read(frame(SHOP)), test_from=8, valid=0, repeats=repeats)
    assert pairs(split.test.target) == targets
    split.save(tmp_path / "split")
    assert eq.split.Split.load(tmp_path / "split").test.repeats == repeats
    model = eq.Popularity().fit(split.train)
    result = eq.evaluate(model, split.test, k=1, bootstrap=0)
    assert result.exclude_seen == (repeats == "new")
    assert result.repeats == repeats
    assert ("known items" in repr(result)) == (repeats != "new")
    # the most used item of train is tea; b lacks only jam, and a has milk already
    assert result["recall@1"] == (1.0 if repeats == "new" else 0.0)
    result.save(tmp_path / "result")
    assert type(result).load(tmp_path / "result").repeats == repeats


@given(table, st.sampled_from(["new", "all", "again"]))
@settings(max_examples=80, deadline=None)
def test_a_time_cut_equals_a_plain_computation_on_the_rows(
    log: list[tuple[int, int, int]], repeats: Any
) -> None:
    all_rows = frame(log)
    times = sorted({row[2] for row in log})
    cut = times[2 * len(times) // 3]
    before = all_rows.filter(pl.col("time") < cut)
    after = all_rows.filter(pl.col("time") >= cut)
    past = set(before.select("user", "item").rows())
    items = {item for _, item in past}
    later = {pair for pair in after.select("user", "item").rows() if pair[1] in items}
    target_pairs = {"new": later - past, "again": later & past, "all": later}[repeats]
    users = {user for user, _ in past} & {user for user, _ in target_pairs}
    if not users:
        return
    data = eq.read(all_rows, on_bad="skip")
    split = eq.split.time_cut(data, test_from=cut, valid=0, repeats=repeats)
    assert pairs(split.train) == past
    assert pairs(split.test.target) == {pair for pair in target_pairs if pair[0] in users}
    assert pairs(split.test.history) == {pair for pair in past if pair[0] in users}
    known = split.train.to_frame(events=True).select("user", "item", "time").rows()
    assert sorted(known) == sorted(before.rows())


LAST = [("u", item, n) for n, item in enumerate("abacba")] + [("v", "a", 3), ("v", "b", 4)]


@pytest.mark.parametrize(
    ("repeats", "history", "targets"),
    [
        ("new", ["a", "b", "a"], {("u", "c"), ("v", "b")}),
        ("all", ["a", "b", "a", "c", "b"], {("u", "a"), ("v", "b")}),
        ("again", ["a", "b", "a", "c", "b"], {("u", "a")}),
    ],
)
def test_the_last_event_is_left_out(repeats: Any, history: list[str], targets: set[Any]) -> None:
    data = eq.read(frame(LAST))
    split = eq.split.leave_last_out(data, valid=0, repeats=repeats)
    assert split.test.history.history("u") == history
    assert pairs(split.test.target) == targets
    assert split.train.history("u") == history
    assert split.test.repeats == repeats


def test_valid_comes_before_test_for_each_user() -> None:
    log = [("u", item, n) for n, item in enumerate("abacbda")] + [("v", "a", 1), ("v", "c", 2)]
    split = eq.split.leave_last_out(eq.read(frame(log)))
    assert split.train.history("u") == ["a", "b", "a"]
    assert pairs(split.valid.target) == {("u", "c")}
    assert split.test.history.history("u") == ["a", "b", "a", "c", "b"]
    assert pairs(split.test.target) == {("u", "d"), ("v", "c")}


def test_strong_by_time_shows_what_came_before() -> None:
    log = [(user, item, n) for user in range(10) for n, item in enumerate("abacbda")]
    data = eq.read(frame(log))
    split = eq.split.strong(data, valid=0, test=0.2, history=0.75, order="time")
    for user in split.test.history.users.tolist():
        assert split.test.history.history(user) == ["a", "b", "a", "c", "b"]
        assert split.test.target.history(user) == ["d"]


def test_session_models_take_data_with_times() -> None:
    data = eq.read(frame(SHOP))
    assert eq.SLIT(l2=1.0).fit(data).recommend(session=["milk"], k=1).items == [["tea"]]


def test_a_search_follows_the_targets_of_the_split() -> None:
    rng = np.random.default_rng(3)
    log = [
        (int(rng.integers(30)), int(rng.integers(9)), int(rng.integers(90))) for _ in range(600)
    ]
    split = eq.split.time_cut(eq.read(frame(log)), test=0.2, valid=0.2, repeats="again")
    search = eq.tune(eq.EASE(normalizer=eq.NoNorm()), split, grid={"l2": [1.0, 20.0]})
    for row in search.trials.iter_rows(named=True):
        model = eq.EASE(l2=row["l2"]).fit(split.train)
        expected = eq.evaluate(model, split.valid, bootstrap=0)["ndcg@20"]
        assert row["ndcg@20"] == pytest.approx(expected, abs=1e-12)
        assert expected > 0
