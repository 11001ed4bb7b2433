"""Events: what each user did, one after another, repeats included.

A matrix says which user used which item; the events say when, how often, how much and in which
way. Everything that depends on time or on repeats is computed from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data.matrix import Csr, segments
from equipoise.errors import DataError
from equipoise.runtime.kernels import bits_set, compiled, first_at_least, lowest_bit
from equipoise.runtime.machine import run

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Items = npt.NDArray[np.int32]
Codes = npt.NDArray[np.int16]
Mask = npt.NDArray[np.bool_]

COLUMNS = ("times", "weights", "types")
NO_TYPE = -1
MOST_TYPES = 2**15
BLOCK, MOST_BLOCKS = 100_000, 64  # events that a thread sorts at a time
SHORT, LANES = 256, 64  # events of a user that are counted, and how many are compared at a time


@dataclass(frozen=True, eq=False)
class Events:
    """The events of each user in their order, by time where there are times.

    The events of user u are those at ``offsets[u]`` up to ``offsets[u + 1]``.

    Parameters
    ----------
    items
        Position of the item of each event.
    offsets
        Where the events of each user begin, and the number of all events.
    times
        Seconds since 1970, which do not fall within a user; None where no time is known.
    weights
        What each event counts, negative for a return; None where each counts 1.
    types, type_names
        Kind of each event as a position in the names, -1 for none; None where all are alike.
    ordered
        Whether the order means anything; events without times may just be as they came.

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
            ends = f"end at the number of events, {len(self.items)}"
            raise DataError(f"the offsets of events must not fall and must {ends}")
        for name in COLUMNS:
            column = getattr(self, name)
            if column is not None and column.shape != self.items.shape:
                raise DataError(
                    f"events have {column.size} {name} for {len(self.items)} items; give one each"
                )
        if self.times is not None:
            _check_times(self.times, offsets)
        if self.weights is not None and not np.isfinite(self.weights).all():
            raise DataError("the weights of events must be finite")
        if self.types is not None and len(self.types):
            low, high = int(self.types.min()), int(self.types.max())
            if low < NO_TYPE or high >= len(self.type_names):
                known = f"{len(self.type_names)} names"
                raise DataError(f"the types of events must be positions in their {known}, or -1")

    @classmethod
    def collected(
        cls, rows: Ints, n_users: int, items: npt.NDArray[Any], **columns: Any
    ) -> Events:
        """Make events of a table: the user and the item of each, and what else is known.

        They are put in order of user, then time; equal times stay as they come.
        """
        order = np.argsort(rows, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_users))])
        found = {name: columns.pop(name, None) for name in COLUMNS}
        dealt = {name: None if each is None else each[order] for name, each in found.items()}
        return cls.dealt(items[order].astype(np.int32), offsets, **dealt, **columns)

    @classmethod
    def dealt(cls, items: Items, offsets: Ints, **columns: Any) -> Events:
        """Make events that are in order of user; those of a user are put in order of time."""
        times = columns.get("times")
        if times is not None and not _in_order(times, offsets):
            present = {name: columns[name] for name in COLUMNS if columns.get(name) is not None}
            columns |= in_time_order(offsets, times, {"items": items, **present})
            items = columns.pop("items")
        return cls(items, offsets, **columns)

    def check_shape(self, n_users: int, n_items: int) -> None:
        """Refuse events that do not fit a matrix of this shape."""
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
        """The user of each event, by position."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def positive(self) -> Mask:
        """Mark the events that add something: all but returns and events of weight 0."""
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
        """Return the events of these users, by position."""
        places, offsets = segments(self.offsets[users], self.lengths[users])
        return self._at(places, offsets)

    def keep(self, events: Mask) -> Events:
        """Return the events under this mask."""
        if events.all():
            return self
        running = np.concatenate([[0], np.cumsum(events, dtype=np.int64)])
        return self._at(events, running[self.offsets])

    def recode(self, new: Ints) -> Events:
        """Rename item i to ``new[i]``; events on items with a negative new name are left out."""
        remaining = self.keep(new[self.items] >= 0)
        return replace(remaining, items=new[remaining.items].astype(np.int32))

    def _at(self, places: npt.NDArray[Any], offsets: Ints) -> Events:
        found = {name: getattr(self, name) for name in COLUMNS}
        columns: dict[str, Any] = {
            name: None if each is None else each[places] for name, each in found.items()
        }
        return replace(self, items=self.items[places], offsets=offsets, **columns)

    def places(self, matrix: Csr) -> Ints:
        """Return where in the stored values of a matrix the pair of each event is, or -1."""
        positions = np.empty(self.n_events, np.int64)
        indptr = matrix.indptr.astype(np.int64, copy=False)
        indices = matrix.indices.astype(np.int32, copy=False)
        _find(indptr, indices, self.offsets, self.items, positions)
        return positions

    def pairs(self) -> tuple[Ints, Items, Ints]:
        """Return the distinct pairs, as row offsets and columns, and the pair of each event."""
        return pair_up(self.offsets, self.items)


def _check_times(times: Floats, offsets: Ints) -> None:
    if not np.isfinite(times).all():
        raise DataError("times must be finite")
    if not _in_order(times, offsets):
        raise DataError("the times of a user's events must not fall; put the events in order")


def joined(first: Events, second: Events, rows: tuple[Ints, Ints], n_users: int) -> Events:
    """Put the events of two sides together, those of the second after those of the first.

    `rows` are the new positions of the users of each side. Both have the same columns.
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
    """Return the types as positions in a longer list of names."""
    if events.types is None or not events.type_names:
        return replace(events, type_names=tuple(names))
    new = np.array([*map(names.index, events.type_names), NO_TYPE], np.int16)
    return replace(events, types=new[events.types], type_names=tuple(names))


def as_types(texts: Iterable[Any]) -> tuple[Codes, tuple[str, ...]]:
    """Return the kinds of events as positions, and their names in order of the alphabet."""
    listed = [None if text is None else str(text) for text in texts]
    names = sorted({text for text in listed if text is not None})
    place = {name: at for at, name in enumerate(names)}
    codes = [NO_TYPE if text is None else place[text] for text in listed]
    return np.array(codes, np.int16), tuple(names)


def in_time_order(
    offsets: Ints, times: Floats, columns: dict[str, npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """Return columns with the events of each user in order of time; equal times stay as they come.

    Threads have some of the users each, and put all columns of these in order at once.
    """
    ordered = {name: np.empty_like(column) for name, column in columns.items()}

    def put(first: int, stop: int) -> None:
        low, high = offsets[first], offsets[stop]
        order = np.arange(low, high)
        _sort_times(offsets, times, first, stop, order)
        for name, column in columns.items():
            np.take(column, order, out=ordered[name][low:high], mode="clip")

    _in_blocks(offsets, put)
    return ordered


def pair_up(offsets: Ints, items: Items, *, places: bool = True) -> tuple[Ints, Items, Ints]:
    """Return the distinct pairs as row offsets and ascending columns, and the pair of each event.

    Without `places` the last is left empty, which saves its memory.
    """
    pair_of_event = np.empty(len(items) if places else 0, np.int64)
    ascending, lengths = np.empty_like(items), np.empty(len(offsets) - 1, np.int64)
    ends = int(items.min(initial=0)), int(items.max(initial=0))

    def put(first: int, stop: int) -> None:
        _distinct(offsets, items, first, stop, *ends, ascending, lengths, pair_of_event)

    _in_blocks(offsets, put)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    if indptr[-1] < len(items):
        _close_gaps(offsets, indptr, ascending, pair_of_event)
    return indptr, ascending[: indptr[-1]], pair_of_event


def _in_blocks(offsets: Ints, work: Any) -> None:
    """Call with first and last rows, in threads; each has its share of the events."""
    count = min(int(offsets[-1]) // BLOCK + 1, MOST_BLOCKS)
    cuts = np.searchsorted(offsets, np.linspace(0, offsets[-1], count + 1)[1:-1])
    bounds = [0, *cuts.tolist(), len(offsets) - 1]
    run(lambda number: work(bounds[number], bounds[number + 1]), count)


@compiled
def _sort_times(offsets: Ints, times: Floats, first: int, stop: int, order: Ints) -> None:
    """Put the places of each user's events in order of time.

    The place of an event among few is the number of those before it, counted for many at a time;
    of equal times the first takes the first place.
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
    """Whether no event is before the one before it, of the same user."""
    for user in range(offsets.size - 1):
        if _fall(times[offsets[user] : offsets[user + 1]]):
            return False
    return True


@compiled
def _distinct(
    offsets: Ints,
    items: Items,
    first: int,
    stop: int,
    least: int,
    most: int,
    ascending: Items,
    lengths: Ints,
    pair_of_event: Ints,
) -> None:
    """Write the distinct items of each user in ascending order, and which of them each event has.

    Every item has a bit; a second layer has one for each word of the first that is not empty.
    """
    one = np.uint64(1)
    words = np.zeros((most - least >> 6) + 1, np.uint64)
    layer = np.zeros((most - least >> 12) + 1, np.uint64)
    ranks = np.empty(words.size, np.int64)
    for user in range(first, stop):
        start, end = offsets[user], offsets[user + 1]
        low, high = layer.size, -1
        for place in range(start, end):
            word = items[place] - least >> 6
            words[word] |= one << np.uint64(items[place] - least & 63)
            layer[word >> 6] |= one << np.uint64(word & 63)
            low, high = min(low, word >> 6), max(high, word >> 6)
        at = start
        for top in range(low, high + 1):
            filled, layer[top] = layer[top], 0
            while filled:
                word = (top << 6) + lowest_bit(filled)
                filled &= filled - one
                bits, ranks[word] = words[word], at
                while bits:
                    ascending[at] = least + (word << 6) + lowest_bit(bits)
                    bits &= bits - one
                    at += 1
        lengths[user] = at - start
        if pair_of_event.size:
            for place in range(start, end):
                word = items[place] - least >> 6
                before = (one << np.uint64(items[place] - least & 63)) - one
                pair_of_event[place] = ranks[word] + bits_set(words[word] & before)
        for place in range(start, end):
            words[items[place] - least >> 6] = 0


@compiled
def _close_gaps(offsets: Ints, indptr: Ints, ascending: Items, pair_of_event: Ints) -> None:
    """Move the distinct items of all users together, which begin where their events do."""
    for user in range(offsets.size - 1):
        moved = offsets[user] - indptr[user]
        for place in range(indptr[user], indptr[user + 1]):
            ascending[place] = ascending[place + moved]
        if pair_of_event.size:
            for place in range(offsets[user], offsets[user + 1]):
                pair_of_event[place] -= moved


@compiled
def _find(indptr: Ints, indices: Items, offsets: Ints, items: Items, positions: Ints) -> None:
    for user in range(offsets.size - 1):
        end = indptr[user + 1]
        for event in range(offsets[user], offsets[user + 1]):
            item = items[event]
            place = first_at_least(indices, indptr[user], end, item)
            positions[event] = place if place < end and indices[place] == item else -1
