"""Splits of sessions: hold out whole sessions and reveal them event by event."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.checks import MADE_BY_READ, choice, instance
from equipoise.data.events import Events
from equipoise.data.ids import IdIndex, unchecked
from equipoise.data.interactions import Interactions, generator
from equipoise.data.matrix import segments
from equipoise.data.split.parts import (
    Part,
    Split,
    check_shares,
    counted,
    first_events,
    groups,
    leak_notes,
    timed_events,
    without_unused,
)
from equipoise.errors import DataError


def sessions(
    data: Interactions,
    *,
    valid: float = 0.1,
    test: float = 0.1,
    order: Literal["random", "time"] = "random",
    seed: int = 0,
) -> Split:
    """Hold out whole sessions and predict the next item after each of their events.

    ::

        data             train        test.history   test.target
        s1  a b a c      a b a c
        s2  b c          b c
        s3  c a b                     s3:1  c        a
                                      s3:2  c a      b

    Used by SLIST, GRU4Rec and most papers on sessions ("iterative revealing"). Returns (weight 0
    or less) and events on items that train lacks are removed from held-out sessions, then sessions
    with fewer than two events; `Split.notes` counts them. Results are averages over events, not
    sessions.

    Parameters
    ----------
    data
        Interactions with events in order; one row is one session.
    valid, test
        Shares of the sessions that are held out; ``valid=0`` gives no such part.
    order
        Hold out sessions at random, or the latest by their last event ("time", needs times).
    seed
        Same data and seed, same split; without effect for ``order="time"``.

    Examples
    --------
    >>> import equipoise as eq
    >>> from equipoise.data.events import Events
    >>> events = Events(np.tile(np.array([0, 1, 2], np.int32), 10), np.arange(0, 31, 3))
    >>> data = eq.Interactions(np.ones((10, 3)), events=events)
    >>> split = eq.split.sessions(data, seed=3)
    >>> split.train.n_users, [split.test.history.history(row) for row in split.test.history.users]
    (8, [[0], [0, 1]])
    """
    check_shares(valid, test)
    choice("order", order, ("random", "time"))
    instance("data", data, Interactions, MADE_BY_READ)
    if data._sequences is None:
        raise DataError("sessions needs ordered events; read the data as sessions")
    if order == "time":
        last = timed_events(data, "sessions(order='time')").last_times
        ordered = np.argsort(last, kind="stable")
    else:
        ordered = generator(seed).permutation(data.n_users)
    train_rows, *held_out = groups(ordered, valid, test, "sessions")
    train = data.rows(train_rows)
    known = train.item_counts > 0
    notes: list[str] = []
    parts: dict[str, Part] = {}
    for name, rows in zip(("valid", "test"), held_out, strict=True):
        if len(rows):
            parts[name] = _revealed(data.rows(rows), known, name, notes)
    if order == "random":
        notes += leak_notes(data)
    used_seed = seed if order == "random" else None
    train = train.hide_items(~known)
    valid_data = without_unused(data.rows(held_out[0])) if "valid" in parts else None
    valid_part, test_part = parts.get("valid"), parts["test"]
    return Split(train, valid_part, test_part, "session", used_seed, tuple(notes), valid_data)


def reveal(data: Interactions) -> tuple[Interactions, Interactions]:
    """Turn each session into steps: the events so far as history, and the next item as target.

    A session of L events gives L - 1 rows with ids "session:1", "session:2", ...; the history of
    row t has the first t events. Times, weights and returns (weight 0 or less) are left out.

    Examples
    --------
    >>> import equipoise as eq
    >>> from equipoise.data.events import Events
    >>> events = Events(np.array([2, 0, 2], np.int32), np.array([0, 3]))
    >>> history, target = eq.split.reveal(eq.Interactions([[1, 0, 1]], ["s"], events=events))
    >>> [(row, history.history(row), target.history(row)) for row in history.users]
    [('s:1', [2], [0]), ('s:2', [2, 0], [2])]
    """
    instance("data", data, Interactions, MADE_BY_READ)
    if data._sequences is None:
        raise DataError("reveal needs ordered events; read the data as sessions")
    events = data._sequences
    steps = np.maximum(events.lengths - 1, 0)
    next_event = segments(events.offsets[:-1] + 1, steps)[0]
    session = np.repeat(np.arange(len(events)), steps)
    seen = next_event - events.offsets[session]
    users = _step_ids(data.user_index, session, seen)
    places, prefix_offsets = segments(events.offsets[session], seen)
    prefixes = Events(events.items[places], prefix_offsets)
    # A prefix repeats an item exactly where its session does, so the first occurrences within
    # sessions give the distinct items of every prefix.
    distinct = prefixes.keep(first_events(data, events)[places])
    shape = (len(session), data.n_items)
    ones = np.ones(len(distinct.items), np.float32)
    rows = sp.csr_array((ones, distinct.items, distinct.offsets), shape=shape)
    next_items = (np.ones(shape[0], np.float32), events.items[next_event], np.arange(shape[0] + 1))
    history = Interactions(
        rows, users, data.item_index, catalogue=data.known_items, events=prefixes
    )
    target = Interactions(
        sp.csr_array(next_items, shape=shape), users, data.item_index, catalogue=data.known_items
    )
    return history, target


def _revealed(
    held_out: Interactions, known: npt.NDArray[np.bool_], name: str, notes: list[str]
) -> Part:
    """Return the steps of the held-out sessions, and note what is left out."""
    known_part = held_out.columns(known)
    assert held_out.events is not None
    assert held_out._sequences is not None
    assert known_part._sequences is not None
    returns = held_out.events.n_events - held_out._sequences.n_events
    notes += counted(returns, "return", f"of {name} left out: returns are not clicks")
    n_events = held_out._sequences.n_events - known_part._sequences.n_events
    notes += counted(n_events, "event", f"of {name} left out: train lacks the item")
    too_short = int((known_part._sequences.lengths < 2).sum())
    why = f"of {name} left out: fewer than two events remain"
    notes += counted(too_short, "session", why)
    history, target = reveal(known_part)
    return Part(history, target, "session", name)


def _step_ids(
    users: IdIndex, session: npt.NDArray[np.int64], step: npt.NDArray[np.int64]
) -> IdIndex:
    """Return ids "session:step", which are unique because session ids are."""
    frame = pl.DataFrame({"id": users.to_series().cast(pl.String)[session], "step": step})
    texts = frame.select(pl.format("{}:{}", "id", "step")).to_series()
    return unchecked(texts.to_numpy().copy(), "user")
