"""Events: the log of what each user did, in order and with repeats.

The matrix says which user used which item; the events add when, how often, how much and what type
of event it was. Everything that depends on time or on repeats is computed from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data.matrix import (
    Csr,
    Ints,
    Items,
    compact,
    in_blocks,
    keep_entries,
    pair_up,
    segments,
)
from equipoise.errors import DataError
from equipoise.runtime.kernels import compiled, first_at_least

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int16]
Mask = npt.NDArray[np.bool_]

COLUMNS = ("times", "weights", "types")
NO_TYPE = -1
ROUNDING = 1e-12  # a sum of weights below this share of their sizes counts as 0
MOST_TYPES = 2**15
SHORT, LANES = 256, 64  # up to SHORT events are sorted by counting, LANES comparisons at a time


@dataclass(frozen=True, eq=False)
class Events:
    """The events of each user, in order of time where times are known.

    The events of user u are ``items[offsets[u]:offsets[u + 1]]``.

    Parameters
    ----------
    items
        Item position of each event.
    offsets
        Index of the first event of each user, then the total number of events.
    times
        Seconds since 1970, ascending within a user; None if unknown.
    weights
        Weight of each event, negative for a return; None if every event counts 1.
    types, type_names
        Type of each event as an index into the names, -1 for none; None without types.
    ordered
        Whether the order is meaningful; events without times may be in any order.

    Examples
    --------
    >>> events = Events(np.array([2, 0, 2], np.int32), np.array([0, 1, 3]))
    >>> [events[user].tolist() for user in range(len(events))]
    [[2], [0, 2]]
    """

    items: Items
    offsets: Ints
    times: Floats | None = None
    weights: Floats | None = None
    types: Codes | None = None
    type_names: tuple[str, ...] = ()
    ordered: bool = True

    def __post_init__(self) -> None:
        offsets = self.offsets
        if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0:
            raise DataError("the offsets of events must be a list that starts with 0")
        if (offsets[1:] < offsets[:-1]).any() or offsets[-1] != len(self.items):
            raise DataError(
                "the offsets of events must not decrease and must end at the number of events, "
                f"{len(self.items)}"
            )
        for name in COLUMNS:
            column = getattr(self, name)
            if column is not None and column.shape != self.items.shape:
                raise DataError(
                    f"events have {column.size} {name} for {len(self.items)} items; give one each"
                )
        if self.times is not None:
            if not np.isfinite(self.times).all():
                raise DataError("times must be finite")
            if not _in_order(self.times, offsets):
                raise DataError("the times of a user's events must not decrease; sort the events")
        if self.weights is not None and not np.isfinite(self.weights).all():
            raise DataError("the weights of events must be finite")
        if self.types is not None and len(self.types):
            n_names = len(self.type_names)
            if self.types.min() < NO_TYPE or self.types.max() >= n_names:
                raise DataError(
                    f"the types of events must be positions in their {n_names} names, or -1"
                )

    @classmethod
    def collected(
        cls, rows: Ints, n_users: int, items: npt.NDArray[Any], **columns: Any
    ) -> Events:
        """Sort a table of events by user, then time; equal times keep their order.

        `rows` and `items` are the user and item position of each event.
        """
        order = np.argsort(rows, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_users))])
        for name in COLUMNS:
            if columns.get(name) is not None:
                columns[name] = columns[name][order]
        return cls.sorted_by_time(items[order].astype(np.int32), offsets, **columns)

    @classmethod
    def sorted_by_time(cls, items: Items, offsets: Ints, **columns: Any) -> Events:
        """Return events that are grouped by user already, each user's sorted by time."""
        times = columns.get("times")
        if times is not None and not _in_order(times, offsets):
            present = {name: columns[name] for name in COLUMNS if columns.get(name) is not None}
            columns |= in_time_order(offsets, times, {"items": items, **present})
            items = columns.pop("items")
        return cls(items, offsets, **columns)

    def check_shape(self, n_users: int, n_items: int) -> None:
        """Raise if the events do not fit a matrix of this shape."""
        if len(self) != n_users:
            raise DataError(f"events has {len(self)} rows for {n_users} users; give one each")
        if len(self.items) and (self.items.min() < 0 or self.items.max() >= n_items):
            raise DataError(f"events must name items by positions from 0 to {n_items - 1}")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, user: int) -> Items:
        return self.items[self.offsets[user] : self.offsets[user + 1]]

    @property
    def n_events(self) -> int:
        """Number of events of all users."""
        return len(self.items)

    @property
    def lengths(self) -> Ints:
        """Number of events of each user."""
        return np.diff(self.offsets)

    @property
    def rows(self) -> Ints:
        """User position of each event."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def positive(self) -> Mask:
        """Mask of the events with a positive weight: no returns."""
        return np.ones(self.n_events, bool) if self.weights is None else self.weights > 0

    @property
    def last_times(self) -> Floats:
        """Time of each user's last event; minus infinity for a user without events."""
        assert self.times is not None
        has_events = self.lengths > 0
        last_times = np.full(len(self), -np.inf)
        last_times[has_events] = self.times[self.offsets[1:][has_events] - 1]
        return last_times

    def keys(self, n_items: int) -> Ints:
        """Return user * n_items + item for each event."""
        return self.rows * n_items + self.items

    def take(self, users: Ints) -> Events:
        """Return the events of the users at these positions."""
        places, offsets = segments(self.offsets[users], self.lengths[users])
        return self._at(places, offsets)

    def keep(self, events: Mask) -> Events:
        """Return the events under this mask."""
        if events.all():
            return self
        running = np.concatenate([[0], np.cumsum(events, dtype=np.int64)])
        return self._at(events, running[self.offsets])

    def recode(self, new: Ints) -> Events:
        """Move item i to position ``new[i]``; a negative one drops its events."""
        remaining = self.keep(new[self.items] >= 0)
        return replace(remaining, items=new[remaining.items].astype(np.int32))

    def _at(self, places: npt.NDArray[Any], offsets: Ints) -> Events:
        columns: dict[str, Any] = {
            name: getattr(self, name)[places]
            for name in COLUMNS
            if getattr(self, name) is not None
        }
        return replace(self, items=self.items[places], offsets=offsets, **columns)

    def places(self, matrix: Csr) -> Ints:
        """Return the index of each event's pair among the stored values of a matrix, or -1."""
        positions = np.empty(self.n_events, np.int64)
        indptr = matrix.indptr.astype(np.int64, copy=False)
        indices = matrix.indices.astype(np.int32, copy=False)
        _find(indptr, indices, self.offsets, self.items, positions)
        return positions

    def pairs(self) -> tuple[Ints, Items, Ints]:
        """Return the distinct pairs, as row offsets and columns, and each event's pair."""
        return pair_up(self.offsets, self.items)


def joined(first: Events, second: Events, rows: tuple[Ints, Ints], n_users: int) -> Events:
    """Merge two sets of events with the same columns, those of the second after the first.

    `rows` are the new positions of the users of each.
    """
    names = list(dict.fromkeys([*first.type_names, *second.type_names]))
    sides = [_renamed(side, names) for side in (first, second)]
    row = np.concatenate([new[side.rows] for side, new in zip(sides, rows, strict=True)])
    columns: dict[str, Any] = {}
    for name in ("items", *COLUMNS):
        parts = [getattr(side, name) for side in sides]
        columns[name] = None if parts[0] is None else np.concatenate(parts)
    return Events.collected(
        row,
        n_users,
        columns.pop("items"),
        **columns,
        type_names=tuple(names),
        ordered=first.ordered and second.ordered,
    )


def _renamed(events: Events, names: list[str]) -> Events:
    """Return the events with their types as positions in a longer list of names."""
    if events.types is None or not events.type_names:
        return replace(events, type_names=tuple(names))
    new = np.array([*map(names.index, events.type_names), NO_TYPE], np.int16)
    return replace(events, types=new[events.types], type_names=tuple(names))


def summed(events: Events, n_items: int, *, signed: bool = False) -> tuple[Csr, int]:
    """Return the matrix of summed weights, and the number of pairs that have events.

    A pair has no value if its sum is 0 or, unless `signed`, negative.
    """
    assert events.weights is not None
    indptr, indices, pair = events.pairs()
    total = np.bincount(pair, events.weights, minlength=len(indices))
    size = np.bincount(pair, np.abs(events.weights), minlength=len(indices))
    # a purchase and its return sum to 0 despite rounding
    has_value = (np.abs(total) if signed else total) > ROUNDING * size
    matrix = compact(total, indices, indptr, (len(events), n_items))
    matrix = matrix if has_value.all() else keep_entries(matrix, has_value)
    return matrix, len(indices)


def dated(matrix: Csr, times: npt.NDArray[np.float64], events: Events | None) -> Events:
    """Return one event per pair at its time, or the events with the times of their pairs.

    The time of a pair is that of its last event; an earlier one gets the latest time that keeps
    the events in order.
    """
    if events is None:
        simple = bare(matrix)
        return Events.sorted_by_time(
            simple.items, simple.offsets, times=times, weights=simple.weights
        )
    if events.times is not None:
        raise DataError("the events have times of their own; leave times out")
    place = events.places(matrix)
    last = np.full(len(times) + 1, -1)
    last[place] = np.arange(len(place))
    event_times = np.full(len(place), np.inf)
    latest = last[:-1][last[:-1] >= 0]
    event_times[latest] = times[place[latest]]
    for start, stop in pairwise(events.offsets.tolist()):
        event_times[start:stop] = np.minimum.accumulate(event_times[start:stop][::-1])[::-1]
    if not np.isfinite(event_times).all():
        raise DataError("the events name a pair that the matrix lacks; give them their times")
    return replace(events, times=event_times)


def bare(matrix: Csr) -> Events:
    """Return one event per pair, without time or order."""
    weights = None if (matrix.data == 1).all() else matrix.data.astype(np.float64)
    offsets = matrix.indptr.astype(np.int64, copy=False)
    items = matrix.indices.astype(np.int32, copy=False)
    return Events(items, offsets, weights=weights, ordered=False)


def shares(matrix: Csr, events: Events) -> npt.NDArray[np.float64]:
    """Return the weight of each event: the value of its pair, divided equally."""
    place = events.places(matrix)
    times = np.bincount(place[place >= 0], minlength=matrix.nnz)
    return np.append(matrix.data / np.maximum(times, 1), 0.0)[place]


def as_types(texts: Iterable[Any]) -> tuple[Codes, tuple[str, ...]]:
    """Return types of events as positions, and their names in alphabetical order."""
    listed = [None if text is None else str(text) for text in texts]
    names = sorted({text for text in listed if text is not None})
    position = {None: NO_TYPE} | {name: at for at, name in enumerate(names)}
    return np.array([position[text] for text in listed], np.int16), tuple(names)


def in_time_order(
    offsets: Ints, times: Floats, columns: dict[str, npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """Sort the columns by time within each user, in threads; equal times keep their order."""
    ordered = {name: np.empty_like(column) for name, column in columns.items()}

    def put(first: int, stop: int) -> None:
        low, high = offsets[first], offsets[stop]
        order = np.arange(low, high)
        _sort_times(offsets, times, first, stop, order)
        for name, column in columns.items():
            np.take(column, order, out=ordered[name][low:high], mode="clip")

    in_blocks(offsets, put)
    return ordered


@compiled
def _sort_times(offsets: Ints, times: Floats, first: int, stop: int, order: Ints) -> None:
    """Write the indices of each user's events in order of time, stable.

    For up to SHORT events the rank of an event is the number of earlier ones, counted by SIMD.
    """
    low = offsets[first]
    room = np.empty((SHORT // LANES, LANES))
    part = room.ravel()
    for user in range(first, stop):
        start, size = offsets[user], offsets[user + 1] - offsets[user]
        user_times = times[start : start + size]
        if not _fall(user_times):
            continue
        out = order[start - low : start - low + size]
        if size > SHORT:
            out[:] = start + np.argsort(user_times, kind="mergesort")
            continue
        out[:] = -1
        part[:size] = user_times
        rows = (size + LANES - 1) // LANES
        part[size : rows * LANES] = np.inf
        for event in range(size):
            time, place = user_times[event], 0
            for row in range(rows):
                for lane in range(LANES):
                    place += room[row, lane] < time
            while out[place] >= 0:
                place += 1
            out[place] = start + event


@compiled
def _fall(times: Floats) -> bool:
    falls = 0
    for place in range(1, times.size):
        falls += times[place] < times[place - 1]
    return falls > 0


@compiled
def _in_order(times: Floats, offsets: Ints) -> bool:
    """Whether times ascend within each user."""
    for user in range(offsets.size - 1):
        if _fall(times[offsets[user] : offsets[user + 1]]):
            return False
    return True


@compiled
def _find(indptr: Ints, indices: Items, offsets: Ints, items: Items, positions: Ints) -> None:
    for user in range(offsets.size - 1):
        end = indptr[user + 1]
        for event in range(offsets[user], offsets[user + 1]):
            item = items[event]
            place = first_at_least(indices, indptr[user], end, item)
            positions[event] = place if place < end and indices[place] == item else -1
