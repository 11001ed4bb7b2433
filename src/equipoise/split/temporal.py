"""Splits along time: each user's last items, or everything from a date on."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime

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
    times_of,
    unlearnable,
    with_known,
)

Moment = float | str | date


def leave_last_out(data: Interactions, *, valid: int = 1, test: int = 1) -> Split:
    """Hide each user's last items in time, and those before them for tuning.

    ::

            data (1 = first)    train         valid.target   test.target
            a b c d e           a b c d e      a b c d e      a b c d e
        1   2 1 . 3 .           . x . . .      x . . . .      . . . x .
        2   . 4 2 1 3           . . x x .      . . . . x      . x . . .

    Used by SASRec, BERT4Rec and most papers on sequences. The history of a part is everything
    before its targets: for test that is train and valid together. Users with too few items to
    leave one in train are not in a part. All users and items stay in train. Each user is cut at
    another time, so training may see the future of others.

    Parameters
    ----------
    valid, test
        Numbers of items to hide in each part; ``valid=0`` gives no such part.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.Interactions([[1, 1, 1]], times=[30, 10, 20])
    >>> split = eq.split.leave_last_out(data)
    >>> split.train.history(0), split.valid.target.history(0), split.test.target.history(0)
    ([1], [2], [0])
    """
    for name, number, least in (("valid", valid, 0), ("test", test, 1)):
        if not isinstance(number, (int, np.integer)) or number < least:
            raise SettingError(f"{name} must be an integer >= {least}, got {number!r}")
    counts, row = data.user_counts, entry_rows(data.matrix)
    # How many items of the user come after this one: 0 for the last.
    after = counts[row] - 1 - ranks(data, times_of(data, "leave_last_out"))
    in_part, hidden = {}, {}
    for name, first, stop in (("test", 0, test), ("valid", test, test + valid)):
        if first < stop:
            in_part[name] = counts > stop
            if not in_part[name].any():
                raise DataError(f"leave_last_out needs a user with {stop + 1} items for {name}")
            hidden[name] = (first <= after) & (after < stop) & in_part[name][row]
    train = data.entries(~np.any(list(hidden.values()), axis=0))
    before = {"valid": train, "test": data.entries(~hidden["test"])}
    parts = {
        name: Part(before[name].rows(users), data.entries(hidden[name]).rows(users), "last", name)
        for name, users in in_part.items()
    }
    notes = unlearnable(data, train, hidden["test"])
    few = int((~in_part["test"]).sum())
    notes += counted(few, "user", f"in train only: fewer than {test + 1} items")
    notes += leak_notes(data, "each user is cut at another time")
    return Split(train, parts.get("valid"), parts["test"], "last", None, tuple(notes))


def time_cut(
    data: Interactions,
    *,
    test_from: Moment | None = None,
    valid_from: Moment | None = None,
    test: float = 0.1,
    valid: float = 0.1,
) -> Split:
    """Learn from the past and evaluate on the future: one cut in time for all users.

    ::

            data (day)      train (< 7)   test.history   test.target (>= 7)
            a b c d e       a b c d         a b c d        a b c d
        1   1 3 . 8 .       x x . .         x x . .        . . . x
        2   . 2 9 . .       . x . .         . x . .        . . x .
        3   . . 5 6 .       . . x x         . . . .        . . . .
        4   7 . . . 9       . . . .         . . . .        . . . .

    The split nearest to what a running service meets, and the only one here that never leaks the
    future. Items that train lacks (e) and users without a history (4) or a target (3) are left
    out; `Split.notes` counts them. The history of a part is everything before its targets: for
    test that is train and valid together.

    Parameters
    ----------
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
            future = with_known(everything, known, name, notes)
            users = (past.user_counts > 0) & (future.user_counts > 0)
            lost = int(((everything.user_counts > 0) & ~users).sum())
            why = f"active in {name} left out: no history before it or no known item in it"
            notes += counted(lost, "user", why)
            parts[name] = Part(past.rows(users), future.rows(users), "time", name)
    return Split(train, parts.get("valid"), parts["test"], "time", None, tuple(notes))


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
        check_share("valid", valid, zero=True)
    if not len(times):
        raise DataError("time_cut needs interactions")
    ordered = np.sort(times)
    if test_from is None:
        test_cut = _share_from(ordered, test, len(times))
    else:
        test_cut = _seconds(test_from, "test_from")
    valid_cut = None
    if valid_from is not None:
        valid_cut = _seconds(valid_from, "valid_from")
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
    """Return the time from which on a share of all events lies, counted back from `stop`."""
    size = max(int(rounded(share, np.array(len(ordered)))), 1)
    return float(ordered[max(stop - size, 0)])


def _seconds(moment: Moment, name: str) -> float:
    """Return a number, an ISO text or a date as seconds since 1970; UTC where no zone is given."""
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError as error:
            raise SettingError(f"{name} must be an ISO date or time, got {moment!r}") from error
    if isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if isinstance(moment, datetime):
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(moment):
        raise SettingError(f"{name} must be finite, got {moment}")
    return float(moment)
