"""Sessions are held out whole and revealed event by event."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.data.events import Events
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, SettingError

LATER = "training may contain events later than held-out ones"
event_lists = st.lists(st.lists(st.integers(0, 6), max_size=7), min_size=1, max_size=25)


def build(rows: list[list[int]], ids: list[Any] | None = None, **more: Any) -> Interactions:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    dense = np.zeros((len(rows), 7))
    for place, row in enumerate(rows):
        dense[place, row] = 1
    events = Events(np.array([item for row in rows for item in row], np.int32), offsets)
    items = [f"i{n}" for n in range(7)]
    return Interactions(dense, ids, items, events=events, **more)


@given(event_lists, st.booleans())
@settings(max_examples=60, deadline=None)
def test_reveal_gives_every_prefix_and_the_next_item(rows: list[list[int]], text: bool) -> None:
    ids = [f"s:{n}" if text else n for n in range(len(rows))]
    history, target = eq.split.reveal(build(rows, ids))
    expected = [
        (f"{ids[place]}:{t}", [f"i{v}" for v in row[:t]], [f"i{row[t]}"])
        for place, row in enumerate(rows)
        for t in range(1, len(row))
    ]
    users = history.users.tolist()
    assert [(u, history.history(u), target.history(u)) for u in users] == expected
    assert target.users.tolist() == users
    for place, (_, prefix, _) in enumerate(expected):
        row = history.matrix.indices[slice(*history.matrix.indptr[place : place + 2])]
        assert [f"i{v}" for v in row] == sorted(set(prefix))
    assert (history.matrix.data == 1).all()
    assert history.matrix.has_canonical_format


@given(event_lists, st.sampled_from(["random", "time"]), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_sessions_are_held_out_whole(rows: list[list[int]], order: str, seed: int) -> None:
    moments = [100 * place + item for place, row in enumerate(rows) for item in sorted(set(row))]
    data = build(rows, times=moments)
    try:
        split = eq.split.sessions(data, valid=0.2, test=0.2, order=order, seed=seed)
    except DataError as error:
        assume(not re.search("need at least|is left", str(error)))
        raise
    assert split.valid is not None
    train = split.train.users.tolist()
    size = int(0.2 * len(rows) + 0.5)
    assert len(train) == len(rows) - 2 * size
    known = {item for place in train for item in rows[place]}
    assert split.train.items.tolist() == [f"i{n}" for n in sorted(known)]
    for place in train:
        assert split.train.history(place) == [f"i{n}" for n in rows[place]]
    held_out = {n: [v for v in row if v in known] for n, row in enumerate(rows) if n not in train}
    steps = {f"{n}:{t}": row[: t + 1] for n, row in held_out.items() for t in range(1, len(row))}
    revealed = {
        user: part.history.history(user) + part.target.history(user)
        for part in split.parts
        for user in part.history.users.tolist()
    }
    assert revealed == {step: [f"i{n}" for n in row] for step, row in steps.items()}
    lost = sum(len(rows[n]) - len(row) for n, row in held_out.items())
    short = sum(len(row) < 2 for row in held_out.values())
    assert sum(int(n.split()[0]) for n in split.notes if re.match(r"\d+ events?", n)) == lost
    assert sum(int(n.split()[0]) for n in split.notes if re.match(r"\d+ sessions?", n)) == short
    if order == "time":
        used = [place for place in range(len(rows)) if rows[place]]
        empty = [place for place in range(len(rows)) if not rows[place]]
        assert train == sorted((empty + used)[: len(train)])
        assert split.seed is None
    assert any(LATER in note for note in split.notes) == (order == "random")


def test_the_seed_alone_decides() -> None:
    data = build([[n % 7, (n + 1) % 7, (n * 3) % 7] for n in range(60)])
    first = eq.split.sessions(data, seed=2)
    assert eq.split.sessions(data, seed=2).fingerprint == first.fingerprint
    assert eq.split.sessions(data, seed=3).fingerprint != first.fingerprint
    assert (first.train.n_users, first.test.n_users) == (48, 12)
    assert repr(first).splitlines()[-1] == "  test 12 steps, 18 history items, 12 held out"


def test_attributes_are_carried_along() -> None:
    catalogue = pl.DataFrame({"title": [f"Title {n}" for n in range(7)]})
    data = build([[n % 7, (n + 1) % 7] for n in range(20)], catalogue=catalogue)
    split = eq.split.sessions(data)
    assert split.test.history.label("i3") == "Title 3"
    assert split.test.target.label("i3") == "Title 3"


def test_sessions_need_sequences_and_sound_settings() -> None:
    plain = Interactions(np.ones((20, 3)))
    with pytest.raises(DataError, match="sessions needs ordered events"):
        eq.split.sessions(plain)
    with pytest.raises(DataError, match="reveal needs ordered events"):
        eq.split.reveal(plain)
    data = build([[0, 1, 2]] * 20)
    with pytest.raises(SettingError, match="order must be 'random' or 'time', got 'size'"):
        eq.split.sessions(data, order="size")
    with pytest.raises(DataError, match=r"sessions\(order='time'\) needs times"):
        eq.split.sessions(data, order="time")
    with pytest.raises(DataError, match="need at least 5 sessions, the data have 3"):
        eq.split.sessions(data.rows([0, 1, 2]))
    with pytest.raises(DataError, match="no user is left in valid"):
        eq.split.sessions(build([[0]] * 20))


def with_returns(items: list[str], weights: list[float]) -> Interactions:
    """Twenty sessions with these events, one after another."""
    times = list(range(20 * len(items)))
    visits = np.repeat(np.arange(20), len(items))
    log = {"visit": visits, "item": items * 20, "weight": weights * 20, "time": times}
    return eq.read(log, session="visit", weight="weight")


@pytest.mark.parametrize("back", [-1.0, -2.0])  # a part of what was bought, or all of it
def test_a_return_is_neither_seen_nor_to_be_found(back: float) -> None:
    data = with_returns(["tea", "pot", "tea", "milk"], [2.0, 1.0, back, 1.0])
    history, target = eq.split.reveal(data.rows([0]))
    steps = [(row, history.history(row), target.history(row)) for row in history.users]
    assert steps == [("0:1", ["tea"], ["pot"]), ("0:2", ["tea", "pot"], ["milk"])]


def test_the_split_counts_the_returns_that_it_leaves_out() -> None:
    data = with_returns(["tea", "pot", "pot", "milk"], [1.0, 2.0, -1.0, 1.0])
    split = eq.split.sessions(data, valid=0, order="time")
    assert "2 returns of test left out: returns are not clicks" in split.notes
    assert [split.test.target.history(row) for row in split.test.target.users] == [
        ["pot"],
        ["milk"],
    ] * 2
    assert split.train.events is not None
    assert split.train.events.n_events == 18 * 4  # train keeps what was read
