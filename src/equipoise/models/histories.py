"""From what a caller passes (users, histories, item lists) to rows of a matrix."""

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


class Unknowns(NamedTuple):
    """What to do about ids the model does not know."""

    users: Literal["error", "popular", "skip"] = "error"
    items: Unknown = "error"

    @classmethod
    def of(cls, both: Unknown | None, users: Any = None, items: Any = None) -> Self:
        """Return the checked choices; `both` stands for those that are left out."""
        default = "error" if both is None else choice("unknown", both, UNKNOWN)
        users = default if users is None else users
        items = default if items is None else items
        choice("unknown_users", users, ("error", "popular", "skip"))
        return cls(users, choice("unknown_items", items, UNKNOWN))

    def user_positions(self, listed: Any, index: IdIndex) -> Positions:
        """Positions of training users, -1 for those that are no error."""
        hint = "pass unknown_users='popular' for popular items, or 'skip' to leave them out"
        unknown: Unknown = "error" if self.users == "error" else "skip"
        return index.positions(listed, unknown=unknown, hint=hint)

    def item_positions(self, listed: Any, index: IdIndex) -> Positions:
        """Positions of items, -1 for those that are left out."""
        hint = "pass unknown_items='skip' to leave them out"
        return index.positions(listed, unknown=self.items, hint=hint)


@dataclass(frozen=True)
class Asked:
    """The users or histories that a caller passed.

    Parameters
    ----------
    users, kind
        A name for each of them, and the type of a column of these names.
    source
        Positions of training users (-1: unknown, to be answered all the same), histories, or
        Interactions.
    answered
        A flag for each user or history the caller passed: False where it was skipped.
    trained
        Positions among the training users, -1 for others; None where all are bare histories.
    has_names
        Whether `users` are ids or names that the caller gave; positions of a list are not.
    """

    users: list[Any]
    kind: Any
    source: Positions | list[Any] | Interactions
    answered: Mask
    trained: Positions | None = None
    has_names: bool = True

    def request(self, history: Csr, trained: Positions | None = None) -> Request:
        """Return the request for these users, whose histories are the rows of a matrix."""
        return Request(
            self.users,
            self.kind,
            history,
            self.answered,
            trained,
            has_names=self.has_names,
            source=self.source,
        )


def parse_asked(wanted: Any, train: Interactions, unknown: Unknowns) -> Asked:
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
        return Asked(users, column_kind(users), histories, np.ones(len(users), np.bool_))
    listed = as_list(wanted)
    if _are_ids(listed, "user ids or histories (lists of item ids)"):
        place = unknown.user_positions(listed, train.user_index)
        answered = (place >= 0) | (unknown.users == "popular")
        place = place[answered]
        given = [_plain(user) for user, kept in zip(listed, answered, strict=True) if kept]
        known = train.users[place].tolist() if len(train.users) else given
        users = [own if at >= 0 else new for own, new, at in zip(known, given, place, strict=True)]
        kind = train.user_index.kind
        if (place < 0).any() and kind == pl.Int64:
            kind = column_kind(users)
        return Asked(users, kind, place, answered, place)
    every = np.ones(len(listed), np.bool_)
    return Asked(list(range(len(listed))), pl.Int64, listed, every, has_names=False)


@dataclass(frozen=True)
class Request:
    """Users to answer, their histories over the model's items, and what may be listed.

    Parameters
    ----------
    users, kind, answered, trained, has_names
        As of `Asked`. Rules for users hold only where these have names.
    history
        A row for each user.
    allowed
        Mask of the items that may be listed for all users; None stands for all items.
    exclude
        Items that may not be listed, a row for each user.
    only
        Items that alone may be listed, a row for each user.
    source
        As of `Asked`, before any users are taken.
    pins, used_pins
        Users x pinned items that the model does not know: which the lists of the caller allow,
        and which are in the history; None where there are no such lists.
    """

    users: list[Any]
    kind: Any
    history: Csr
    answered: Mask
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

    def take(self, rows: Positions) -> Self:
        """Return the users at these rows."""
        per_user: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name)[rows]
            for name in ("history", "trained", "exclude", "pins", "used_pins")
        }
        only = tuple(each.take(rows) for each in self.only)
        return replace(self, users=[self.users[row] for row in rows], only=only, **per_user)

    def limited(
        self,
        exclude: Any,
        candidates: Any,
        items: IdIndex,
        unknown: Unknowns,
        pins: UnknownPins | None = None,
    ) -> Self:
        """Return the request with item lists of the caller, each looked up once.

        One list for all users becomes a mask, which all of them share. `pins` are items that the
        model does not know, which these lists and the histories may name too.
        """
        exclude, candidates = _reusable(exclude), _reusable(candidates)
        out = self
        for name, given in (("exclude", exclude), ("candidates", candidates)):
            if given is None:
                continue
            excludes = name == "exclude"
            found, rows = self._item_lists(name, given, items, unknown)
            if isinstance(found, np.ndarray):
                out = out.within(~found if excludes else found)
            elif excludes:
                out = out._without(found)
            else:
                out = replace(out, only=(*out.only, Only(found, rows)))
        return out if pins is None else out._with_pins(exclude, candidates, pins.index)

    def _with_pins(self, exclude: Any, candidates: Any, pins: IdIndex) -> Self:
        """Return the request with what lists and histories say of items outside the model."""
        skip = Unknowns("skip", "skip")
        used = np.zeros((len(self), len(pins)), np.bool_)
        if isinstance(self.source, Interactions):
            known = pins.positions(self.source.items, unknown="skip")
            columns = self.source.matrix.tocsc()[:, np.flatnonzero(known >= 0)]
            used[:, known[known >= 0]] = columns.toarray() != 0
        elif isinstance(self.source, list):
            used = history_rows(self.source, pins, skip).toarray() > 0
        allowed = np.ones_like(used)
        for name, given in (("exclude", exclude), ("candidates", candidates)):
            if given is None:
                continue
            named, rows = np.zeros_like(used), None
            if not _are_flags(given):
                found, rows = self._item_lists(name, given, pins, skip)
                named |= found if isinstance(found, np.ndarray) else found.toarray() > 0
            if name == "exclude":
                allowed &= ~named
            else:
                allowed &= named if rows is None else named | ~rows[:, None]
        return replace(self, pins=allowed, used_pins=used)

    def shown_pins(self, rules: ItemRules, exclude_seen: bool) -> Mask | None:
        """Return users x pins that the model does not know, which may be listed; None for none."""
        pins = rules.unknown_pins
        if pins is None:
            return None
        shown = np.tile(pins.allowed, (len(self), 1))
        for row, user in enumerate(self.users if pins.users and self.has_names else []):
            own = pins.users.get(id_key(user), {})
            shown[row] &= own.get("include", True) & ~own.get("exclude", np.False_)
        if self.pins is not None:
            shown &= self.pins
        used = np.zeros_like(shown) if self.used_pins is None else self.used_pins
        if rules.seen == "only":
            shown &= used
        return shown & ~used if exclude_seen else shown

    def ruled(self, rules: ItemRules) -> Self:
        """Return the request with what rules allow, for all users and for each."""
        out = self if rules.allowed is None else self.within(rules.allowed)
        if rules.seen == "only":
            out = replace(out, only=(*out.only, Only(self.history)))
        if not rules.users or not self.has_names:
            return out
        each = [rules.users.get(id_key(user), {}) for user in self.users]
        for name in ("include", "exclude"):
            rows = np.array([name in own for own in each], np.bool_)
            if not rows.any():
                continue
            lists = [np.flatnonzero(own[name]) if name in own else () for own in each]
            pairs = _pairs(lists, self.history.shape[1])
            if name == "exclude":
                out = out._without(pairs)
            else:
                out = replace(out, only=(*out.only, Only(pairs, rows)))
        return out

    def within(self, mask: Mask) -> Self:
        """Return the request with these items alone, among those it allows."""
        return replace(self, allowed=mask if self.allowed is None else self.allowed & mask)

    def _without(self, pairs: Csr) -> Self:
        return replace(self, exclude=pairs if self.exclude is None else self.exclude + pairs)

    def _item_lists(
        self, name: str, given: Any, items: IdIndex, unknown: Unknowns
    ) -> tuple[Mask | Csr, Mask | None]:
        """Return a mask for all users, or a row per user and which users have one."""
        if isinstance(given, Mapping):
            by_user = by_id_key(name, given)
            keys = [id_key(user) for user in self.users]
            rows = np.array([key in by_user for key in keys], np.bool_)
            lists = [by_user.get(key, ()) for key in keys]
            return history_rows(lists, items, unknown), rows
        listed = as_list(given)
        if _are_flags(listed):
            if len(listed) != len(items):
                size = f"{len(listed)} flags for {len(items)} items"
                raise DataError(f"got {size}; give one for each item of the model, or item ids")
            return np.array(listed, np.bool_), None
        if _are_ids(listed, "item ids or lists of item ids"):
            mask = np.zeros(len(items), np.bool_)
            mask[_item_positions(listed, items, unknown)] = True
            return mask, None
        known = self.answered
        if len(listed) != len(known):
            size = f"{len(listed)} lists of items for {len(known)} users"
            raise DataError(f"got {size}; give one each, or a mapping from users to lists")
        kept = [row for row, is_known in zip(listed, known, strict=True) if is_known]
        return history_rows(kept, items, unknown), None


def _reusable(given: Any) -> Any:
    """Return item lists as they are, an iterator as a list."""
    return list(given) if isinstance(given, Iterator) else given


def _are_flags(given: Any) -> bool:
    """Whether these are flags, one for each item of a model."""
    if isinstance(given, Mapping) or is_id(given):
        return False
    listed = as_list(given)
    return bool(listed) and all(isinstance(each, (bool, np.bool_)) for each in listed)


def rows_or_empty(matrix: Csr, places: Positions) -> Csr:
    """Return rows of a matrix, an empty one where the place is negative."""
    if (places >= 0).all():
        return matrix[places]
    starts, stops = matrix.indptr[places], matrix.indptr[places + 1]
    taken, offsets = segments(starts, np.where(places >= 0, stops - starts, 0))
    parts = matrix.data[taken], matrix.indices[taken], offsets
    return sp.csr_array(parts, shape=(len(places), matrix.shape[1]))


def history_rows(histories: Iterable[Any], items: IdIndex, unknown: Unknowns) -> Csr:
    """Return one row per history, with a 1 for each of its items."""
    return _pairs([_item_positions(each, items, unknown) for each in histories], len(items))


def _pairs(rows: Sequence[Any], n_items: int) -> Csr:
    """Return rows of ones at these positions, which ascend."""
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    columns = np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int64)
    ones = np.ones(len(columns), np.float32)
    return sp.csr_array((ones, columns, offsets), shape=(len(rows), n_items))


def cold_rows(history: Csr, item_counts: npt.NDArray[Any]) -> Mask:
    """Flags of the users without a history, or with items alone that nobody used in training."""
    # `reduceat` gives an empty row the value of the next one, and needs one after the last
    used = np.append(item_counts[history.indices] > 0, False)
    found = np.logical_or.reduceat(used, history.indptr[:-1])
    return np.asarray(~found | (np.diff(history.indptr) == 0))


def history_events(
    histories: Iterable[Any], items: IdIndex, unknown: Unknowns
) -> tuple[Events, list[Any]]:
    """Return the items of each history in their order, repeats included; and those left out."""
    listed = [as_list(history) for history in histories]
    rows = [unknown.item_positions(each, items) for each in listed]
    skipped = [
        each[at] for each, row in zip(listed, rows, strict=True) for at in np.flatnonzero(row < 0)
    ]
    rows = [row[row >= 0] for row in rows]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    found = np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int32)
    return Events(found, offsets), skipped


def _item_positions(listed: Any, items: IdIndex, unknown: Unknowns) -> Positions:
    """Sorted positions of item ids, each once."""
    place = unknown.item_positions(listed, items)
    return np.unique(place[place >= 0])


def _are_ids(listed: list[Any], choice: str) -> bool:
    """Whether all of these are ids; otherwise none may be."""
    ids = [is_id(value) for value in listed]
    if any(ids) and not all(ids):
        raise DataError(f"pass either {choice}, not a mixture")
    return all(ids)


def _plain(user: Any) -> Any:
    return user.item() if isinstance(user, np.generic) else user


def column_kind(names: list[Any]) -> Any:
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
