"""Ordered events, repeats included: what a session is beyond a set of items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


def segments(
    starts: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Places of many runs one after another, and the offsets of the runs in that order.

    >>> segments(np.array([5, 0]), np.array([2, 3]))
    (array([5, 6, 0, 1, 2]), array([0, 2, 5]))
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    return places, offsets


@dataclass(frozen=True)
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

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, user: int) -> npt.NDArray[np.int32]:
        return self.items[self.offsets[user] : self.offsets[user + 1]]

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The user of each event, by position."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def take(self, users: npt.NDArray[np.int64]) -> Sequences:
        """Return the events of these users, by position."""
        places, offsets = segments(self.offsets[users], np.diff(self.offsets)[users])
        return Sequences(self.items[places], offsets)

    def keep(self, events: npt.NDArray[np.bool_]) -> Sequences:
        """Return the events under this mask."""
        running = np.concatenate([[0], np.cumsum(events)]).astype(np.int64)
        return Sequences(self.items[events], running[self.offsets])

    def recode(self, new: npt.NDArray[np.int64]) -> Sequences:
        """Rename item i to ``new[i]``; events on items with a negative new name are left out."""
        kept = self.keep(new[self.items] >= 0)
        return Sequences(new[kept.items].astype(np.int32), kept.offsets)
