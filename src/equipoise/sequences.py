"""Ordered events, repeats included: what a session is beyond a set of items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.errors import DataError
from equipoise.matrix import in_ascending


def segments(
    starts: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Places of many runs one after another, and the offsets of the runs in that order.

    >>> segments(np.array([5, 0]), np.array([2, 3]))
    (array([5, 6, 0, 1, 2]), array([0, 2, 5]))
    """
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    return places, offsets


@dataclass(frozen=True, eq=False)
class Sequences:
    """Ordered events of each user, repeats included.

    Parameters
    ----------
    items
        Item positions, user after user, in the order of the events.
    offsets
        User u's events are ``items[offsets[u]:offsets[u + 1]]``.
    """

    items: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        offsets = self.offsets
        if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0:
            raise DataError("the offsets of sequences must be a list that starts with 0")
        if (offsets[1:] < offsets[:-1]).any() or offsets[-1] != len(self.items):
            ends = f"end at the number of events, {len(self.items)}"
            raise DataError(f"the offsets of sequences must not fall and must {ends}")

    def check_shape(self, n_users: int, n_items: int) -> None:
        """Refuse sequences that do not fit a matrix of this shape."""
        if len(self) != n_users:
            raise DataError(f"sequences has {len(self)} rows for {n_users} users")
        if len(self.items) and (self.items.min() < 0 or self.items.max() >= n_items):
            raise DataError(f"sequences must name items by positions from 0 to {n_items - 1}")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, user: int) -> npt.NDArray[np.int32]:
        return self.items[self.offsets[user] : self.offsets[user + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of events of each user."""
        return np.diff(self.offsets)

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The user of each event, by position."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def take(self, users: npt.NDArray[np.int64]) -> Sequences:
        """Return the events of these users, by position."""
        places, offsets = segments(self.offsets[users], self.lengths[users])
        return Sequences(self.items[places], offsets)

    def keep(self, events: npt.NDArray[np.bool_]) -> Sequences:
        """Return the events under this mask."""
        running = np.concatenate([[0], np.cumsum(events, dtype=np.int64)])
        return Sequences(self.items[events], running[self.offsets])

    def without(self, cells: npt.NDArray[np.int64], n_items: int) -> Sequences:
        """Leave out the events in these cells, ascending numbers user * n_items + item."""
        return self.keep(~in_ascending(self.rows * n_items + self.items, cells))

    def recode(self, new: npt.NDArray[np.int64]) -> Sequences:
        """Rename item i to ``new[i]``; events on items with a negative new name are left out."""
        kept = self.keep(new[self.items] >= 0)
        return Sequences(new[kept.items].astype(np.int32), kept.offsets)
