"""Random splits: hold out whole users (strong), pairs of every user (weak), or folds of both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from equipoise.checks import MADE_BY_READ, choice, count, fraction, instance
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
    part_between,
    ranks,
    rounded,
    timed_events,
    unlearnable,
    without_unused,
)
from equipoise.errors import DataError, SettingError

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
    user_rows = groups(rng.permutation(data.n_users), valid, test, "users")
    return _hold_out_users(data, *user_rows, history=history, order=order, rng=rng, seed=seed)


def _hold_out_users(
    data: Interactions,
    train_rows: Ints,
    valid_rows: Ints,
    test_rows: Ints,
    *,
    history: float,
    order: str,
    rng: np.random.Generator,
    seed: int,
) -> Split:
    train = data.rows(train_rows)
    known = train.item_counts > 0
    notes: list[str] = []
    parts: dict[str, Part] = {}
    for name, rows in (("valid", valid_rows), ("test", test_rows)):
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
    train = train.hide_items(~known)
    valid_data = without_unused(data.rows(valid_rows)) if "valid" in parts else None
    valid_part, test_part = parts.get("valid"), parts["test"]
    return Split(train, valid_part, test_part, "strong", seed, tuple(notes), valid_data)


def check_strong(valid: float, test: float, history: float, order: str) -> None:
    """Raise on invalid settings of `strong`."""
    check_shares(valid, test)
    fraction("history", history, zero=False, one=False)
    choice("order", order, ("random", "time"))


def with_two(data: Interactions, known: Flags) -> tuple[Interactions, int, int]:
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
    past = data._only_events(~later)
    return part_between(past, data._only_events(later), "strong", name, "new", notes)


def _n_hidden(share: float, counts: Ints) -> Ints:
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
    key = rng.random(data.n_interactions)
    in_test = ranks(data, key) >= (counts - n_test)[entry_rows(data.matrix)]
    return _hide_pairs(data, in_test, key, valid, seed)


def _hide_pairs(data: Interactions, in_test: Flags, key: Floats, valid: float, seed: int) -> Split:
    """Return the weak split with these pairs in test; valid hides those with the largest keys."""
    row = entry_rows(data.matrix)
    n_test = np.bincount(row[in_test], minlength=data.n_users)
    n_left = data.user_counts - n_test
    n_valid = _n_hidden(valid, n_left) if valid else np.zeros_like(n_left)
    if valid and not n_valid.any():
        raise DataError("weak with valid > 0 needs at least one user with three items or more")
    rank = ranks(data, np.where(in_test, np.inf, key))
    in_valid = ~in_test & (rank >= (n_left - n_valid)[row])
    train = data.entries(~in_test & ~in_valid)
    parts = [
        Part(train.rows(size > 0), data.entries(mask).rows(size > 0), "weak", name)
        for name, mask, size in (("valid", in_valid, n_valid), ("test", in_test, n_test))
        if size.any()
    ]
    few = int((data.user_counts < 2).sum())
    notes = unlearnable(train, parts[-1])
    notes += counted(few, "user", "in train only: fewer than two items")
    notes += leak_notes(data)
    if not valid:
        return Split(train, None, parts[0], "weak", seed, tuple(notes))
    valid_data = data.entries(in_valid)
    if valid_data.events is not None:  # events of pairs without a value are in train already
        valid_data = valid_data._only_events(valid_data._event_pairs >= 0)
    valid_data = without_unused(valid_data)
    return Split(train, parts[0], parts[1], "weak", seed, tuple(notes), valid_data)


def folds(
    data: Interactions,
    n: int = 5,
    *,
    protocol: Literal["strong", "weak"] = "strong",
    valid: float = 0.0,
    history: float = 0.8,
    order: Literal["random", "time"] = "random",
    seed: int = 0,
) -> Iterator[Split]:
    """Yield n splits for cross-validation; everything is tested once.

    ::

            strong: user in test of fold     weak: pair in test of fold
                                                 a b c d e
        1   2                                1   2 1 . 3 .
        2   1                                2   . 3 2 . 1
        3   3                                3   1 3 2 3 1

    With "strong" each user is held out in one fold, as `strong` does. With "weak" each pair is
    hidden in one fold, as `weak` does; pairs of a user with a single item stay in train. A split
    is made when it is asked for, so only one at a time needs memory.

    Parameters
    ----------
    data
        Interactions to cut.
    n
        Number of folds, from 2.
    protocol
        Hold out users ("strong") or pairs of every user ("weak").
    valid
        Share taken out of train to tune on; 0 gives no such part. "strong": a share of all users.
        "weak": a share of each user's pairs outside test.
    history, order
        For "strong": which items of a held-out user the model is shown; as for `strong`.
    seed
        Same data and seed, same folds.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.Interactions(np.tri(20, 6) + np.eye(20, 6, 1))
    >>> [split.test.n_users for split in eq.split.folds(data, n=4)]
    [5, 5, 5, 5]
    """
    count("n", n, 2)
    choice("protocol", protocol, ("strong", "weak"))
    fraction("valid", valid, one=False)
    fraction("history", history, zero=False, one=False)
    choice("order", order, ("random", "time"))
    instance("data", data, Interactions, MADE_BY_READ)
    if protocol == "weak":
        if history != 0.8 or order != "random":
            raise SettingError('history and order are for protocol="strong"; leave them out')
        return _weak_folds(data, n, valid, seed)
    if order == "time":
        timed_events(data, "folds(order='time')")
    return _strong_folds(data, n, valid, history, order, seed)


def _strong_folds(
    data: Interactions, n: int, valid: float, history: float, order: str, seed: int
) -> Iterator[Split]:
    n_users, n_valid = data.n_users, int(rounded(valid, np.array(data.n_users)))
    largest = -(-n_users // n)
    if n_users < n or n_valid + largest >= n_users or (valid and not n_valid):
        raise DataError(
            f"{n_users:,} users are too few for n={n} and valid={valid}; "
            "use fewer folds, another share for valid or more data"
        )
    rng = generator(seed)
    test_rows = np.array_split(rng.permutation(n_users), n)

    def fold(number: int) -> Split:
        others = np.concatenate(test_rows[number + 1 :] + test_rows[:number])
        train, valid_part = np.split(others, [len(others) - n_valid])
        rows = (np.sort(part) for part in (train, valid_part, test_rows[number]))
        return _hold_out_users(data, *rows, history=history, order=order, rng=rng, seed=seed)

    return (fold(number) for number in range(n))


def _weak_folds(data: Interactions, n: int, valid: float, seed: int) -> Iterator[Split]:
    rng = generator(seed)
    key = rng.random(data.n_interactions)
    row = entry_rows(data.matrix)
    # users start in random folds, so that those with fewer than n items are in all folds alike
    fold = (ranks(data, key) + rng.integers(n, size=data.n_users)[row]) % n
    fold[data.user_counts[row] < 2] = n
    if not np.bincount(fold, minlength=n)[:n].all():
        raise DataError(f"n={n} is more than the pairs of users with two items; use fewer folds")
    return (_hide_pairs(data, fold == number, key, valid, seed) for number in range(n))
