"""Random splits: hold out whole users (strong), or pairs of every user (weak)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from equipoise.checks import MADE_BY_READ, choice, fraction, instance
from equipoise.data.interactions import Interactions, generator
from equipoise.data.matrix import entry_rows
from equipoise.data.split.parts import (
    Part,
    Split,
    check_shares,
    counted,
    first_events,
    following,
    groups,
    leak_notes,
    ranks,
    rounded,
    targets,
    timed_events,
    unlearnable,
    without_unused,
)
from equipoise.errors import DataError


def strong(
    data: Interactions,
    *,
    valid: float = 0.1,
    test: float = 0.1,
    history: float = 0.8,
    order: Literal["random", "time"] = "random",
    seed: int = 0,
) -> Split:
    """Hold out whole users, whom the model never saw in training (strong generalisation).

    ::

            data            train        test.history   test.target
            a b c d e       a b c d e       a b c d e      a b c d e
        1   x x . x .       x x . x .       . . . . .      . . . . .
        2   . x x . x       . x x . x       . . . . .      . . . . .
        3   x x x x x       . . . . .       x x . x x      . . x . .

    Used by Mult-VAE, EASE and most papers on linear autoencoders. As there, items that train lacks
    are left out, then held-out users with fewer than two items; `Split.notes` counts both.

    Parameters
    ----------
    data
        Interactions to cut.
    valid, test
        Shares of the users that are held out; ``valid=0`` gives no such part.
    history
        Share of a held-out user's items that the model is shown; at least one is shown and one
        hidden.
    order
        Hide items at random, or each user's latest new items ("time"; everything before them is
        shown).
    seed
        Same data and seed, same split.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.Interactions(np.tri(20, 6) + np.eye(20, 6, 1))
    >>> split = eq.split.strong(data, seed=1)
    >>> split.train.n_users, split.valid.n_users, split.test.n_users
    (16, 2, 2)
    """
    check_strong(valid, test, history, order)
    instance("data", data, Interactions, MADE_BY_READ)
    if order == "time":
        timed_events(data, "strong(order='time')")
    rng = generator(seed)
    train_rows, *held_out = groups(rng.permutation(data.n_users), valid, test, "users")
    train = data.rows(train_rows)
    known = train.item_counts > 0
    notes: list[str] = []
    parts: dict[str, Part] = {}
    for name, rows in zip(("valid", "test"), held_out, strict=True):
        if len(rows):
            users, *lost = with_two(data.rows(rows), known)
            notes += lost_notes(name, *lost)
            if order == "random":
                cut = shown_and_hidden(users, history, rng.random(users.n_interactions))
                parts[name] = Part(*cut, "strong", name)
            else:
                parts[name] = _last_shown(users, 1 - history, name, notes)
    by_time = ("users are held out regardless of time",) if order == "time" else ()
    notes += leak_notes(data, *by_time)
    train = train.columns(known)
    valid_data = without_unused(data.rows(held_out[0])) if "valid" in parts else None
    valid_part, test_part = parts.get("valid"), parts["test"]
    return Split(train, valid_part, test_part, "strong", seed, tuple(notes), valid_data)


def check_strong(valid: float, test: float, history: float, order: str) -> None:
    """Raise on invalid settings of `strong`."""
    check_shares(valid, test)
    fraction("history", history, zero=False, one=False)
    choice("order", order, ("random", "time"))


def with_two(data: Interactions, known: npt.NDArray[np.bool_]) -> tuple[Interactions, int, int]:
    """Return the users with at least two known items, and how many pairs and users are lost."""
    known_part = data.columns(known)
    enough = known_part.user_counts >= 2
    lost = data.n_interactions - known_part.n_interactions
    return known_part.rows(enough), lost, int((~enough).sum())


def lost_notes(name: str, pairs: int, users: int) -> list[str]:
    """Return the notes on what `with_two` left out of a part."""
    why = f"of {name} left out: fewer than two items remain, one to show and one to hide"
    lacking = f"of {name} left out: train lacks the item"
    return [*counted(pairs, "pair", lacking), *counted(users, "user", why)]


def shown_and_hidden(
    data: Interactions, history: float, key: npt.NDArray[np.floating]
) -> tuple[Interactions, Interactions]:
    """Return each user's share of the pairs with the smallest keys, and the others."""
    n_shown = data.user_counts - _n_hidden(1 - history, data.user_counts)
    hidden = ranks(data, key) >= n_shown[entry_rows(data.matrix)]
    return data.entries(~hidden), data.entries(hidden)


def _last_shown(data: Interactions, share: float, name: str, notes: list[str]) -> Part:
    """Hide each user's last new items, and show everything before the first of them."""
    events = timed_events(data, "strong(order='time')")
    first = first_events(data, events)
    row = events.rows
    n_new = np.bincount(row[first], minlength=data.n_users)
    later = following(events, first) < _n_hidden(share, n_new)[row]
    past = data.only_events(~later)
    future = targets(past, data.only_events(later), "new", name, notes)
    users = (past.user_counts > 0) & (future.user_counts > 0)
    return Part(past.rows(users), future.rows(users), "strong", name)


def _n_hidden(share: float, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many items of each user to hide: at least one, at most all but one."""
    return np.where(counts < 2, 0, rounded(share, counts).clip(1, np.maximum(counts - 1, 1)))


def weak(data: Interactions, *, valid: float = 0.0, test: float = 0.2, seed: int = 0) -> Split:
    """Hide pairs of every user; the model trains on the remaining ones (weak generalisation).

    ::

            data            train = test.history    test.target
            a b c d e             a b c d e          a b c d e
        1   x x . x .             x . . x .          . x . . .
        2   . x x . x             . x . . x          . . x . .
        3   x x x x x             x x x x .          . . . . x

    Used by NGCF, LightGCN and most papers on graph models, on published splits without a
    validation part; set `valid` to have one. All users and items stay in train, so its rows and
    columns are those of the data. Users with a single item stay in train only.

    Parameters
    ----------
    data
        Interactions to cut.
    valid
        Share of each user's pairs outside test that is taken out of train to tune on; 0 gives no
        such part. A user needs two such pairs to be in it. The history of the test part is always
        the train row, on which the model was fitted.
    test
        Share of each user's pairs that is hidden: at least one, at most all but one.
    seed
        Same data and seed, same split.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.Interactions(np.ones((3, 5)))
    >>> split = eq.split.weak(data)
    >>> split.train.n_interactions, split.test.target.n_interactions
    (12, 3)
    """
    fraction("valid", valid, one=False)
    fraction("test", test, zero=False, one=False)
    instance("data", data, Interactions, MADE_BY_READ)
    rng = generator(seed)
    counts = data.user_counts
    n_test = _n_hidden(test, counts)
    if not n_test.any():
        raise DataError("weak needs at least one user with two items or more")
    n_valid = _n_hidden(valid, counts - n_test) if valid else np.zeros_like(counts)
    if valid and not n_valid.any():
        raise DataError("weak with valid > 0 needs at least one user with three items or more")
    row = entry_rows(data.matrix)
    rank = ranks(data, rng.random(data.n_interactions))
    in_test = rank >= (counts - n_test)[row]
    in_valid = ~in_test & (rank >= (counts - n_test - n_valid)[row])
    train = data.entries(~in_test & ~in_valid)
    notes = unlearnable(data, train, in_test)
    notes += counted(int((n_test == 0).sum()), "user", "in train only: fewer than two items")
    parts = [
        Part(train.rows(size > 0), data.entries(mask).rows(size > 0), "weak", name)
        for name, mask, size in (("valid", in_valid, n_valid), ("test", in_test, n_test))
        if size.any()
    ]
    notes += leak_notes(data)
    if not valid:
        return Split(train, None, parts[0], "weak", seed, tuple(notes))
    valid_data = data.entries(in_valid)
    if valid_data.events is not None:  # events of pairs without a value are in train already
        valid_data = valid_data.only_events(valid_data.event_pairs >= 0)
    valid_data = without_unused(valid_data)
    return Split(train, parts[0], parts[1], "weak", seed, tuple(notes), valid_data)
