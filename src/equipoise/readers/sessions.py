"""Sessions: events in order, repeats kept, and click logs cut where a user pauses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.errors import SettingError
from equipoise.sequences import Sequences

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def gap_seconds(gap: float | str) -> float:
    """Return a pause in seconds, given as a number or as text.

    >>> gap_seconds("30m"), gap_seconds(90)
    (1800.0, 90.0)
    """
    if isinstance(gap, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd])\s*", gap)
        if match is None:
            raise SettingError(f"gap must be seconds or text such as '30m' or '1h', got {gap!r}")
        value = float(match[1]) * UNITS[match[2]]
    else:
        value = float(gap)
    if not 0 < value < np.inf:
        raise SettingError(f"gap must be a positive time, got {gap!r}")
    return value


def cut(
    users: npt.NDArray[np.int32], times: npt.NDArray[np.float64], ids: npt.NDArray[Any], gap: float
) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Return the session of each event and the ids of the sessions.

    A session ends where the same user pauses for longer than `gap` seconds. Sessions are in order
    of user, then time; user "ann" has sessions "ann/1", "ann/2", ...
    """
    order = np.lexsort((times, users))
    user, time = users[order], times[order]
    new_user = np.concatenate([[True], user[1:] != user[:-1]])
    starts = new_user | np.concatenate([[False], np.diff(time) > gap])
    number = np.cumsum(starts) - 1
    sessions = np.empty(len(users), np.int32)
    sessions[order] = number
    owner = user[starts]
    first = np.flatnonzero(new_user[starts])
    ordinal = np.arange(len(owner)) - np.repeat(first, np.diff([*first, len(owner)])) + 1
    names = np.empty(len(owner), object)
    names[:] = [f"{ids[who]}/{turn}" for who, turn in zip(owner, ordinal, strict=True)]
    return sessions, names


def ordered_events(
    rows: npt.NDArray[np.int32],
    items: npt.NDArray[np.int32],
    n_rows: int,
    times: npt.NDArray[np.float64] | None,
) -> Sequences:
    """Return the events of each row by time, or as they came where there are no times."""
    keys = (rows,) if times is None else (times, rows)
    order = np.lexsort(keys)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_rows))])
    return Sequences(items[order].astype(np.int32), offsets.astype(np.int64))
