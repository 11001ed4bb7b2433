"""From what a caller passes (users, histories, item lists) to rows of a matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.errors import DataError
from equipoise.ids import IdIndex, Unknown
from equipoise.interactions import Interactions
from equipoise.matrix import Csr


@dataclass(frozen=True)
class Request:
    """People to answer: a name for each row, and their histories over the model's items.

    `known` holds the positions of those who were asked about as training users, by their ids, and
    -1 for the others; None where all are bare histories.
    """

    users: list[Any]
    history: Csr
    known: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.users)

    def rows(self, start: int, stop: int) -> Request:
        """Return the people from `start` to `stop`."""
        return self.take(np.arange(start, min(stop, len(self))))

    def take(self, rows: npt.NDArray[np.int64]) -> Request:
        """Return the people in these rows."""
        known = None if self.known is None else self.known[rows]
        return Request([self.users[row] for row in rows], self.history[rows], known)


def parse_request(wanted: Any, train: Interactions, unknown: Unknown) -> Request:
    """Turn user ids, histories or Interactions into rows over the items of `train`.

    A single id or a list of ids means known users; a list of lists, a mapping from names to lists
    and Interactions mean histories.
    """
    if isinstance(wanted, Interactions):
        data = wanted.with_items(train.item_index, unknown=unknown)
        return Request(data.users.tolist(), data.matrix, known_users(data, train))
    if isinstance(wanted, Mapping):
        return Request(list(wanted), history_rows(wanted.values(), train.item_index, unknown))
    if is_id(wanted):
        wanted = [wanted]
    listed = wanted.tolist() if isinstance(wanted, np.ndarray) else list(wanted)
    ids = [is_id(value) for value in listed]
    if all(ids):
        place = train.user_index.positions(listed, unknown=unknown)
        place = place[place >= 0]
        known = train.rows(place)
        return Request(known.users.tolist(), known.matrix, place)
    if any(ids):
        raise DataError("pass either user ids or histories (lists of item ids), not a mixture")
    return Request(list(range(len(listed))), history_rows(listed, train.item_index, unknown))


def known_users(data: Interactions, train: Interactions) -> npt.NDArray[np.int64]:
    """Return the positions of the users in the training data, by their ids; -1 for others."""
    return train.user_index.positions(data.users, unknown="skip")


def history_rows(histories: Iterable[Any], items: IdIndex, unknown: Unknown) -> Csr:
    """Return one row per history, with a 1 for each of its items."""
    rows = [item_positions(history, items, unknown) for history in histories]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    columns = np.concatenate([*rows, np.empty(0, np.int64)])
    ones = np.ones(len(columns), np.float32)
    return sp.csr_array((ones, columns, offsets), shape=(len(rows), len(items)))


def item_positions(listed: Any, items: IdIndex, unknown: Unknown) -> npt.NDArray[np.int64]:
    """Sorted positions of item ids, each once."""
    if is_id(listed):
        raise DataError(f"expected a list of item ids, got {listed!r}")
    place = items.positions(listed, unknown=unknown)
    return np.unique(place[place >= 0])


def is_id(value: Any) -> bool:
    """Whether this is one id rather than a collection."""
    return isinstance(value, (str, int, np.integer, np.str_))


def per_person(given: Any, n_people: int, items: IdIndex, unknown: Unknown) -> Csr | None:
    """Item lists as one row per person; one flat list counts for everybody."""
    if given is None:
        return None
    listed = given.tolist() if isinstance(given, np.ndarray) else list(given)
    if all(is_id(value) for value in listed):
        listed = [listed] * n_people
    elif len(listed) != n_people:
        raise DataError(f"got {len(listed)} lists of items for {n_people} people")
    return history_rows(listed, items, unknown)


def by_candidates(
    candidates: Csr | None, n_people: int
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]]:
    """People who choose from the same candidates, and these as a mask."""
    if candidates is None:
        yield np.arange(n_people), None
        return
    groups: dict[bytes, list[int]] = {}
    for row in range(n_people):
        start, stop = candidates.indptr[row : row + 2]
        groups.setdefault(candidates.indices[start:stop].tobytes(), []).append(row)
    for rows in groups.values():
        mask = np.zeros(candidates.shape[1], np.bool_)
        start, stop = candidates.indptr[rows[0] : rows[0] + 2]
        mask[candidates.indices[start:stop]] = True
        yield np.array(rows), mask
