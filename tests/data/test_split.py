"""Splits lose nothing, mix nothing up, and say what they left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.split import Split
from equipoise.errors import DataError, SettingError

Pairs = set[tuple[Any, Any]]
LATER = "training may contain events later than held-out ones"
shares = st.sampled_from([0.1, 0.2, 0.25, 0.34])


@st.composite
def timed_data(draw: st.DrawFn) -> Interactions:
    """Up to 30 users x 8 items with coarse times, so that ties are common."""
    n_users, n_items = draw(st.integers(1, 30)), draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    dense = rng.random((n_users, n_items)) < draw(st.sampled_from([0.2, 0.5, 0.9]))
    users = [f"u{n}" for n in range(n_users)]
    times = rng.integers(0, draw(st.sampled_from([5, 1000])), int(dense.sum()))
    return Interactions(dense, users, times=times)


def pairs(*parts: Interactions) -> Pairs:
    return {pair for part in parts for pair in part.to_frame().select("user", "item").iter_rows()}


def times(data: Interactions) -> dict[tuple[Any, Any], float]:
    return {(user, item): time for user, item, _, time in data.to_frame().iter_rows()}


def noted(split: Split, pattern: str) -> int:
    """Sum of the numbers that begin the notes that match."""
    matching = [note for note in split.notes if re.search(pattern, note)]
    return sum(int(note.split()[0].replace(",", "")) for note in matching)


def attempt(split: Callable[..., Split], data: Interactions, **options: Any) -> Split:
    """Split, or skip the example where the data are too small to be split."""
    try:
        return split(data, **options)
    except DataError as error:
        assume(not re.search("need at least|needs|is left|nothing happened", str(error)))
        raise


def check_parts(split: Split, data: Interactions) -> None:
    """Check what holds for every split of pairs."""
    for part in split.parts:
        assert part.history.user_counts.all()
        assert part.target.user_counts.all()
        assert not pairs(part.history) & pairs(part.target)
        assert pairs(part.history) | pairs(part.target) <= pairs(data)
        assert not pairs(part.target) & pairs(split.train)
        for side in (part.history, part.target):
            assert side.items.tolist() == split.train.items.tolist()
            assert times(side).items() <= times(data).items()
    assert pairs(split.train) <= pairs(data)
    if split.valid is not None:
        assert not pairs(split.valid.target) & pairs(split.test.target)


@given(timed_data(), shares, shares, st.integers(0, 5), st.sampled_from(["random", "time"]))
@settings(max_examples=60, deadline=None)
def test_strong_holds_out_users_and_notes_every_loss(
    data: Interactions, valid: float, test: float, seed: int, order: str
) -> None:
    split = attempt(eq.split.strong, data, valid=valid, test=test, seed=seed, order=order)
    check_parts(split, data)
    assert split.valid is not None
    groups = [split.train.users, split.valid.history.users, split.test.history.users]
    users = np.concatenate(groups).tolist()
    assert len(set(users)) == len(users)
    assert len(users) + noted(split, "users? of .* left out") == data.n_users
    assert split.train.n_users == data.n_users - sum(
        int(share * data.n_users + 0.5) for share in (valid, test)
    )
    known = set(split.train.items.tolist())
    assert known == {item for _, item in pairs(split.train)}
    held_out = {pair for pair in pairs(data) if pair[0] not in split.train.users.tolist()}
    assert noted(split, "pairs? of") == sum(item not in known for _, item in held_out)
    evaluated = {pair for pair in held_out if pair[1] in known and pair[0] in users}
    sides = [side for part in split.parts for side in (part.history, part.target)]
    assert pairs(*sides) == evaluated
    for part in split.parts:
        total = part.history.user_counts + part.target.user_counts
        n_hidden = np.clip(np.floor(0.2 * total + 0.5), 1, total - 1)
        np.testing.assert_array_equal(part.target.user_counts, n_hidden)
        if order == "time":
            for user in part.history.users:
                shown = part.history.select(users=[user]).times
                hidden = part.target.select(users=[user]).times
                assert shown is not None
                assert hidden is not None
                assert shown.max() <= hidden.min()


@given(timed_data(), st.sampled_from([0.0, 0.1, 0.5]), shares, st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_weak_hides_a_share_of_every_user(
    data: Interactions, valid: float, test: float, seed: int
) -> None:
    split = attempt(eq.split.weak, data, valid=valid, test=test, seed=seed)
    check_parts(split, data)
    assert pairs(split.train, *(part.target for part in split.parts)) == pairs(data)
    assert split.train.users.tolist() == data.users.tolist()
    assert split.train.items.tolist() == data.items.tolist()
    for part in split.parts:
        rows = data.user_index.positions(part.history.users)
        assert (part.history.matrix != split.train.matrix[rows]).nnz == 0
    counts = data.user_counts
    hidden = np.where(counts < 2, 0, np.clip(np.floor(test * counts + 0.5), 1, counts - 1))
    assert split.test.history.users.tolist() == data.users[hidden > 0].tolist()
    np.testing.assert_array_equal(split.test.target.user_counts, hidden[hidden > 0])
    assert noted(split, "in train only") == (hidden == 0).sum()
    assert (split.valid is None) == (valid == 0)
    if split.valid is not None:
        left = (counts - hidden)[counts - hidden >= 2]
        n_hidden = np.clip(np.floor(valid * left + 0.5), 1, left - 1)
        np.testing.assert_array_equal(split.valid.target.user_counts, n_hidden)


@given(timed_data(), st.integers(0, 3), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_leave_last_out_hides_the_last_items_of_each_user(
    data: Interactions, valid: int, test: int
) -> None:
    split = attempt(eq.split.leave_last_out, data, valid=valid, test=test)
    assert (split.valid is None) == (valid == 0)
    check_parts(split, data)
    assert pairs(split.train, *(part.target for part in split.parts)) == pairs(data)
    when = times(data)
    for user in data.users:
        ordered = sorted((pair for pair in when if pair[0] == user), key=lambda p: (when[p], p[1]))
        before, last = ordered[:-test], ordered[-test:]
        if len(ordered) <= test:
            before, last = ordered, []
        assert {pair for pair in pairs(split.test.target) if pair[0] == user} == set(last)
        in_history = {pair for pair in pairs(split.test.history) if pair[0] == user}
        assert in_history == (set(before) if last else set())
        if split.valid is not None:
            tuned = before[-valid:] if len(ordered) > test + valid else []
            assert {p for p in pairs(split.valid.target) if p[0] == user} == set(tuned)
            assert pairs(split.valid.history) <= pairs(split.train)
    assert noted(split, "in train only") == (data.user_counts <= test).sum()


@given(timed_data(), st.sampled_from([0.0, 0.1, 0.3]), shares)
@settings(max_examples=60, deadline=None)
def test_time_cut_never_learns_from_the_future(
    data: Interactions, valid: float, test: float
) -> None:
    split = attempt(eq.split.time_cut, data, valid=valid, test=test)
    check_parts(split, data)
    assert (split.valid is None) == (valid == 0)
    when = times(data)
    cuts = [min(times(part.target).values()) for part in split.parts]
    assert max(times(split.train).values()) < cuts[0]
    for part in split.parts:
        assert max(times(part.history).values()) < min(times(part.target).values())
    assert not any(LATER in note for note in split.notes)
    assert split.train.item_counts.all()
    assert split.train.user_counts.all()
    known = set(split.train.items.tolist())
    ordered = sorted(when.values())
    test_cut = ordered[len(ordered) - max(int(test * len(ordered) + 0.5), 1)]
    future = {pair for pair in when if when[pair] >= test_cut}
    past = {pair for pair in when if when[pair] < test_cut and pair[1] in known}
    judged = {u for u, i in future if i in known} & {u for u, _ in past}
    assert pairs(split.test.target) == {(u, i) for u, i in future if i in known and u in judged}
    assert pairs(split.test.history) == {(u, i) for u, i in past if u in judged}
    assert noted(split, "of test left out") == sum(item not in known for _, item in future)
    assert noted(split, "active in test") == len({u for u, _ in future} - judged)


@given(timed_data(), st.integers(2, 6), st.sampled_from([0.0, 0.2]), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_strong_folds_test_every_user_once(
    data: Interactions, n: int, valid: float, seed: int
) -> None:
    splits = attempt_folds(data, n, protocol="strong", valid=valid, seed=seed)
    tested: list[Any] = []
    n_lost = 0
    for split in splits:
        check_parts(split, data)
        assert (split.valid is None) == (valid == 0)
        n_held_out = split.test.n_users + noted(split, "users? of test left out")
        assert n_held_out in (data.n_users // n, -(-data.n_users // n))
        n_valid = int(valid * data.n_users + 0.5)
        assert split.train.n_users == data.n_users - n_held_out - n_valid
        users = [split.train.users, *(part.history.users for part in split.parts)]
        assert len(set(np.concatenate(users))) == sum(map(len, users))
        tested += split.test.history.users.tolist()
        n_lost += noted(split, "users? of test left out")
    assert len(set(tested)) == len(tested) == data.n_users - n_lost


@given(timed_data(), st.integers(2, 6), st.sampled_from([0.0, 0.2]), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_weak_folds_test_every_pair_once(
    data: Interactions, n: int, valid: float, seed: int
) -> None:
    splits = attempt_folds(data, n, protocol="weak", valid=valid, seed=seed)
    tested: list[Any] = []
    for split in splits:
        check_parts(split, data)
        assert pairs(split.train, *(part.target for part in split.parts)) == pairs(data)
        counts = data.rows(data.user_index.positions(split.test.history.users)).user_counts
        n_hidden = split.test.target.user_counts
        assert ((n_hidden == counts // n) | (n_hidden == -(-counts // n))).all()
        tested += sorted(pairs(split.test.target))
    single = set(data.users[data.user_counts < 2].tolist())
    assert sorted(tested) == sorted(pair for pair in pairs(data) if pair[0] not in single)


def attempt_folds(data: Interactions, n: int, **options: Any) -> list[Split]:
    """Return all folds, or skip the example where the data are too small."""
    try:
        return list(eq.split.folds(data, n, **options))
    except DataError as error:
        assume(not re.search("too few|use fewer folds|needs|is left", str(error)))
        raise


def test_folds_are_the_same_for_the_same_seed(synthetic: Interactions) -> None:
    for protocol in ("strong", "weak"):
        first, again, other = (
            [fold.fingerprint for fold in eq.split.folds(synthetic, 3, protocol=protocol, seed=n)]
            for n in (4, 4, 5)
        )
        assert first == again
        assert not set(first) & set(other)
        assert len(set(first)) == 3


def test_folds_use_the_history_and_order_of_strong() -> None:
    data = timed((20, 6))
    for split in eq.split.folds(data, 4, history=0.5, order="time"):
        assert split.test.history.user_counts.tolist() == [3] * 5
        assert max(split.test.history.matrix.indices) == 2


@pytest.mark.parametrize("name", ["strong", "weak"])
def test_the_seed_alone_decides(synthetic: Interactions, name: str) -> None:
    split = getattr(eq.split, name)
    first = split(synthetic, seed=4)
    np.random.seed(1)  # noqa: NPY002 - the global state is what must not matter
    assert split(synthetic, seed=4).fingerprint == first.fingerprint
    assert split(synthetic, seed=5).fingerprint != first.fingerprint
    assert first.seed == 4


def test_strong_shares_are_those_of_the_paper(synthetic: Interactions) -> None:
    split = eq.split.strong(synthetic)
    assert split.valid is not None
    assert split.train.n_users == 240
    assert (split.valid.n_users, split.test.n_users) == (30, 30)
    total = split.test.history.n_interactions + split.test.target.n_interactions
    assert abs(split.test.target.n_interactions / total - 0.2) < 0.02  # rounding of short rows
    assert eq.split.strong(synthetic, valid=0).valid is None


def test_splits_that_may_learn_from_the_future_say_so(synthetic: Interactions) -> None:
    moments = np.arange(synthetic.n_interactions)
    timed = Interactions(synthetic.matrix, synthetic.users, synthetic.items, times=moments)
    assert f"this split ignores time: {LATER}" in eq.split.strong(timed).notes
    assert f"this split ignores time: {LATER}" in eq.split.weak(timed).notes
    held_out = f"users are held out regardless of time: {LATER}"
    assert held_out in eq.split.strong(timed, order="time").notes
    assert f"each user is cut at another time: {LATER}" in eq.split.leave_last_out(timed).notes
    assert not any(LATER in note for note in eq.split.strong(synthetic).notes)


def test_attributes_and_weights_are_carried_along() -> None:
    catalogue = pl.DataFrame({"title": ["A", "B", "C"]})
    data = Interactions(np.full((12, 3), 2.5), items=["a", "b", "c"], catalogue=catalogue)
    split = eq.split.strong(data)
    for part in (split.train, split.test.history, split.test.target):
        assert part.label("b") == "B"
        assert (part.matrix.data == 2.5).all()


@pytest.mark.parametrize(("valid", "test"), [(0.1, 0.1), (0.0, 0.03), (0.45, 0.5), (0.3, 0.3)])
def test_the_number_of_users_needed_is_true(valid: float, test: float) -> None:
    for n_users in (*range(1, 12), 17, 33, 39):
        try:
            split = eq.split.strong(Interactions(np.ones((n_users, 2))), valid=valid, test=test)
        except DataError as error:
            match = re.search(r"at least (\d+) users", str(error))
            assert match is not None
            needed = int(match[1])
            assert needed > n_users
            split = eq.split.strong(Interactions(np.ones((needed, 2))), valid=valid, test=test)
        assert split.train.n_users > 0


BAD_SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    ("strong", {"valid": -0.1}, "valid must"),
    ("strong", {"test": 0}, "test must"),
    ("strong", {"test": 1.0}, "test must"),
    ("strong", {"test": float("nan")}, "test must"),
    ("strong", {"test": "0.1"}, "test must"),
    ("strong", {"valid": 0.5, "test": 0.5}, "must sum to less than 1, got 0.5 \\+ 0.5"),
    ("strong", {"history": 0}, "history must"),
    ("strong", {"history": 1}, "history must"),
    ("strong", {"history": "0.8"}, "history must"),
    ("strong", {"order": "size"}, "order must"),
    ("strong", {"seed": -1}, "seed must"),
    ("folds", {"n": 1}, "n must"),
    ("folds", {"protocol": "time"}, "protocol must"),
    ("folds", {"protocol": "weak", "history": 0.5}, 'are for protocol="strong"; leave them out'),
    ("weak", {"test": 1.5}, "test must"),
    ("weak", {"valid": 1}, "valid must"),
    ("leave_last_out", {"test": 0}, "test must"),
    ("leave_last_out", {"test": 1.5}, "test must"),
    ("leave_last_out", {"valid": 0.1}, "valid must"),
    ("time_cut", {"test": 0}, "test must"),
    ("time_cut", {"test_from": "soon"}, "test_from must"),
    ("time_cut", {"test_from": float("inf")}, "test_from must"),
    ("time_cut", {"test_from": [5]}, "test_from must"),
    ("time_cut", {"test_from": 5, "valid_from": 5}, "valid must begin before test"),
]
TOO_SMALL: list[tuple[str, tuple[int, int], dict[str, Any], str]] = [
    ("strong", (4, 5), {}, "valid=0.1 and test=0.1 need at least 5 users, the data have 4"),
    ("strong", (1, 5), {"valid": 0, "test": 0.5}, "need at least 2 users"),
    ("strong", (20, 1), {}, "no user is left in valid with a history and a target"),
    ("folds", (4, 5), {}, "4 users are too few for n=5 and valid=0.0; use fewer folds"),
    ("folds", (20, 5), {"valid": 0.9}, "20 users are too few for n=5 and valid=0.9"),
    ("folds", (20, 1), {"protocol": "weak"}, "n=5 is more than the pairs of users with two"),
    ("weak", (20, 1), {}, "at least one user with two items"),
    ("weak", (20, 2), {"valid": 0.1}, "at least one user with three items"),
    ("leave_last_out", (20, 1), {}, "needs a user with 2 items for test"),
    ("leave_last_out", (20, 2), {}, "needs a user with 3 items for valid"),
    ("time_cut", (2, 2), {"test_from": 0}, "nothing happened before 0.0"),
    ("time_cut", (2, 2), {"test_from": 9, "valid": 0}, "nothing happened from 9.0 on"),
    ("time_cut", (2, 2), {"test": 0.4, "valid": 0.4}, "nothing happened before 0.0"),
    ("time_cut", (0, 2), {}, "time_cut needs interactions"),
]
WITHOUT_TIMES: list[tuple[str, dict[str, Any]]] = [
    ("leave_last_out", {}),
    ("time_cut", {}),
    ("strong", {"order": "time"}),
    ("folds", {"order": "time"}),
]


def timed(shape: tuple[int, int]) -> Interactions:
    return Interactions(np.ones(shape), times=np.arange(shape[0] * shape[1]))


@pytest.mark.parametrize(
    ("name", "data", "options", "error", "message"),
    [
        pytest.param(name, timed((10, 4)), options, SettingError, message, id=f"{name} {options}")
        for name, options, message in BAD_SETTINGS
    ]
    + [
        pytest.param(
            name, timed(shape), options, DataError, message, id=f"{name} {options} of {shape}"
        )
        for name, shape, options, message in TOO_SMALL
    ]
    + [
        pytest.param(
            name,
            Interactions(np.ones((20, 4))),
            options,
            DataError,
            rf"{name}.* needs times; name the column with eq\.read",
            id=f"{name} {options} without times",
        )
        for name, options in WITHOUT_TIMES
    ],
)
def test_settings_and_data_that_cannot_be_split_are_refused(
    name: str, data: Interactions, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        getattr(eq.split, name)(data, **options)


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


def test_time_cut_says_how_many_test_pairs_are_on_items_that_appear_in_valid() -> None:
    rows = [
        *(("ann", "tea", 1), ("bob", "tea", 1), ("bob", "jam", 2), ("ann", "oil", 5)),
        *(("ann", "jam", 5), ("bob", "oil", 8), ("cleo", "oil", 8), ("ann", "rice", 9)),
        *(("ann", "salt", 9), ("cleo", "tea", 9), ("bob", "tea", 9)),
    ]
    data = eq.read([(user, item, 1.0, time) for user, item, time in rows])
    split = eq.split.time_cut(data, test_from=7, valid_from=4, repeats="all")
    in_valid = "2 pairs of test left out: the item first appears in valid, after train; with "
    assert [note for note in split.notes if "pair" in note] == [
        "1 pair of valid left out: train lacks the item",
        "2 pairs of test left out: train lacks the item",
        f"{in_valid}valid=0 it would be in train",
    ]
    without_valid = eq.split.time_cut(data, test_from=7, valid=0, repeats="all")
    assert not any("first appears in valid" in note for note in without_valid.notes)
    assert set(without_valid.test.target.history("bob")) == {"tea", "oil"}


def test_time_cut_keeps_the_events_of_users_who_returned_everything() -> None:
    rows = [("ann", "tea", 1.0, 1), ("ann", "tea", -1.0, 2), ("ann", "milk", 1.0, 9)]
    rows += [("bob", "tea", 1.0, 1), ("bob", "milk", 1.0, 3), ("bob", "rice", 1.0, 9)]
    rows += [("cleo", "rice", 1.0, 4), ("late", "tea", 1.0, 9)]
    train = eq.split.time_cut(eq.read(rows), test_from=8, valid=0).train
    assert train.users.tolist() == ["ann", "bob", "cleo"]
    for returns, value in (("net", 0), ("ignore", 1), ("negative", -1)):
        weighed = eq.Signals(returns=returns).apply(train).matrix.toarray()
        assert weighed[0].tolist() == [0, 0, value]
