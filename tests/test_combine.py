"""Union, difference, k-core and noise, each against sets of pairs."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.errors import DataError, SettingError
from equipoise.interactions import Interactions
from equipoise.matrix import Sequences

Cells = dict[tuple[int, int], int]
cells = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, 5)), st.integers(1, 9), max_size=20
)


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
def test_union_is_that_of_the_pairs_and_the_other_wins(first: Cells, second: Cells) -> None:
    one, two = build(first), build(second)
    both = one.union(two)
    assert content_of(both) == first | second
    assert both.users.tolist() == list(dict.fromkeys([*one.users.tolist(), *two.users.tolist()]))
    assert both.items.tolist() == list(dict.fromkeys([*one.items.tolist(), *two.items.tolist()]))


@given(cells, cells)
@settings(max_examples=80, deadline=None)
def test_difference_is_that_of_the_pairs_and_keeps_the_axes(first: Cells, second: Cells) -> None:
    one = build(first)
    rest = one.difference(build(second))
    assert content_of(rest) == {pair: value for pair, value in first.items() if pair not in second}
    assert rest.users.tolist() == one.users.tolist()
    assert rest.items.tolist() == one.items.tolist()


@given(cells, cells)
@settings(max_examples=40, deadline=None)
def test_taking_away_what_was_added_gives_the_rest_back(first: Cells, second: Cells) -> None:
    one, two = build(first), build(second)
    assert content_of(one.union(two).difference(two)) == content_of(one.difference(two))
    assert content_of(one.union(one)) == first
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
    with pytest.raises(SettingError, match="min_user must be >= 0, got -1"):
        toy.filter(min_user=-1)


def test_union_and_difference_need_ids_of_one_kind(toy: Interactions) -> None:
    numbered = Interactions(np.ones((2, 2)))
    for combine in (toy.union, toy.difference, numbered.union, numbered.difference):
        other = numbered if combine.__self__ is toy else toy
        with pytest.raises(DataError, match="user ids are integers on one side and text"):
            combine(other)
    nothing = Interactions(np.zeros((0, 0)))
    assert nothing.union(toy).fingerprint == toy.fingerprint
    assert toy.union(nothing).fingerprint == toy.fingerprint


def test_union_joins_labels_and_the_other_wins() -> None:
    one = Interactions([[1, 1]], [1], ["a", "b"], labels=pl.DataFrame({"t": ["A", None]}))
    two = Interactions(
        [[1, 1]], [1], ["c", "a"], labels=pl.DataFrame({"t": ["C", "AA"], "year": [3, 1]})
    )
    labels = one.union(two).labels
    assert labels is not None
    assert labels.rows() == [("AA", 1), (None, None), ("C", 3)]
    plain = Interactions([[1]], [1], ["z"])
    after, before = one.union(plain).labels, plain.union(one).labels
    assert after is not None
    assert before is not None
    assert after["t"].to_list() == ["A", None, None]
    assert before["t"].to_list() == [None, "A", None]
    odd = Interactions([[1]], [1], ["a"], labels=pl.DataFrame({"t": [7]}))
    with pytest.raises(DataError, match="label column 't' is String on one side and Int64"):
        one.union(odd)


def test_union_appends_the_events_of_sessions() -> None:
    one = Interactions(
        [[1, 1]], ["s"], ["a", "b"], sequences=Sequences(np.int32([1, 0, 1]), np.array([0, 3]))
    )
    two = Interactions(
        [[1], [1]], ["t", "s"], ["c"], sequences=Sequences(np.int32([0, 0]), np.array([0, 1, 2]))
    )
    both = one.union(two)
    assert both.history("s") == ["b", "a", "b", "c"]
    assert both.history("t") == ["c"]


def test_union_says_when_times_or_sequences_are_lost() -> None:
    events = Sequences(np.int32([0]), np.array([0, 1]))
    timed = Interactions([[1]], times=[5], sequences=events, notes=["first"])
    both = timed.union(Interactions([[1]], notes=["second"]))
    assert both.times is None
    assert both.sequences is None
    assert both.notes == (
        "first",
        "second",
        "times were left out of a union, because one side has none",
        "sequences were left out of a union, because one side has none",
    )


@pytest.mark.parametrize("ratio", [0.0, 0.05, 0.3, 1.0])
def test_noise_replaces_exactly_its_share_by_unobserved_pairs(
    synthetic: Interactions, ratio: float
) -> None:
    noisy = synthetic.with_noise(ratio, seed=3)
    before = set(synthetic.to_frame().select("user", "item").iter_rows())
    after = set(noisy.to_frame().select("user", "item").iter_rows())
    assert len(after) == len(before) == noisy.n_interactions
    assert len(after - before) == round(ratio * len(before))
    assert noisy.matrix.shape == synthetic.matrix.shape
    assert (noisy.matrix.data == 1).all()
    assert f"({ratio:.0%}) replaced by unobserved ones" in noisy.notes[-1]


def test_noise_follows_its_seed_alone(synthetic: Interactions) -> None:
    first = synthetic.with_noise(0.2, seed=1)
    np.random.default_rng(5).random(3)
    assert synthetic.with_noise(0.2, seed=1).fingerprint == first.fingerprint
    assert synthetic.with_noise(0.2, seed=2).fingerprint != first.fingerprint


def test_noise_is_drawn_evenly_over_the_free_cells() -> None:
    data = Interactions(np.eye(4, 5))
    total = sum(data.with_noise(0.5, seed=seed).matrix.toarray() for seed in range(600))
    free = total[data.matrix.toarray() == 0]
    # 2 of 16 free cells in each of 600 draws: 75 each, standard deviation 8.1; 5 of these.
    assert free.min() > 75 - 41
    assert free.max() < 75 + 41


def test_noise_works_on_a_nearly_full_matrix_and_says_when_it_cannot() -> None:
    data = Interactions(1 - np.eye(4))
    assert data.with_noise(1 / 3).matrix.diagonal().tolist() == [1, 1, 1, 1]
    with pytest.raises(DataError, match="5 pairs cannot be replaced: fewer are unobserved"):
        data.with_noise(5 / 12)
    assert Interactions(np.zeros((0, 3))).with_noise(0.5).n_interactions == 0


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_noise_refuses_a_ratio_that_is_no_share(toy: Interactions, ratio: float) -> None:
    with pytest.raises(SettingError, match="ratio must lie between 0 and 1"):
        toy.with_noise(ratio)


@pytest.mark.parametrize("seed", [-1, 1.5, "a", None, True])
def test_noise_refuses_a_seed_that_is_no_number(toy: Interactions, seed: object) -> None:
    with pytest.raises(SettingError, match="seed must be an integer >= 0"):
        toy.with_noise(0.1, seed)
