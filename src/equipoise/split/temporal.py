"""Splits along time: each user's last items, or everything from a date on."""

from __future__ import annotations

from datetime import date

import numpy as np
import numpy.typing as npt

from equipoise.errors import DataError, SettingError
from equipoise.interactions import Interactions
from equipoise.matrix import entry_rows
from equipoise.split.parts import (
    Part,
    Split,
    check_share,
    check_shares,
    counted,
    leak_notes,
    ranks,
    rounded,
    seconds,
    times_of,
)


def leave_last_out(data: Interactions, *, n: int = 1, valid: bool = True) -> Split:
    """Hide each user's last items in time, after the last but one for tuning.

    ::

            data (1 = first)    train         valid.target   test.target
            a b c d e           a b c d e      a b c d e      a b c d e
        1   2 1 . 3 .           . x . . .      x . . . .      . . . x .
        2   . 4 2 1 3           . . x x .      . . . . x      . x . . .

    Used by SASRec, BERT4Rec and most papers on sequences. The history of a part is everything
    before its targets: for test that is train and valid together. Users with fewer than n + 1
    items stay in train only, those with fewer than 2n + 1 are not in valid. All users and items
    stay in train. Each user has an own cut in time, so training may see the future of others.

    Parameters
    ----------
    data
        The interactions to split, with times. Equal times are ordered by item position.
    n
        Number of items to hide in each part.
    valid
        Whether to make a part to tune on.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.Interactions([[1, 1, 1]], times=[30, 10, 20])
    >>> split = eq.split.leave_last_out(data)
    >>> split.train.history(0), split.valid.target.history(0), split.test.target.history(0)
    ([1], [2], [0])
    """
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise SettingError(f"n must be an integer >= 1, got {n!r}")
    counts = data.user_counts
    # How many items are left of a row, from the last one: 0 is the last.
    left = counts[entry_rows(data.matrix)] - 1 - ranks(data, times_of(data, "leave_last_out"))
    judged = {"test": counts >= n + 1}
    if valid:
        judged["valid"] = counts >= 2 * n + 1
    for name, people in judged.items():
        if not people.any():
            least = n + 1 if name == "test" else 2 * n + 1
            raise DataError(f"leave_last_out needs a user with {least} items for {name}")
    row = entry_rows(data.matrix)
    hidden = {"test": (left < n) & judged["test"][row]}
    if valid:
        hidden["valid"] = (left >= n) & (left < 2 * n) & judged["valid"][row]
    train = data.entries(~np.any(list(hidden.values()), axis=0))
    before = {"valid": train, "test": data.entries(~hidden["test"])}
    parts = {
        name: Part(
            before[name].rows(judged[name]), data.entries(mask).rows(judged[name]), "last", name
        )
        for name, mask in hidden.items()
    }
    unseen = int((train.item_counts == 0)[data.matrix.indices[hidden["test"]]].sum())
    notes = counted(unseen, "pair", "of test cannot be learnt: nobody in train used the item")
    few = int((~judged["test"]).sum())
    notes += counted(few, "user", f"in train only: fewer than {n + 1} items")
    notes += leak_notes(data, "each user has an own cut in time")
    return Split(train, parts.get("valid"), parts["test"], "last", None, tuple(notes))


def time_cut(
    data: Interactions,
    *,
    test_from: float | str | date | None = None,
    valid_from: float | str | date | None = None,
    test: float = 0.1,
    valid: float = 0.1,
) -> Split:
    """Learn from the past and judge on the future: one cut in time for everybody.

    ::

            data (day)      train (< 7)   test.history   test.target (>= 7)
            a b c d e       a b c d         a b c d        a b c d
        1   1 3 . 8 .       x x . .         x x . .        . . . x
        2   . 2 9 . .       . x . .         . x . .        . . x .
        3   . . 5 6 .       . . x x         . . . .        . . . .
        4   7 . . . 9       . . . .         . . . .        . . . .

    The split nearest to what a running service meets, and the only one here that never leaks the
    future. Items that nobody used in train (e) are left out everywhere; people without a history
    (4) or a target (3) are not judged; `Split.notes` counts both. The history of a part is
    everything before its targets: for test that is train and valid together.

    Parameters
    ----------
    data
        The interactions to split, with times.
    test_from, valid_from
        First moment of test and of valid: seconds since 1970, an ISO text or a date (UTC).
    test, valid
        Where no moment is given: the share of all pairs from there on. ``valid=0`` gives no such
        part. Pairs of one moment stay together, so shares are met as far as ties allow.

    Examples
    --------
    >>> import equipoise as eq
    >>> days = np.array([[1, 3, 0, 8, 0], [0, 2, 9, 0, 0], [0, 0, 5, 6, 0], [7, 0, 0, 0, 9]])
    >>> data = eq.Interactions(days > 0, [1, 2, 3, 4], list("abcde"), times=days[days > 0])
    >>> split = eq.split.time_cut(data, test_from=7, valid=0)
    >>> [(user, split.test.target.history(user)) for user in split.test.target.users.tolist()]
    [(1, ['d']), (2, ['c'])]
    """
    times = times_of(data, "time_cut")
    valid_cut, test_cut = _cuts(times, test_from, valid_from, test, valid)
    in_test = times >= test_cut
    in_train = times < (test_cut if valid_cut is None else valid_cut)
    train = data.entries(in_train)
    active, known = train.user_counts > 0, train.item_counts > 0
    notes: list[str] = []
    train = train.rows(active).columns(known)
    parts: dict[str, Part] = {}
    for name, before, hidden in (
        ("valid", in_train, ~in_train & ~in_test),
        ("test", ~in_test, in_test),
    ):
        if name == "test" or valid_cut is not None:
            past = data.entries(before).columns(known)
            everything = data.entries(hidden)
            future = everything.columns(known)
            lost = everything.n_interactions - future.n_interactions
            notes += counted(lost, "pair", f"of {name} left out: nobody in train used the item")
            active_then = everything.user_counts > 0
            judged = (past.user_counts > 0) & (future.user_counts > 0)
            why = f"active in {name} left out: no history before it or no known item in it"
            notes += counted(int((active_then & ~judged).sum()), "user", why)
            parts[name] = Part(past.rows(judged), future.rows(judged), "time", name)
    return Split(train, parts.get("valid"), parts["test"], "time", None, tuple(notes))


def _cuts(
    times: npt.NDArray[np.float64],
    test_from: float | str | date | None,
    valid_from: float | str | date | None,
    test: float,
    valid: float,
) -> tuple[float | None, float]:
    """First moments of valid (None for no such part) and of test."""
    if test_from is None:
        check_shares(0.0 if valid_from is not None else valid, test)
    else:
        check_share("valid", valid, zero=True)
    if not len(times):
        raise DataError("time_cut needs interactions")
    ordered = np.sort(times)
    test_cut = (
        _moment(ordered, test, len(times))
        if test_from is None
        else seconds(test_from, "test_from")
    )
    valid_cut = None
    if valid_from is not None:
        valid_cut = seconds(valid_from, "valid_from")
        if valid_cut >= test_cut:
            raise SettingError(f"valid must begin before test, got {valid_cut} and {test_cut}")
    elif valid and test_cut > ordered[0]:
        valid_cut = _moment(ordered, valid, int(np.searchsorted(ordered, test_cut)))
    first = test_cut if valid_cut is None else valid_cut
    if first <= ordered[0]:
        raise DataError(f"nothing happened before {first}, where train ends; choose a later cut")
    if test_cut > ordered[-1]:
        raise DataError(f"nothing happened from {test_cut} on, where test begins; cut earlier")
    return valid_cut, test_cut


def _moment(ordered: npt.NDArray[np.float64], share: float, stop: int) -> float:
    """Time of the event from which on a share of all events lies, counted back from `stop`."""
    size = max(int(rounded(share, np.array(len(ordered)))), 1)
    return float(ordered[max(stop - size, 0)])
