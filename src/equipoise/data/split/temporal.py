"""Splits along time: each user's last items, or everything from a date on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from equipoise.checks import Moment, choice, count, flag, fraction, moment
from equipoise.data.interactions import Interactions
from equipoise.data.split.parts import (
    REPEATS,
    Part,
    Repeats,
    Split,
    check_shares,
    counted,
    first_events,
    following,
    leak_notes,
    part_between,
    rounded,
    timed_events,
    unlearnable,
    without_unused,
)
from equipoise.errors import DataError, SettingError


def leave_last_out(
    data: Interactions, *, valid: int = 1, test: int = 1, repeats: Repeats = "new"
) -> Split:
    """Hide each user's last items in time, and those before them for tuning.

    ::

            data (1 = first)    train         valid.target   test.target
            a b c d e           a b c d e      a b c d e      a b c d e
        1   2 1 . 3 .           . x . . .      x . . . .      . . . x .
        2   . 4 2 1 3           . . x x .      . . . . x      . x . . .

        events of 3             repeats        history        target
        a b a c b a             "new"          a b a          c
                                "all"          a b a c b      a
                                "again"        a b a c b      a

    Used by SASRec, BERT4Rec and most papers on sequences. The history of a part is everything
    before the user's first target: for test that is train and valid together. Later events that
    are no targets, such as user 3's last b and a for "new", are in no part. Users with too few
    events are in train only. All users and items stay in train. Each user is cut at another time,
    so training may see the future of other users.

    Parameters
    ----------
    data
        Interactions with the times of their events.
    valid, test
        Numbers of events to hide in each part; ``valid=0`` gives no such part.
    repeats
        Which events are counted and hidden: a user's first event on an item ("new"), any ("all"),
        or only those on an item used before ("again").

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.Interactions([[1, 1, 1]], times=[30, 10, 20])
    >>> split = eq.split.leave_last_out(data)
    >>> split.train.history(0), split.valid.target.history(0), split.test.target.history(0)
    ([1], [2], [0])
    """
    count("valid", valid, 0)
    count("test", test)
    choice("repeats", repeats, REPEATS)
    events = timed_events(data, "leave_last_out")
    first = first_events(data, events)
    counts = {"new": first, "all": events.positive, "again": events.positive & ~first}[repeats]
    after, row = following(events, counts), events.rows
    total = np.bincount(row[counts], minlength=data.n_users)
    # a repeat always has an earlier event, which stays in the history
    spare = 0 if repeats == "again" else 1
    notes: list[str] = []
    parts: dict[str, Part] = {}
    left = np.ones(events.n_events, bool)
    before_test = left
    for name, low, high in (("test", 0, test), ("valid", test, test + valid)):
        if low == high:
            continue
        has_enough = total >= high + spare
        if not has_enough.any():
            noun = {"new": "items", "all": "events", "again": "repeats"}[repeats]
            requirement = f"leave_last_out needs a user with {high + spare} {noun} for {name}"
            raise DataError(f"{requirement}; hide fewer or use more data")
        window = (low <= after) & (after < high) & has_enough[row]
        left = left & ~((after < high) & has_enough[row])
        before_test = left if name == "test" else before_test
        past = data._only_events((after >= high) & has_enough[row])
        future = data._only_events(window)
        parts[name] = part_between(past, future, "last", name, repeats, notes)
    train = data._only_events(left)
    notes += unlearnable(train, parts["test"])
    few = data.n_users - parts["test"].n_users
    notes += counted(few, "user", f"in train only: fewer than {test + spare} such events")
    notes += leak_notes(data, "each user is cut at another time")
    valid_data = without_unused(data._only_events(before_test & ~left)) if valid else None
    valid_part, test_part = parts.get("valid"), parts["test"]
    return Split(train, valid_part, test_part, "last", None, tuple(notes), valid_data)


def time_cut(
    data: Interactions,
    *,
    test_from: Moment | None = None,
    valid_from: Moment | None = None,
    test: float = 0.1,
    valid: float = 0.1,
    repeats: Repeats = "new",
    new_items: bool = False,
) -> Split:
    """Train on the past and evaluate on the future: one cut in time for all users.

    ::

            data (days)         train (< 7)   test.history   test.target (>= 7)
            a   b c   d e       a b c d         a b c d        a b c d
        1   1,9 3 .   8 .       x x . .         x x . .        . . . x
        2   .   2 9   . .       . x . .         . x . .        . . x .
        3   .   . 5,8 6 .       . . x x         . . . .        . . . .
        4   7   . .   . 9       . . . .         . . . .        . . . .

    The most realistic split, and the only one here that never leaks the future. An item of the
    history (1 and a, 3 and c) is a target only with `repeats` "all" or "again". Items that train
    lacks (e) and users without a history (4) or a target (3) are left out; `Split.notes` counts
    them, and apart from these the pairs of test whose item first appears in valid. The history of
    test is train and valid together.

    Parameters
    ----------
    data
        Interactions with the times of their events.
    test_from, valid_from
        First moment of test and of valid: seconds since 1970, an ISO text or a date (UTC).
    test, valid
        Shares of all events, where no moment is given. ``valid=0`` gives no such part. Events at
        the same time stay together, so shares are approximate.
    repeats
        Which items are targets: those new to the user ("new"), "all", or only items used before
        ("again"). Unless "new", `evaluate` also recommends known items.
    new_items
        Keep items that train lacks as columns without users and as targets, for models that know
        items by their `Features`.

    Examples
    --------
    >>> import equipoise as eq
    >>> days = np.array([[1, 3, 0, 8, 0], [0, 2, 9, 0, 0], [0, 0, 5, 6, 0], [7, 0, 0, 0, 9]])
    >>> data = eq.Interactions(days > 0, [1, 2, 3, 4], list("abcde"), times=days[days > 0])
    >>> split = eq.split.time_cut(data, test_from=7, valid=0)
    >>> [(user, split.test.target.history(user)) for user in split.test.target.users.tolist()]
    [(1, ['d']), (2, ['c'])]
    """
    choice("repeats", repeats, REPEATS)
    events = timed_events(data, "time_cut")
    times = events.times
    assert times is not None
    valid_cut, test_cut = _cuts(times, test_from, valid_from, test, valid)
    in_test = times >= test_cut
    in_train = times < (test_cut if valid_cut is None else valid_cut)
    train = data._only_events(in_train)
    known = (data if flag("new_items", new_items) else train).item_counts > 0
    notes: list[str] = []
    parts: dict[str, Part] = {}
    for name, before, hidden in (
        ("valid", in_train, ~in_train & ~in_test),
        ("test", ~in_test, in_test),
    ):
        if name == "test" or valid_cut is not None:
            past = data._only_events(before).columns(known)
            everything = data._only_events(hidden)
            future = everything.columns(known)
            lost = everything.n_interactions - future.n_interactions
            in_valid = 0  # pairs of test on items that appear between train and test
            if name == "test" and valid_cut is not None:
                first_in_valid = ~known & (data._only_events(before).item_counts > 0)
                in_valid = int(first_in_valid[everything.matrix.indices].sum())
            notes += counted(lost - in_valid, "pair", f"of {name} left out: train lacks the item")
            why = "of test left out: the item first appears in valid, after train"
            notes += counted(in_valid, "pair", f"{why}; with valid=0 it would be in train")
            parts[name] = part_between(past, future, "time", name, repeats, notes)
            lost = int((everything.user_counts > 0).sum()) - parts[name].n_users
            why = f"active in {name} left out: no history before it, or no target in it"
            notes += counted(lost, "user", why)
    valid_data = None
    if valid_cut is not None:
        learnt = in_train & known[events.items]
        valid_data = without_unused(data._only_events(~in_test & ~learnt))
    train = train.hide_items(~known)
    train = train.rows(~train._empty_users)
    valid_part, test_part = parts.get("valid"), parts["test"]
    return Split(train, valid_part, test_part, "time", None, tuple(notes), valid_data)


def _cuts(
    times: npt.NDArray[np.float64],
    test_from: Moment | None,
    valid_from: Moment | None,
    test: float,
    valid: float,
) -> tuple[float | None, float]:
    """Return the first moments of valid (None for no such part) and of test."""
    if test_from is None:
        check_shares(0.0 if valid_from is not None else valid, test)
    else:
        fraction("valid", valid, one=False)
    if not len(times):
        raise DataError("time_cut needs interactions, and the data have none")
    ordered = np.sort(times)
    if test_from is None:
        test_cut = _share_from(ordered, test, len(times))
    else:
        test_cut = moment("test_from", test_from)
    valid_cut = None
    if valid_from is not None:
        valid_cut = moment("valid_from", valid_from)
        if valid_cut >= test_cut:
            raise SettingError(f"valid must begin before test, got {valid_cut} and {test_cut}")
    elif valid and test_cut > ordered[0]:
        valid_cut = _share_from(ordered, valid, int(np.searchsorted(ordered, test_cut)))
    first = test_cut if valid_cut is None else valid_cut
    if first <= ordered[0]:
        raise DataError(f"nothing happened before {first}, where train ends; choose a later cut")
    if test_cut > ordered[-1]:
        raise DataError(f"nothing happened from {test_cut} on, where test begins; cut earlier")
    return valid_cut, test_cut


def _share_from(ordered: npt.NDArray[np.float64], share: float, stop: int) -> float:
    """Return the time at which a share of all events begins, counted back from `stop`."""
    size = max(int(rounded(share, np.array(len(ordered)))), 1)
    return float(ordered[max(stop - size, 0)])
