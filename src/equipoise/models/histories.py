"""Convert users, histories and item lists that a caller passes to rows of a matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.checks import choice
from equipoise.data.events import Events
from equipoise.data.ids import UNKNOWN, IdIndex, Unknown, as_list, by_id_key, id_key, is_id
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr, segments
from equipoise.errors import DataError
from equipoise.ranking.ranker import Only
from equipoise.ranking.rules import ItemRules, UnknownPins
from equipoise.ranking.terms import Rows

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
# until the histories are known: rows, and flags of cold ones
NO_ROWS: tuple[Any, Mask] = sp.csr_array((0, 0), dtype=np.float32), np.zeros(0, np.bool_)


class Unknowns(NamedTuple):
    """How to treat ids that the model does not know."""

    users: Literal["error", "popular", "skip"] = "error"
    items: Unknown = "error"

    @classmethod
    def of(cls, users: Any = None, items: Any = None) -> Self:
        """Check the choices of a caller; None means an error."""
        users = "error" if users is None else users
        choice("unknown_users", users, ("error", "popular", "skip"))
        return cls(users, choice("unknown_items", "error" if items is None else items, UNKNOWN))

    def user_positions(self, listed: Any, train: Interactions) -> Positions:
        """Return the positions of training users, -1 for unknown ones that are allowed."""
        hint = "pass unknown_users='popular' for popular items, or 'skip' to leave them out"
        unknown: Unknown = "error" if self.users == "error" else "skip"
        return train.user_positions(listed, unknown=unknown, hint=hint)

    def item_positions(self, listed: Any, index: IdIndex) -> Positions:
        """Return the positions of items, -1 for unknown ones that are skipped."""
        hint = "pass unknown_items='skip' to leave them out"
        return index.positions(listed, unknown=self.items, hint=hint)


@dataclass(frozen=True)
class Request:
    """Users to answer, their histories over the model's items, and the items they may get.

    Parameters
    ----------
    users, kind
        A name for each user, and the type of a column of these names.
    history
        A row for each user, weighed like the training data.
    cold
        Flags of the users who get popular items, as `cold_rows` finds them.
    answered
        A flag for each user or history of the caller: False if it was skipped.
    trained
        Positions among the training users, -1 for unknown ones; None for bare histories.
    allowed
        Mask of the items that may be listed for any user; None for all items.
    exclude
        Items that may not be listed, a row for each user.
    only
        Items that alone may be listed, a row for each user.
    has_names
        Whether `users` are ids or names from the caller; positions in a list are not. Rules for
        single users apply only to users with names.
    source
        The histories as the caller passed them: positions of training users (-1: unknown, gets
        popular items), lists of items, or Interactions. Not changed by `take`.
    pins, used_pins
        Users x unknown pinned items: those that `exclude` and `candidates` allow, and those in the
        history; None without such pins.
    """

    users: list[Any]
    history: Csr
    cold: Mask
    kind: Any = None
    answered: Mask | None = None
    trained: Positions | None = None
    allowed: Mask | None = None
    exclude: Csr | None = None
    only: tuple[Only, ...] = ()
    has_names: bool = True
    source: Any = None
    pins: Mask | None = None
    used_pins: Mask | None = None

    def __len__(self) -> int:
        return len(self.users)

    def with_history(self, history: Csr, item_counts: npt.NDArray[Any], **changes: Any) -> Self:
        """Return the request with the rows of its histories."""
        cold = cold_rows(history, item_counts)
        return replace(self, history=history, cold=cold, **changes)

    def take(self, rows: Positions) -> Self:
        """Return the users at these rows."""
        per_user: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name)[rows]
            for name in ("history", "cold", "trained", "exclude", "pins", "used_pins")
        }
        only = tuple(lists.take(rows) for lists in self.only)
        return replace(self, users=[self.users[row] for row in rows], only=only, **per_user)

    def limited(
        self,
        exclude: Any,
        candidates: Any,
        items: IdIndex,
        unknown: Unknowns,
        pins: UnknownPins | None = None,
    ) -> Self:
        """Return the request with the item lists of the caller, which are looked up once.

        One list for all users becomes a shared mask. `pins` are pinned items that the model does
        not know; the lists and the histories may name them too.
        """
        lists = {"exclude": _reusable(exclude), "candidates": _reusable(candidates)}
        lists = {name: ids for name, ids in lists.items() if ids is not None}
        out = self
        for name, ids in lists.items():
            selected, has_list = self._item_lists(name, ids, items, unknown)
            if isinstance(selected, np.ndarray):
                out = out.within(~selected if name == "exclude" else selected)
            else:
                out = out._with_pairs(name == "exclude", selected, has_list)
        return out if pins is None else out._with_pins(lists, pins.index)

    def _with_pins(self, lists: dict[str, Any], pins: IdIndex) -> Self:
        """Return the request with what lists and histories say about unknown pinned items."""
        skip = Unknowns("skip", "skip")
        used = np.zeros((len(self), len(pins)), np.bool_)
        if isinstance(self.source, Interactions):
            positions = pins.positions(self.source.items, unknown="skip")
            columns = self.source.matrix.tocsc()[:, np.flatnonzero(positions >= 0)]
            used[:, positions[positions >= 0]] = columns.toarray() != 0
        elif isinstance(self.source, list):
            used = history_rows(self.source, pins, skip).toarray() > 0
        allowed = np.ones_like(used)
        for name, ids in lists.items():
            named, has_list = np.zeros_like(used), None
            if not _are_flags(ids):
                selected, has_list = self._item_lists(name, ids, pins, skip)
                named |= selected if isinstance(selected, np.ndarray) else selected.toarray() > 0
            if name == "exclude":
                allowed &= ~named
            else:
                allowed &= named if has_list is None else named | ~has_list[:, None]
        return replace(self, pins=allowed, used_pins=used)

    def shown_pins(self, rules: ItemRules, exclude_seen: bool) -> Mask | None:
        """Return users x unknown pinned items that may be listed; None without such pins."""
        pins = rules.unknown_pins
        if pins is None:
            return None
        shown = np.tile(pins.allowed, (len(self), 1))
        for row, user in enumerate(self.users if pins.users and self.has_names else []):
            user_rules = pins.users.get(id_key(user), {})
            shown[row] &= user_rules.get("include", True) & ~user_rules.get("exclude", np.False_)
        if self.pins is not None:
            shown &= self.pins
        used = np.zeros_like(shown) if self.used_pins is None else self.used_pins
        if rules.seen == "only":
            shown &= used
        return shown & ~used if exclude_seen else shown

    def ruled(self, rules: ItemRules) -> Self:
        """Return the request under the rules for all users and those for single users."""
        out = self if rules.allowed is None else self.within(rules.allowed)
        if rules.seen == "only":
            out = replace(out, only=(*out.only, Only(self.history)))
        if not rules.users or not self.has_names:
            return out
        user_rules = [rules.users.get(id_key(user), {}) for user in self.users]
        for name in ("include", "exclude"):
            has_list = np.array([name in masks for masks in user_rules], np.bool_)
            if has_list.any():
                lists = [
                    np.flatnonzero(masks[name]) if name in masks else () for masks in user_rules
                ]
                pairs = _pairs(lists, self.history.shape[1])
                out = out._with_pairs(name == "exclude", pairs, has_list)
        return out

    def within(self, mask: Mask) -> Self:
        """Return the request limited to the items of a mask."""
        return replace(self, allowed=mask if self.allowed is None else self.allowed & mask)

    def _with_pairs(self, excludes: bool, pairs: Csr, has_list: Mask | None) -> Self:
        """Return the request without these pairs, or with these alone for users with a list."""
        if excludes:
            return replace(self, exclude=pairs if self.exclude is None else self.exclude + pairs)
        return replace(self, only=(*self.only, Only(pairs, has_list)))

    def _item_lists(
        self, name: str, ids: Any, items: IdIndex, unknown: Unknowns
    ) -> tuple[Mask | Csr, Mask | None]:
        """Return a mask for all users, or a row per user and a flag of who has one."""
        if isinstance(ids, Mapping):
            by_user = by_id_key(name, ids)
            keys = [id_key(user) for user in self.users]
            has_list = np.array([key in by_user for key in keys], np.bool_)
            lists = [by_user.get(key, ()) for key in keys]
            return history_rows(lists, items, unknown), has_list
        entries = as_list(ids)
        if _are_flags(entries):
            if len(entries) != len(items):
                size = f"{len(entries)} flags for {len(items)} items"
                raise DataError(f"got {size}; give one for each item of the model, or item ids")
            return np.array(entries, np.bool_), None
        if _are_ids(entries, "item ids or lists of item ids"):
            mask = np.zeros(len(items), np.bool_)
            mask[_item_positions(entries, items, unknown)] = True
            return mask, None
        assert self.answered is not None
        if len(entries) != len(self.answered):
            size = f"{len(entries)} lists of items for {len(self.answered)} users"
            raise DataError(f"got {size}; give one each, or a mapping from users to lists")
        lists = [entries[row] for row in np.flatnonzero(self.answered)]
        return history_rows(lists, items, unknown), None


def parse_query(query: Any, train: Interactions, unknown: Unknowns) -> Request:
    """Parse user ids, histories or Interactions; the caller adds the rows of the histories.

    A single id or a list of ids means training users; a list of lists, a mapping from names to
    lists and Interactions mean histories.
    """
    if isinstance(query, Interactions):
        index = query.user_index
        known = train.in_memory
        trained = train.user_index.positions(query.users, unknown="skip") if known else None
        answered = np.ones(len(index), np.bool_)
        names = query.users.tolist()
        return Request(
            names, *NO_ROWS, kind=index.kind, answered=answered, trained=trained, source=query
        )
    if isinstance(query, Mapping):
        users, histories = list(query), list(query.values())
        answered = np.ones(len(users), np.bool_)
        return Request(
            users, *NO_ROWS, kind=column_kind(users), answered=answered, source=histories
        )
    entries = as_list(query)
    if not _are_ids(entries, "user ids or histories (lists of item ids)"):
        answered = np.ones(len(entries), np.bool_)
        users = list(range(len(entries)))
        return Request(
            users, *NO_ROWS, kind=pl.Int64, answered=answered, has_names=False, source=entries
        )
    positions = unknown.user_positions(entries, train)
    answered = (positions >= 0) | (unknown.users == "popular")
    positions = positions[answered]
    passed = [_plain(entries[row]) for row in np.flatnonzero(answered)]
    known_ids = iter(train.ids_of_users(positions[positions >= 0]).tolist())
    users = [next(known_ids) if place >= 0 else passed[i] for i, place in enumerate(positions)]
    kind = train.user_kind
    if (positions < 0).any() and kind == pl.Int64:
        kind = column_kind(users)
    return Request(
        users, *NO_ROWS, kind=kind, answered=answered, trained=positions, source=positions
    )


def _reusable(ids: Any) -> Any:
    return list(ids) if isinstance(ids, Iterator) else ids


def _are_flags(ids: Any) -> bool:
    if isinstance(ids, Mapping) or is_id(ids):
        return False
    entries = as_list(ids)
    return bool(entries) and all(isinstance(entry, (bool, np.bool_)) for entry in entries)


def rows_or_empty(matrix: Csr, places: Positions) -> Csr:
    """Return rows of a matrix, an empty one where the place is negative."""
    if (places >= 0).all():
        return matrix[places]
    starts, stops = matrix.indptr[places], matrix.indptr[places + 1]
    entries, offsets = segments(starts, np.where(places >= 0, stops - starts, 0))
    parts = matrix.data[entries], matrix.indices[entries], offsets
    return sp.csr_array(parts, shape=(len(places), matrix.shape[1]))


def history_rows(histories: Iterable[Any], items: IdIndex, unknown: Unknowns) -> Csr:
    """Return one row per history, with a 1 for each of its items."""
    return _pairs([_item_positions(ids, items, unknown) for ids in histories], len(items))


def distinct_items(events: Events, n_items: int) -> Csr:
    """Return a row for each user of events, with a 1 for each of the user's items."""
    # the rows are sorted in place, and the events must stay as they are
    parts = np.ones(len(events.items), np.float32), events.items.copy(), events.offsets.copy()
    rows = sp.csr_array(parts, shape=(len(events), n_items))
    rows.sum_duplicates()
    rows.data[:] = 1
    return rows


def _pairs(rows: Sequence[Any], n_items: int) -> Csr:
    """Return rows with ones at these ascending positions."""
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    columns = np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int64)
    ones = np.ones(len(columns), np.float32)
    return sp.csr_array((ones, columns, offsets), shape=(len(rows), n_items))


def cold_rows(history: Csr, item_counts: npt.NDArray[Any]) -> Mask:
    """Flag users without a history, or whose items nobody used in training."""
    # `reduceat` gives an empty row the value of the next one, and needs one after the last
    used = np.append(item_counts[history.indices] > 0, False)
    has_used_item = np.logical_or.reduceat(used, history.indptr[:-1])
    return np.asarray(~has_used_item | (np.diff(history.indptr) == 0))


def history_events(
    histories: Iterable[Any], items: IdIndex, unknown: Unknowns
) -> tuple[Events, list[Any]]:
    """Return the known items of each history in order, with repeats; and the skipped ids."""
    lists = [as_list(history) for history in histories]
    rows = [unknown.item_positions(ids, items) for ids in lists]
    skipped = [
        ids[at] for ids, row in zip(lists, rows, strict=True) for at in np.flatnonzero(row < 0)
    ]
    rows = [row[row >= 0] for row in rows]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    positions = np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int32)
    return Events(positions, offsets), skipped


def _item_positions(ids: Any, items: IdIndex, unknown: Unknowns) -> Positions:
    """Return the sorted distinct positions of item ids."""
    positions = unknown.item_positions(ids, items)
    return np.unique(positions[positions >= 0])


def _are_ids(entries: list[Any], choice: str) -> bool:
    """Whether all entries are ids; a mixture is an error."""
    flags = [is_id(entry) for entry in entries]
    if any(flags) and not all(flags):
        raise DataError(f"pass either {choice}, not a mixture")
    return all(flags)


def _plain(user: Any) -> Any:
    return user.item() if isinstance(user, np.generic) else user


def column_kind(names: list[Any]) -> Any:
    """Return the type of a column of names: integer if all names are, else text."""
    integers = all(
        isinstance(name, (int, np.integer)) and type(name) is not bool for name in names
    )
    return pl.Int64 if integers and all(abs(int(name)) < 2**63 for name in names) else pl.String


SHARED = -2  # a history that several users have


class KnownUsers:
    """The users a model was fitted on, found by position or by history.

    A row with a user's position is that user, if its history is the one of the fit. A bare history
    belongs to the one user who has it; one that several users share is an error, unless users
    with equal histories score `alike`. `model` is the name in error messages.
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
        users = [-1] * len(rows) if rows.users is None else rows.users.tolist()
        keys = _keys(rows.indptr, rows.indices, rows.values)
        return [self._place(key, user) for key, user in zip(keys, users, strict=True)]

    def _place(self, key: bytes, user: int) -> int:
        if not key:
            return -1
        if user >= 0 and self._keys[user] == key:
            return user
        place = self._places.get(key, -1)
        if place == SHARED:
            raise DataError(
                f"several users of {self.model} have this history, and each has another vector; "
                "pass a user id, or use a model that ranks for any history"
            )
        if place < 0:
            raise DataError(
                f"{self.model} ranks only for the users and histories it was fitted on; fit it "
                "with these histories, or use a model without this limit"
            )
        return place


def _keys(
    indptr: npt.NDArray[Any], indices: npt.NDArray[Any], values: npt.NDArray[Any]
) -> list[bytes]:
    items, weights = np.asarray(indices, np.int32), np.asarray(values, np.float32)
    return [
        items[start:stop].tobytes() + weights[start:stop].tobytes()
        for start, stop in pairwise(indptr.tolist())
    ]
