"""From what a caller passes (users, histories, item lists) to rows of a matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.errors import DataError
from equipoise.events import Events
from equipoise.ids import IdIndex, Unknown, as_list, is_id
from equipoise.interactions import Interactions
from equipoise.matrix import Csr
from equipoise.ranking.terms import Rows

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Asked:
    """The users or histories that a caller passed.

    Parameters
    ----------
    users, kind
        A name for each of them, and the type of a column of these names.
    source
        Positions of training users, histories, or Interactions.
    answered
        A flag for each user or history the caller passed: False where it was skipped.
    trained
        Positions among the training users, -1 for others; None where all are bare histories.
    """

    users: list[Any]
    kind: Any
    source: Positions | list[Any] | Interactions
    answered: Mask
    trained: Positions | None = None


def parse_asked(wanted: Any, train: Interactions, unknown: Unknown) -> Asked:
    """Tell user ids, histories and Interactions apart.

    A single id or a list of ids means known users; a list of lists, a mapping from names to lists
    and Interactions mean histories.
    """
    if isinstance(wanted, Interactions):
        index = wanted.user_index
        trained = train.user_index.positions(wanted.users, unknown="skip")
        every = np.ones(len(index), np.bool_)
        return Asked(wanted.users.tolist(), index.kind, wanted, every, trained)
    if isinstance(wanted, Mapping):
        users, histories = list(wanted), list(wanted.values())
        return Asked(users, _kind(users), histories, np.ones(len(users), np.bool_))
    listed = as_list(wanted)
    if _are_ids(listed, "user ids or histories (lists of item ids)"):
        place = train.user_index.positions(listed, unknown=unknown)
        answered = place >= 0
        place = place[answered]
        users = train.users[place].tolist()
        return Asked(users, train.user_index.kind, place, answered, place)
    return Asked(list(range(len(listed))), pl.Int64, listed, np.ones(len(listed), np.bool_))


@dataclass(frozen=True)
class Request:
    """Users to answer, their histories over the model's items, and what may be listed.

    Parameters
    ----------
    users, kind, answered, trained
        As of `Asked`.
    history
        A row for each user.
    allowed
        Mask of the items that may be listed for all users; None stands for all items.
    exclude, candidates
        Items that may not, and that alone may be listed, a row for each user.
    """

    users: list[Any]
    kind: Any
    history: Csr
    answered: Mask
    trained: Positions | None = None
    allowed: Mask | None = None
    exclude: Csr | None = None
    candidates: Csr | None = None

    def __len__(self) -> int:
        return len(self.users)

    def take(self, rows: Positions) -> Self:
        """Return the users at these rows."""
        per_user: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name)[rows]
            for name in ("history", "trained", "exclude", "candidates")
        }
        return replace(self, users=[self.users[row] for row in rows], **per_user)

    def limited(self, exclude: Any, candidates: Any, items: IdIndex, unknown: Unknown) -> Self:
        """Return the request with item lists of the caller, each looked up once.

        One list for all users becomes a mask, which all of them share.
        """
        each: dict[str, Csr] = {}
        allowed = None
        for name, given in (("exclude", exclude), ("candidates", candidates)):
            if given is None:
                continue
            found = _item_lists(given, self.answered, items, unknown)
            if isinstance(found, np.ndarray):
                mask = np.isin(np.arange(len(items)), found, invert=name == "exclude")
                allowed = mask if allowed is None else allowed & mask
            else:
                each[name] = found
        exclude, candidates = each.get("exclude"), each.get("candidates")
        return replace(self, allowed=allowed, exclude=exclude, candidates=candidates)

    def by_candidates(self) -> Iterator[tuple[Positions, Mask | None]]:
        """Rows of the users who choose from the same items, and these items as a mask."""
        if self.candidates is None or not len(self):
            yield np.arange(len(self)), self.allowed
            return
        groups: dict[bytes, list[int]] = {}
        rows = np.split(self.candidates.indices, self.candidates.indptr[1:-1])
        for row, listed in enumerate(rows):
            groups.setdefault(listed.tobytes(), []).append(row)
        for group in groups.values():
            mask = np.zeros(self.candidates.shape[1], np.bool_)
            mask[rows[group[0]]] = True
            yield np.array(group), mask if self.allowed is None else mask & self.allowed


def history_rows(histories: Iterable[Any], items: IdIndex, unknown: Unknown) -> Csr:
    """Return one row per history, with a 1 for each of its items."""
    rows = [_item_positions(history, items, unknown) for history in histories]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    columns = np.concatenate([*rows, np.empty(0, np.int64)])
    ones = np.ones(len(columns), np.float32)
    return sp.csr_array((ones, columns, offsets), shape=(len(rows), len(items)))


def history_events(histories: Iterable[Any], items: IdIndex, unknown: Unknown) -> Events:
    """Return the items of each history in their order, repeats included, without times."""
    rows = [items.positions(as_list(history), unknown=unknown) for history in histories]
    rows = [row[row >= 0] for row in rows]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Events(np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int32), offsets)


def empty_rows(history: Csr) -> Positions:
    """Rows of the users without a history."""
    return np.flatnonzero(np.diff(history.indptr) == 0)


def _item_positions(listed: Any, items: IdIndex, unknown: Unknown) -> Positions:
    """Sorted positions of item ids, each once."""
    place = items.positions(listed, unknown=unknown)
    return np.unique(place[place >= 0])


def _item_lists(given: Any, known: Mask, items: IdIndex, unknown: Unknown) -> Positions | Csr:
    """Item ids for all users as positions, or lists of them as one row per known user."""
    if isinstance(given, Mapping):
        raise DataError("give item ids, or a list of such lists, one per user, not a mapping")
    listed = as_list(given)
    if _are_ids(listed, "item ids or lists of item ids"):
        return _item_positions(listed, items, unknown)
    if len(listed) != len(known):
        raise DataError(f"got {len(listed)} lists of items for {len(known)} users; give one each")
    kept = [row for row, is_known in zip(listed, known, strict=True) if is_known]
    return history_rows(kept, items, unknown)


def _are_ids(listed: list[Any], choice: str) -> bool:
    """Whether all of these are ids; otherwise none may be."""
    ids = [is_id(value) for value in listed]
    if any(ids) and not all(ids):
        raise DataError(f"pass either {choice}, not a mixture")
    return all(ids)


def _kind(names: list[Any]) -> Any:
    """Type of a column of names: integers where all of them are, else text."""
    whole = all(isinstance(name, (int, np.integer)) and type(name) is not bool for name in names)
    return pl.Int64 if whole and all(abs(int(name)) < 2**63 for name in names) else pl.String


SHARED = -2  # a history that several users have


class KnownUsers:
    """The users a model was fitted on, found by position or by history.

    A row that comes with a user's position is that user, if it is the history the model was fitted
    on. A bare history belongs to the one user who has it; one that several users share is refused,
    unless users with equal histories score `alike`. `model` is a name for errors.
    """

    def __init__(self, model: str, X: Csr, *, alike: bool = False) -> None:
        self.model = model
        self._keys = _keys(X.indptr, X.indices, X.data)
        self._places: dict[bytes, int] = {}
        for place, key in enumerate(self._keys):
            known = self._places.setdefault(key, place)
            if known != place and not alike:
                self._places[key] = SHARED

    def places(self, rows: Rows) -> list[int]:
        """Return the position of the user of each row, -1 for an empty history."""
        given = [-1] * len(rows) if rows.users is None else rows.users.tolist()
        keys = _keys(rows.indptr, rows.indices, rows.values)
        return [self._place(key, place) for key, place in zip(keys, given, strict=True)]

    def _place(self, key: bytes, given: int) -> int:
        if not key:
            return -1
        if given >= 0 and self._keys[given] == key:
            return given
        place = self._places.get(key, -1)
        if place == SHARED:
            raise DataError(
                f"several users of {self.model} have this history, and vectors of their own; ask "
                "for one of them by id, or take a model that ranks for any history"
            )
        if place < 0:
            raise DataError(
                f"{self.model} ranks only the users it was fitted on, by the histories it was "
                "fitted on; fit it with these histories, or take a model without this limit"
            )
        return place


def _keys(
    indptr: npt.NDArray[Any], indices: npt.NDArray[Any], values: npt.NDArray[Any]
) -> list[bytes]:
    """Return the content of each row as bytes."""
    items, weights = np.asarray(indices, np.int32), np.asarray(values, np.float32)
    return [
        items[start:stop].tobytes() + weights[start:stop].tobytes()
        for start, stop in pairwise(indptr.tolist())
    ]
